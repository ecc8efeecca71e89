"""Rows: reads records from a CSV or JSON Lines file one at a time, each with the position of the next one.

The cells of a CSV file are text. A column whose field has another type in the catalogue is converted to it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from receiver.contract.errors import ConfigError
from workers.storeapi import exact_json

MAX_LINE = 1 << 20
"""Bytes. A longer line is refused and skipped, so that memory stays bounded for any file."""
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,18})?")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_EXAMPLES = {
    "amount": "an amount like 19.90",
    "integer": "a whole number",
    "number": "a number like 1.5",
    "flag": "true or false",
    "object": "a JSON object",
    "list": "a JSON list",
}


class ImportRow(NamedTuple):
    """A row, or the problem with it. `number` counts from 1; `end` is the byte where the next row begins."""

    number: int
    end: int
    record: dict[str, Any] | None
    problem: str = ""


def read_rows(
    path: Path, *, types: Mapping[str, str] | None = None, start: int = 0, number: int = 0
) -> Iterator[ImportRow]:
    """The rows from byte `start` on; `number` is the number of rows before it, `types` has the types of columns."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".jsonl", ".ndjson"):
        raise ConfigError(
            f"{path}: use a .csv file (column names in its first line) or a .jsonl file (an object per line)"
        )
    with open(path, "rb") as file:
        yield from _csv_rows(file, start, number, types or {}) if kind == ".csv" else _json_rows(file, start, number)


def _json_rows(file: BinaryIO, start: int, number: int) -> Iterator[ImportRow]:
    lines = _LineReader(file, start)
    for line in lines:
        if line.strip() or len(line) > MAX_LINE:
            number += 1
            yield ImportRow(number, lines.position, *_parse_object(line))


def _parse_object(line: bytes) -> tuple[dict[str, Any] | None, str]:
    if len(line) > MAX_LINE:
        return None, f"the line is longer than {MAX_LINE:,} bytes"
    try:
        value = _json_value(line)
    except ValueError as error:
        return None, "not JSON" if isinstance(error, exact_json.NOT_JSON) else str(error)
    return (value, "") if isinstance(value, dict) else (None, "not an object")


def _json_value(text: bytes) -> Any:
    """Raises ValueError also for half a character (`\\ud800` alone), which could not be sent."""
    value = exact_json.loads(text)
    if b"\\u" in text:
        try:
            exact_json.dumps(value)
        except TypeError:
            raise ValueError("half a character: \\ud800 to \\udfff stand in pairs only") from None
    return value


def _csv_rows(file: BinaryIO, start: int, number: int, types: Mapping[str, str]) -> Iterator[ImportRow]:
    names = _column_names(file)
    lines = _LineReader(file, max(start, file.tell()))
    for cells, problem in _CellReader(lines, len(names)):
        if problem:
            number += 1
            yield ImportRow(number, lines.position, None, f"not CSV: {problem}")
        elif cells:
            number += 1
            yield ImportRow(number, lines.position, *_parse_cells(names, cells, types))


def _column_names(file: BinaryIO) -> list[str]:
    """The names in the first line, which may begin with a byte order mark."""
    line = file.readline(MAX_LINE).decode("utf-8-sig", "replace")
    try:
        names = next(csv.reader(io.StringIO(line), strict=True), [])
    except csv.Error as error:  # a quote that is not closed, or more after one that is
        raise ConfigError(f"{file.name}: the first line, with the names of the columns, is not CSV: {error}") from None
    if not names or len(set(names)) != len(names) or "" in names:
        raise ConfigError(f"{file.name}: the first line must name each column once")
    return names


def _parse_cells(names: list[str], cells: list[str], types: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    """The record in a row. An empty cell is no field."""
    if len(cells) != len(names):
        return None, f"{len(cells)} cells for {len(names)} columns"
    record: dict[str, Any] = {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}
    for name in types.keys() & record.keys():
        try:
            record[name] = _converted(record[name].strip(), types[name])
        except ValueError:
            return record, f'{name} must be {_EXAMPLES[types[name]]}, and is "{record[name][:60]}"'
    return record, ""


def _converted(cell: str, kind: str) -> Any:
    """A cell as its type says. Raises ValueError."""
    if kind == "flag" and cell.lower() in _FLAGS:
        return _FLAGS[cell.lower()]
    if kind in ("object", "list"):
        value = _json_value(cell.encode())
        if isinstance(value, dict if kind == "object" else list):
            return value
    if kind in ("amount", "number") and _NUMBER.fullmatch(cell):
        return cell if kind == "amount" else Decimal(cell)
    if kind == "integer" and _INTEGER.fullmatch(cell):
        return int(cell)
    if kind == "text":
        return cell
    raise ValueError(f"not of type {kind}")


class _CellReader:
    """Iterates over the rows of a CSV file: the cells of each, or the problem with it.

    A stray quote is a problem of its line only: reading continues with the next line, not after the next quote. How a
    row is read depends on nothing before it, so that an import can resume after any row.
    """

    def __init__(self, lines: _LineReader, columns: int) -> None:
        self._lines = lines
        self._columns = columns

    def __iter__(self) -> Iterator[tuple[list[str], str]]:
        start = self._lines.position
        for line in self._lines:
            try:
                cells, is_open = _cells_of(line)
            except (csv.Error, UnicodeDecodeError) as error:
                yield [], str(error)
            else:
                yield self._finish_row(start, len(cells)) if is_open else (cells, "")
            start = self._lines.position

    def _finish_row(self, start: int, cells: int) -> tuple[list[str], str]:
        """The row from byte `start` on. Its first line has been read, and ends within a quoted cell."""
        second, number = self._lines.position, self._lines.number
        try:
            return self._cells_to_end(start, cells), ""
        except (csv.Error, UnicodeDecodeError) as error:
            problem = f"unclosed quote in line {number:,} (line {self._lines.number:,}: {error})"
        self._lines.go_to(second, number)
        return [], problem

    def _cells_to_end(self, start: int, cells: int) -> list[str]:
        """Raises csv.Error as soon as there are too many cells. Without this, each line of a file full of `a","b` would
        be read again for every line before it. So it is read again at most once for each column."""
        is_open = True
        while is_open:
            line = self._lines.read()
            if not line:
                raise csv.Error("the file ends before it is closed")
            if self._lines.position - start > MAX_LINE:
                raise csv.Error(f"the row is longer than {MAX_LINE:,} bytes")
            more, is_open = _cells_of(line, in_quotes=True)
            cells += len(more) - 1
            if cells > self._columns or (not is_open and cells < self._columns):
                raise csv.Error(f"{cells} cells for {self._columns} columns")
        return _cells_of(self._lines.read_since(start))[0]


def _cells_of(line: bytes, *, in_quotes: bool = False) -> tuple[list[str], bool]:
    """The cells, and whether the last one has an open quote. `in_quotes`: the line begins within a quoted cell."""
    if len(line) > MAX_LINE:
        raise csv.Error(f"a line is longer than {MAX_LINE:,} bytes")
    text = line.decode("utf-8")
    reader = csv.reader((f'"{text}' if in_quotes else text, '"'), strict=True)
    return next(reader), reader.line_num == 2  # it reads the second text, which closes the quote, only if one is open


class _LineReader:
    """Lines as bytes, and the position and the number of the last one."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self.go_to(0, 0)
        while self.position < start and self.read():
            pass
        self.go_to(start, self.number)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.read, b"")

    def read(self) -> bytes:
        """The next line; empty at the end of the file."""
        line = self._file.readline(MAX_LINE + 1)
        if line:
            self.number += 1
            self.position += len(line)
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            self._skip_line()
        return line

    def read_since(self, start: int) -> bytes:
        """What was read from byte `start` on, once more."""
        self._file.seek(start)
        return self._file.read(self.position - start)

    def go_to(self, position: int, number: int) -> None:
        """Continue behind the line of this number, which ends at `position`."""
        self.position, self.number = position, number
        self._file.seek(position)

    def _skip_line(self) -> None:
        while rest := self._file.readline(MAX_LINE):
            self.position += len(rest)
            if rest.endswith(b"\n"):
                return
