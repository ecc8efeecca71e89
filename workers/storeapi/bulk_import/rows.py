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
    reader = csv.reader(_decoded(lines), strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            number += 1
            yield ImportRow(number, lines.position, None, f"not CSV: {error}")
            reader = csv.reader(_decoded(lines), strict=True)
            continue
        if cells:
            number += 1
            yield ImportRow(number, lines.position, *_parse_cells(names, cells, types))


def _column_names(file: BinaryIO) -> list[str]:
    """The names in the first line, which may begin with a byte order mark."""
    line = file.readline(MAX_LINE).decode("utf-8-sig", "replace")
    names = next(csv.reader(io.StringIO(line)), [])
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


class _LineReader:
    """Lines as bytes, and the position after the last one. csv reads no line ahead, so that is the end of a row."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self.position = start
        file.seek(start)

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(MAX_LINE + 1):
            self.position += len(line)
            if len(line) > MAX_LINE and not line.endswith(b"\n"):
                self._skip_line()
            yield line

    def _skip_line(self) -> None:
        while rest := self._file.readline(MAX_LINE):
            self.position += len(rest)
            if rest.endswith(b"\n"):
                return


def _decoded(lines: _LineReader) -> Iterator[str]:
    for line in lines:
        if len(line) > MAX_LINE:
            raise csv.Error(f"a line is longer than {MAX_LINE:,} bytes")
        yield line.decode("utf-8")
