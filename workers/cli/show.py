"""How the commands speak: sentences, aligned tables, JSON for scripts. Text from outside is made harmless."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import orjson


def as_json(value: Any) -> None:
    """One JSON document on standard output."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    click.echo(
        orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE, default=str).decode(), nl=False
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns as wide as what they hold; numbers to the right."""
    text = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(head), *(len(row[at]) for row in text)]) for at, head in enumerate(headings)]
    right = [all(row[at].replace(",", "").isdigit() for row in text) and bool(text) for at in range(len(headings))]
    for row in ([*headings], *text):
        cells = (cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True))
        click.echo("  ".join(cells).rstrip())


def harmless(text: str) -> str:
    """Text from a store or a handler, without anything a terminal would obey: escapes, line breaks, bidi controls."""
    return "".join(c if unicodedata.category(c)[0] != "C" else "�" for c in text)


def fitted(line: str) -> str:
    """A line that must not be longer than the terminal is wide; in a file or a pipe it is whole."""
    wide = shutil.get_terminal_size().columns
    return line if len(line) <= wide or not sys.stdout.isatty() else f"{line[: wide - 1]}…"


def clock(moment: datetime) -> str:
    """A time for people: today's by the clock, others with their date."""
    local = moment.astimezone()
    today = datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if local.date() == today else f"{local:%d %b %H:%M:%S}"


def next_command(*lines: str) -> None:
    """What one would type next; what stands after some spaces says why, in a column of its own."""
    halves = [re.split(r"  +", line, maxsplit=1) for line in lines]
    typed = [re.sub(r"^storehooks\b", our_name(), half[0]) for half in halves]
    width = max(len(one) for one in typed)
    click.echo()
    for command, (_, *why) in zip(typed, halves, strict=True):
        click.echo(f"  {command:<{width}}      {''.join(why)}".rstrip())


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
    click.echo(f"{counts.get('reopened', 0):,} runs replayed")
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
