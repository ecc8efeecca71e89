"""Terminal output: lines, tables, states, payloads, progress bars and next commands. rich draws all of it.

A terminal gets colour, and tables that fit its width. A pipe or a file gets plain text with every column. NO_COLOR and
TERM=dumb switch colour off, and `--json` never has any.

Text from outside becomes a `Text` without control characters. It is never read as markup. What is printed without rich
is escaped on a terminal, and unchanged in a pipe or a file. No other module of the command line prints.
rich is imported by the functions that draw, so that `--help` does not wait for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from io import StringIO
from typing import IO, TYPE_CHECKING, Any

import click
import orjson

from receiver.contract.diagnosis.formatting import counted
from receiver.contract.diagnosis.terminal_text import escaped, harmless
from receiver.contract.errors import ConfigError
from receiver.contract.event import form_fields
from receiver.contract.whole_characters import with_whole_characters
from workers.cli.typed_commands import as_typed, commands_as_typed

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID
    from rich.text import Text

UNLIMITED = 1 << 16
"""The width of a pipe or a file."""
SHORTEST = 12
"""No column is shortened to less than this."""
FAIR = 24
"""Columns are dropped before another one is shortened to less than this."""
PAYLOAD_LINES = 100
"""How much of a payload is shown; `--json` shows all of it."""
GAP = 2
"""Spaces between two columns."""
_NUMBER = re.compile(r"([\d,]+(\.\d+)?)?")

STYLES: Mapping[str, str] = {
    **dict.fromkeys(("ok", "on", "yes", "done", "settled", "accepted", "confirmed", "documented", "valid"), "green"),
    **dict.fromkeys(("warn", "open", "waiting", "running", "retry", "retrying", "paused", "busy"), "yellow"),
    **dict.fromkeys(("duplicate", "unknown", "would match"), "yellow"),
    **dict.fromkeys(("fail", "failed", "firing", "raised", "died", "refused", "no match", "not valid"), "red"),
    **dict.fromkeys(("no", "dropped", "skipped", "assumed"), "dim"),
}
"""The colour of each state."""


# Text


def text(value: Any, style: str = "") -> Text:
    """A value as harmless text. A `Text` is kept as it is."""
    from rich.text import Text

    if isinstance(value, Text):
        return value
    if isinstance(value, datetime):
        value = clock(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    return Text(harmless("" if value is None else str(value)), style=style)


def joined(*parts: Any) -> Text:
    from rich.text import Text

    return Text.assemble(*(text(part) for part in parts))


def state(word: str, shown: str | None = None) -> Text:
    """A state in its colour: green is good, yellow is open, red is failed."""
    return text(word if shown is None else shown, STYLES.get(word.lower(), ""))


def figure(number: int, name: str) -> Text:
    """A count in the colour of the state that it counts; zero has none."""
    return state(name, f"{number:,}") if number else text(number)


def clock(moment: datetime) -> str:
    """The local time; with the date if it is not today."""
    local = moment.astimezone()
    today = datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if local.date() == today else f"{local:%d %b %H:%M:%S}"


# Printing


def is_terminal(stream: IO[str]) -> bool:
    return stream.isatty()


@cache
def console(*, stderr: bool = False) -> Console:
    """The console that turns text and tables into lines. It never wraps: `line` and `table` know the width."""
    from rich.console import Console

    has_terminal = is_terminal(sys.stderr if stderr else sys.stdout)
    plain = not has_terminal or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Console(
        file=StringIO(),  # click.echo alone writes: rich also would, nothing, which fails too on a full disk
        width=UNLIMITED,
        color_system=None if plain else "auto",
        force_terminal=not plain,
        highlight=False,
        markup=False,
        emoji=False,
    )


def width() -> int:
    """How long a line may be: as wide as the terminal; unlimited in a pipe or a file."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else UNLIMITED


def line(*parts: Any, indent: int = 0, whole: bool = False) -> None:
    """Print one line. On a terminal it wraps between words, and continues below at the indent.

    `whole` is for what people copy: it is never wrapped.
    """
    whole_line = joined(*parts)
    head, tail = whole_line[:indent], whole_line[indent:]
    longest = max((len(word) for word in tail.plain.split()), default=0)
    space = width() - indent
    if whole or space < FAIR or tail.cell_len <= space:
        _print(whole_line)
        return
    for number, part in enumerate(tail.wrap(console(), max(space, longest))):
        _print(joined(" " * indent if number else head, part))


def field(name: str, value: Any, *, indent: int = 0, wide: int = 15) -> None:
    """Print a name and its value, which wraps below itself."""
    line(text(f"{'':{indent}}{name:<{wide}}", "dim"), value, indent=indent + wide)


def echo(value: str | bytes = "", *, nl: bool = True, err: bool = False) -> None:
    """Print text as it is, but on a terminal with escapes for what could control it. JSON stays the same document."""
    text = value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
    if is_terminal(sys.stderr if err else sys.stdout):
        value = escaped(text)
    click.echo(value, nl=nl, err=err)


def raw(data: bytes, *, force: bool) -> None:
    """Write bytes as they are; to a terminal only by force, else escaped."""
    if force or not is_terminal(sys.stdout):
        click.echo(data, nl=False)
        return
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    echo(text)
    if escaped(text) != text:
        warn("control characters are shown as \\uXXXX; --force prints them as they are, and so does a pipe")


def confirm(action: str, *, yes: bool, note: str = "") -> None:
    """Called by every command before it changes something: asks on a terminal, and needs `--yes` without one.

    `action` begins with a verb: "drop 3 runs". The question is on standard error, since the output may be JSON.
    """
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise ConfigError(f"this would {action}{f'; {note}' if note else ''}; confirm it with --yes")
    question = f"{action[:1].upper()}{action[1:]}?{f' {note[:1].upper()}{note[1:]}.' if note else ''}"
    click.confirm(escaped(question), abort=True, err=True)


def clear() -> None:
    """Make a terminal empty."""
    if is_terminal(sys.stdout):
        click.clear()


def as_json(value: Any, *, indent: bool = True) -> None:
    """Print one JSON document, on one line if it is not indented."""
    echo(orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None, default=str).decode())


def payload(body: bytes) -> None:
    """Print a body: JSON and the fields of a form are indented, and coloured on a terminal; anything else is text."""
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    indented = _indented(body)
    lines = (indented or body).decode("utf-8", "replace").splitlines()
    clean = Text("\n".join(harmless(one) for one in lines[:PAYLOAD_LINES]))
    if indented:
        JSONHighlighter().highlight(clean)
    _print(clean)
    if more := lines[PAYLOAD_LINES:]:
        line(text(f"… {counted(len(more), 'more line')}; --json shows all of it", "dim"))


def _indented(body: bytes) -> bytes | None:
    """JSON with indentation, its numbers exactly as they were sent, or the fields of a form; None for another body."""
    try:
        value = json.loads(with_whole_characters(body), parse_float=orjson.Fragment, parse_int=orjson.Fragment)
        return orjson.dumps(value, option=orjson.OPT_INDENT_2)
    except (ValueError, TypeError, RecursionError):
        fields = form_fields(body)
        return orjson.dumps(fields, option=orjson.OPT_INDENT_2) if fields else None


def warn(sentence: str, start: str = "") -> None:
    """Print a warning on standard error. Commands in it are shown as they are typed here."""
    first, *more = commands_as_typed(sentence).splitlines() or [""]
    _print(joined(text(start, "red"), first), stderr=True)
    for one in more:
        _print(text(one), stderr=True)


def error(sentence: object) -> None:
    """Print why the command failed, on standard error."""
    warn(str(sentence), "storehooks: ")


def _print(renderable: RenderableType, *, width: int | None = None, stderr: bool = False) -> None:
    """By way of click.echo, which raises at a closed pipe, and removes colour where there is no terminal."""
    drawing = console(stderr=stderr)
    with drawing.capture() as captured:
        drawing.print(renderable, width=width, soft_wrap=width is None)
    click.echo("\n".join(one.rstrip() for one in captured.get().splitlines()), err=stderr)


# Tables


@dataclass
class _Column:
    heading: str
    cells: list[Text]
    is_number: bool
    may_shrink: bool

    def width(self, least: int) -> int:
        """The width it needs, if it may be shortened to `least`."""
        full = max(one.cell_len for one in [text(self.heading), *self.cells])
        return min(full, least) if self.may_shrink else full


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    drop: Sequence[str] = (),
    shorten: Sequence[str] = (),
    wrap: str = "",
    indent: int = 0,
    header: bool = True,
) -> None:
    """Print rows in columns, numbers to the right.

    On a terminal that is too narrow, the columns of `drop` are left out, in this order and only as many as needed.
    Then those of `shorten` are cut, and the column `wrap` continues on further lines. Other columns hold what people
    copy and stay whole.
    """
    from rich.padding import Padding
    from rich.table import Table

    shrinking = {*shorten, wrap}
    columns = [_column(*values, may_shrink=values[0] in shrinking) for values in zip(headings, *rows, strict=True)]
    space = width() - indent
    for name in drop:
        if _narrowest(columns, FAIR) > space:
            columns = [one for one in columns if one.heading != name]
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_header=header)
    for column in columns:
        wraps = column.heading == wrap
        for cell in column.cells:
            cell.no_wrap = not wraps
            cell.overflow = "fold" if wraps else "ellipsis"
        drawn.add_column(
            text(column.heading), justify="right" if column.is_number else "left", no_wrap=not column.may_shrink
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        drawn.add_row(*row)
    space = max(space, _narrowest(columns, SHORTEST))
    _print(Padding(drawn, (0, 0, 0, indent), expand=False), width=space + indent)


def _column(heading: str, *values: Any, may_shrink: bool) -> _Column:
    cells = [text(value) for value in values]
    is_number = any(cell.plain for cell in cells) and all(_NUMBER.fullmatch(cell.plain) for cell in cells)
    return _Column(heading, cells, is_number, may_shrink)


def _narrowest(columns: list[_Column], least: int) -> int:
    return sum(one.width(least) for one in columns) + GAP * (len(columns) - 1)


# Progress


class Progress:
    """A progress bar that is under way."""

    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self._bar = bar
        self._task = task
        self._steps = 0

    def advance(self, number: int = 1) -> None:
        self._bar.advance(self._task, number)

    def reach(self, position: int) -> None:
        self._bar.update(self._task, completed=position)

    def stop(self) -> None:
        """Remove the bar early, to print something else."""
        self._bar.stop()

    def next_step(self, label: str) -> None:
        """Name the step that begins now, and count the one before as done."""
        self._bar.update(self._task, completed=self._steps, description=harmless(label))
        self._steps += 1


@contextmanager
def progress(label: str, total: int, *, unit: str = "") -> Iterator[Progress]:
    """Show a progress bar on standard error while the block runs, if that is a terminal. It leaves nothing behind."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn() if unit == "bytes" else MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    shown = is_terminal(sys.stderr)
    with RichProgress(
        *columns, console=Console(stderr=True, force_terminal=shown), transient=True, disable=not shown
    ) as bar:
        yield Progress(bar, bar.add_task(harmless(label), total=total))


# What to type next


def next_command(*lines: str) -> None:
    """Print commands to type next, for the config that this command was given. Text after two spaces explains the
    command, in a column of its own."""
    if not lines:
        return
    halves = [re.split(r"  +", one, maxsplit=1) for one in lines]
    commands = [as_typed(half[0]) for half in halves]
    reasons = ["".join(half[1:]) for half in halves]
    wide = max(len(one) for one in commands)
    aligned = wide + max(len(one) for one in reasons) + 8 <= width()
    click.echo()
    for command, reason in zip(commands, reasons, strict=True):
        if aligned or len(command) + len(reason) + 4 <= width():
            gap = wide - len(command) + 6 if aligned else 2
            line("  ", text(command, "cyan"), " " * gap, text(reason, "dim"))
        else:
            line("  ", text(command, "cyan"), whole=True)
            line("      ", text(reason, "dim"), indent=6)
