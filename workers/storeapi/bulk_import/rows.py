"""Rows: records from a CSV or JSON Lines file, one at a time, each with the place where the next one begins."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from receiver.contract.errors import ConfigError

LONGEST = 1 << 20
"""A longer line is refused, not read: memory stays bounded whatever the file is."""


class ImportRow(NamedTuple):
    """A row, or why it cannot be one; `number` counts from 1, `end` is the byte where the next one begins."""

    number: int
    end: int
    record: dict[str, Any] | None
    problem: str = ""


def read(path: Path, *, start: int = 0, number: int = 0) -> Iterator[ImportRow]:
    """The rows from byte `start` on; `number` rows came before it."""
    kinds = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path}: name it .csv (with a first line of field names) or .jsonl (an object in each line)")
    with open(path, "rb") as file:
        yield from kind(file, start, number)


def _json_lines(file: BinaryIO, start: int, number: int) -> Iterator[ImportRow]:
    lines = _Lines(file, start)
    for line in lines:
        if line.strip() or len(line) > LONGEST:
            number += 1
            yield ImportRow(number, lines.position, *_object(line))


def _object(line: bytes) -> tuple[dict[str, Any] | None, str]:
    if len(line) > LONGEST:
        return None, f"the line is longer than {LONGEST:,} bytes"
    try:
        found = json.loads(line, parse_float=Decimal)
    except (ValueError, RecursionError):
        return None, "not JSON"
    return (found, "") if isinstance(found, dict) else (None, "not an object")


def _csv(file: BinaryIO, start: int, number: int) -> Iterator[ImportRow]:
    names = _names(file)
    lines = _Lines(file, max(start, file.tell()))
    reader = csv.reader(_text(lines), strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError) as error:
            number += 1
            yield ImportRow(number, lines.position, None, f"not CSV: {error}")
            reader = csv.reader(_text(lines), strict=True)
            continue
        if cells:
            number += 1
            yield ImportRow(number, lines.position, *_cells(names, cells))


def _names(file: BinaryIO) -> list[str]:
    """The first line, which may begin with a byte order mark."""
    line = file.readline(LONGEST).decode("utf-8-sig", "replace")
    names = next(csv.reader(io.StringIO(line)), [])
    if not names or len(set(names)) != len(names) or "" in names:
        raise ConfigError(f"{file.name}: its first line must name each column once")
    return names


def _cells(names: list[str], cells: list[str]) -> tuple[dict[str, Any] | None, str]:
    if len(cells) != len(names):
        return None, f"{len(cells)} cells for {len(names)} columns"
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}, ""


class _Lines:
    """Lines as bytes, with the place after the last one. csv takes only what it needs, so the place is a row's end."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file = file
        self.position = start
        file.seek(start)

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(LONGEST + 1):
            self.position += len(line)
            if len(line) > LONGEST and not line.endswith(b"\n"):
                self._skip()
            yield line

    def _skip(self) -> None:
        while rest := self._file.readline(LONGEST):
            self.position += len(rest)
            if rest.endswith(b"\n"):
                return


def _text(lines: _Lines) -> Iterator[str]:
    for line in lines:
        if len(line) > LONGEST:
            raise csv.Error(f"a line is longer than {LONGEST:,} bytes")
        yield line.decode("utf-8")
