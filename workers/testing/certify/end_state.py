"""Observe: what is left at the end of a run, as lines that can be compared; times and delivery ids left out."""

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
    """The store's records, the files, and `ctx.state`, each as lines; their order does not count."""
    found = Counter(_of_the_store(records, before))
    found.update(_of_files(files))
    found.update(_of_the_state(client))
    merged: Lines = Counter()
    for line, many in found.items():
        merged[_steady(line)] += many
    return merged


def differences(after: Lines, clean: Lines) -> list[str]:
    """What is there too often, and what is missing, as lines for people."""
    more = [f"+ {line[:_SHOWN]}" + (f"   ({many} times)" if many > 1 else "") for line, many in (after - clean).items()]
    less = [f"- {line[:_SHOWN]}" + (f"   ({many} times)" if many > 1 else "") for line, many in (clean - after).items()]
    return [*sorted(more), *sorted(less)]


def repeats(after: Lines, clean: Lines) -> list[str]:
    """What is there more often than it should be, of what should be there."""
    return differences(Counter({line: many for line, many in after.items() if line in clean}) | clean, clean)


def _steady(line: str) -> str:
    for pattern, word in _VOLATILE:
        line = pattern.sub(word, line)
    return line


def _of_the_store(
    records: Mapping[str, list[dict[str, Any]]], before: Mapping[str, list[dict[str, Any]]]
) -> Iterator[str]:
    """What has changed, by id; what is new, without the id it happened to get."""
    for kind, many in records.items():
        known = {one["id"]: one for one in before.get(kind, [])}
        for one in many:
            if one["id"] not in known:
                yield f"store: a new {kind} {_json({name: value for name, value in one.items() if name != 'id'})}"
            elif one != known[one["id"]]:
                yield f"store: {kind} {one['id']} is {_json(one)}"
        for gone in known.keys() - {one["id"] for one in many}:
            yield f"store: {kind} {gone} is gone"


def _of_files(folder: Path) -> Iterator[str]:
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


def _of_the_state(client: Redis) -> Iterator[str]:
    for key in client.scan_iter(f"{STATE}*"):
        values: Any = client.hgetall(key)
        for name, value in values.items():
            yield f"ctx.state: {name.decode()} = {value.decode()}"


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
