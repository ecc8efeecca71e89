"""How the commands speak: sentences, aligned tables, JSON for scripts. Text from outside is made harmless."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import orjson

from workers.formatting import counted

SHORTEST = 12
"""No column is cut to less."""
FAIR = 24
"""Before one is cut to less than this, others are left out."""


def as_json(value: Any) -> None:
    """One JSON document on standard output."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    click.echo(
        orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE, default=str).decode(), nl=False
    )


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    drop: Sequence[str] = (),
    shorten: Sequence[str] = (),
    wrap: bool = False,
) -> None:
    """Columns as wide as what they hold; numbers to the right.

    Where the terminal is too narrow, the columns of `drop` are left out, as many as must be, and then those of
    `shorten` are cut; with `wrap` the last column takes several lines. A file or a pipe gets all of it.
    """
    columns = [[_cell(value) for value in column] for column in zip(headings, *rows, strict=True)]
    columns = _narrowed(columns, drop=drop, shorten=shorten, wrap=wrap)
    widths = [_width(column) for column in columns]
    right = [len(column) > 1 and all(cell.replace(",", "").isdigit() for cell in column[1:]) for column in columns]
    for row in zip(*columns, strict=True):
        cells = (cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True))
        line = "  ".join(cells).rstrip()
        for part in hanging(line, sum(widths[:-1]) + 2 * len(widths[:-1])) if wrap else [line]:
            click.echo(part)


def _narrowed(columns: list[list[str]], *, drop: Sequence[str], shorten: Sequence[str], wrap: bool) -> list[list[str]]:
    """The columns that fit into the terminal. None is left out while cutting the others to a fair width will do."""

    def excess(fair: Sequence[str]) -> float:
        taken = (min(_width(one), FAIR if one[0] in fair else math.inf) for one in columns)
        return sum(taken) + 2 * len(columns[:-1]) - room()

    last = [columns[-1][0]] if wrap else []
    for name in drop:
        if excess([*shorten, *last]) > 0:
            columns = [column for column in columns if column[0] != name]
    for column in (column for name in shorten for column in columns if column[0] == name):
        if (over := excess(last)) > 0:
            wide = max(SHORTEST, _width(column) - int(over))
            column[1:] = [cut(cell, wide) for cell in column[1:]]
    return columns


def _width(column: list[str]) -> int:
    return max(map(len, column))


def hanging(line: str, indent: int) -> list[str]:
    """A line in as many as the terminal needs; what follows the first begins at the indent. No word is broken."""
    if len(line) <= room() or room() - indent < FAIR:
        return [line]
    first, *more = textwrap.wrap(
        line[indent:], int(room()) - indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
    return [line[:indent] + first, *(" " * indent + one for one in more)]


def room() -> float:
    """How wide a line may be: as the terminal; in a file or a pipe, any width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf


def beside(line: str, tail: str, indent: int) -> str:
    """A line and what it ends with, which has lines of its own where the terminal is too narrow for both."""
    whole = f"{line}  {harmless(tail)}".rstrip()
    if len(whole) <= room():
        return whole
    return "\n".join([*hanging(line.rstrip(), indent), *hanging(" " * indent + harmless(tail), indent)])


def prose(text: str, indent: int = 2) -> None:
    """A sentence of any length, with text from outside in it."""
    click.echo("\n".join(hanging(harmless(text), indent)))


def cut(text: str, wide: float) -> str:
    return text if len(text) <= wide else f"{text[: int(wide) - 1]}…"


def harmless(text: str) -> str:
    """Text from a store or a handler, without anything a terminal would obey: escapes, line breaks, bidi controls."""
    return "".join(c if unicodedata.category(c)[0] != "C" else "�" for c in text)


def clock(moment: datetime) -> str:
    """A time for people: today's by the clock, others with their date."""
    local = moment.astimezone()
    today = datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if local.date() == today else f"{local:%d %b %H:%M:%S}"


def next_command(*lines: str) -> None:
    """What one would type next; what stands after some spaces says why, in a column of its own."""
    halves = [re.split(r"  +", line, maxsplit=1) for line in lines]
    typed = [re.sub(r"^storehooks\b", our_name(), half[0]) for half in halves]
    reasons = ["".join(half[1:]) for half in halves]
    width = max(len(one) for one in typed)
    aligned = width + max(len(one) for one in reasons) + 8 <= room()
    click.echo()
    for command, why in zip(typed, reasons, strict=True):
        if aligned:
            click.echo(f"  {command:<{width}}      {why}".rstrip())
        else:
            gap = "  " if len(command) + len(why) + 4 <= room() else "\n      "
            click.echo(f"  {command}{gap}{why}".rstrip())


def our_name() -> str:
    """What to type for us: the script by its name where the shell finds it, else by its path."""
    script = Path(sys.argv[0])
    if script.name != "storehooks" or shutil.which("storehooks") == str(script.absolute()):
        return "storehooks"
    return os.path.relpath(script)


def replay_counts(counts: Mapping[str, int]) -> None:
    """How a replay went."""
    words = {
        "open": "are under way already",
        "no-body": "cannot be done again, their body is gone by age",
        "absent": "have no such run",
        "gone": "are gone by age",
    }
    click.echo(f"{counted(counts.get('reopened', 0), 'run')} replayed")
    for name, meaning in words.items():
        if counts.get(name):
            click.echo(f"{counts[name]:,} {meaning}")
    next_command("storehooks failures", "storehooks stats")


def warn(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return clock(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return harmless(str(value))
