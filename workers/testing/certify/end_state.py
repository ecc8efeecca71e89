"""The end state of a scenario as comparable lines, without timestamps and delivery ids."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from redis import Redis

from receiver.inbox.keys import STATE

Lines = Counter[str]

_VOLATILE = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b1[6-9]\d{8}(\d{3})?(\.\d+)?\b"), "<time>"),
    (re.compile(r"\bmsg_\w+"), "<delivery>"),
    (re.compile(r"\b[a-z2-7]{26}\b"), "<event>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<key>"),
)
_SHOWN = 160


def end_state(
    records: Mapping[str, list[dict[str, Any]]], before: Mapping[str, list[dict[str, Any]]], files: Path, client: Redis
) -> Lines:
    """The store's records, the files and `ctx.state` as lines. The order of lines does not matter."""
    lines = Counter(_store_lines(records, before))
    lines.update(_file_lines(files))
    lines.update(_state_lines(client))
    masked: Lines = Counter()
    for line, count in lines.items():
        masked[_mask_volatile(line)] += count
    return masked


def differences(after: Lines, clean: Lines) -> list[str]:
    """Surplus lines, marked +, and missing lines, marked -."""
    return [*_marked("+", after - clean), *_marked("-", clean - after)]


def repeats(after: Lines, clean: Lines) -> list[str]:
    """Lines of the clean run that occur more often than there."""
    return differences(Counter({line: count for line, count in after.items() if line in clean}) | clean, clean)


def _marked(mark: str, lines: Lines) -> list[str]:
    times = {line: f"   ({count} times)" if count > 1 else "" for line, count in lines.items()}
    return sorted(f"{mark} {line[:_SHOWN]}{suffix}" for line, suffix in times.items())


def _mask_volatile(line: str) -> str:
    for pattern, placeholder in _VOLATILE:
        line = pattern.sub(placeholder, line)
    return line


def _store_lines(
    records: Mapping[str, list[dict[str, Any]]], before: Mapping[str, list[dict[str, Any]]]
) -> Iterator[str]:
    """Changed records with their ids, and new records without: their ids depend on the order of creation."""
    for kind, current in records.items():
        known = {record["id"]: record for record in before.get(kind, [])}
        for record in current:
            if record["id"] not in known:
                yield f"store: a new {kind} {_json({name: value for name, value in record.items() if name != 'id'})}"
            elif record != known[record["id"]]:
                yield f"store: {kind} {record['id']} is {_json(record)}"
        for deleted in known.keys() - {record["id"] for record in current}:
            yield f"store: {kind} {deleted} is deleted"


def _file_lines(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.endswith(("-wal", "-shm", "-journal", ".pyc")):
            continue
        name, content = path.relative_to(folder), path.read_bytes()
        if content.startswith(b"SQLite format 3\0"):
            with sqlite3.connect(path) as database:
                yield from (f"{name}: {line}" for line in database.iterdump() if line.startswith("INSERT"))
            continue
        try:
            yield from (f"{name}: {line}" for line in content.decode().splitlines() if line.strip())
        except UnicodeDecodeError:
            yield f"{name}: {hashlib.sha256(content).hexdigest()[:12]}"


def _state_lines(client: Redis) -> Iterator[str]:
    for key in client.scan_iter(f"{STATE}*"):
        values: Any = client.hgetall(key)
        for name, value in values.items():
            yield f"ctx.state: {name.decode()} = {value.decode()}"


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
