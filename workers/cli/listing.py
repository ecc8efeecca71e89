"""A listing: rows as a table or as JSON, with the same fields under the same names, and `--follow` for further ones."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import click
from redis.exceptions import ConnectionError, TimeoutError  # noqa: A004  the names that redis gives them

from workers.cli import output

if TYPE_CHECKING:
    from rich.text import Text

POLL_SECONDS = 0.2
RETRY_SECONDS = 1.0
Row = Mapping[str, Any]
T = TypeVar("T")

follow_option = click.option(
    "--follow", "-f", is_flag=True, help="Then print new ones as they come, until Ctrl-C; JSON has one on each line."
)


@dataclass(frozen=True)
class RowList:
    """How the rows of a command are shown. The headings of the table are the names of the fields."""

    cells: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """The text of a field in the table, where it is not the value itself."""
    drop: Sequence[str] = ()
    """Fields that are left out where the terminal is too narrow, the first one first."""
    shorten: Sequence[str] = ()

    def show(self, rows: Sequence[Row], *, json_: bool) -> None:
        if json_:
            output.as_json(rows)
        elif rows:
            headings, drop, shorten = ([*map(_heading, names)] for names in (rows[0], self.drop, self.shorten))
            output.table(headings, [self.cells_of(row) for row in rows], drop=drop, shorten=shorten)

    def follow(self, listed: Iterable[Row], new: Callable[[], Iterable[Row]], *, json_: bool) -> None:
        """Print rows, and then those that `new` returns, until Ctrl-C or until nothing reads the output any more."""
        table = _GrowingTable(self)
        try:
            for rows in chain([listed], look_again(new)):
                if _reader_is_gone():
                    break
                if json_:
                    for row in rows:
                        output.as_json(row, indent=False)
                else:
                    table.add(rows)
        except KeyboardInterrupt:
            output.echo(err=True)

    def cells_of(self, row: Row) -> list[Any]:
        return [self.cells.get(name, _text)(value) for name, value in row.items()]


def look_again(new: Callable[[], Iterable[T]]) -> Iterator[list[T]]:
    """What `new` returns, again and again; nothing while Redis is away."""
    is_away = False
    while True:
        time.sleep(RETRY_SECONDS if is_away else POLL_SECONDS)
        try:
            found, is_away = list(new()), False
        except (ConnectionError, TimeoutError) as error:
            if not is_away:
                output.warn(f"Redis does not answer; what comes meanwhile follows later: {error}")
            found, is_away = [], True
        yield found


def repeat(show: Callable[[], None], *, every: float) -> None:
    """Show something again and again, on a terminal in the same place, until Ctrl-C or until nothing reads it."""
    try:
        while not _reader_is_gone():
            output.clear()
            try:
                show()
            except (ConnectionError, TimeoutError) as error:
                output.warn(f"Redis does not answer: {error}")
            time.sleep(every)
    except KeyboardInterrupt:
        output.echo(err=True)


class _GrowingTable:
    """A table whose rows come one after the other. Its columns grow with what is printed."""

    def __init__(self, listing: RowList) -> None:
        self._listing = listing
        self._widths: dict[str, int] = {}
        """Of the fields that are shown."""

    def add(self, rows: Iterable[Row]) -> None:
        """Print rows; before the first ones the headings of those columns that fit on the terminal."""
        shown = [dict(zip(row, map(output.text, self._listing.cells_of(row)), strict=True)) for row in rows]
        is_new = bool(shown) and not self._widths
        for name in [] if not shown else self._widths or shown[0]:
            self._widths[name] = max(
                self._widths.get(name, len(name)), *(min(one[name].cell_len, output.FAIR + 2) for one in shown)
            )
        if is_new:
            for name in self._listing.drop:
                if sum(self._widths.values()) + output.GAP * len(self._widths) > output.width():
                    del self._widths[name]
            self._print({name: output.text(_heading(name), "bold") for name in self._widths})
        for one in shown:
            self._print(one)

    def _print(self, cells: Mapping[str, Text]) -> None:
        gaps = {name: " " * (max(0, wide - cells[name].cell_len) + output.GAP) for name, wide in self._widths.items()}
        output.line(*(part for name, gap in gaps.items() for part in (cells[name], gap)), whole=True)


def _reader_is_gone() -> bool:
    """Whether standard output is a pipe whose reader has ended, such as `| head`."""
    try:
        watch = select.poll()
        watch.register(sys.stdout, 0)
        return any(found & select.POLLERR for _, found in watch.poll(0))
    except (OSError, ValueError):  # standard output is no file, or it is closed
        return False


def _heading(name: str) -> str:
    return name.replace("_", " ").upper()


def _text(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
