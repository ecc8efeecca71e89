"""Export file: lines of JSON in compressed parts.

Each part is complete by itself, so that a file which was cut off can be continued. A part is a gzip member, and `zcat`
reads the whole file. The lines, in this order:

    {"storehooks_export": 1, ...}   what the file is; see ExportHeader
    {"counted": {...}}              the counters when the export began
    {"paused": "handler:NAME"}      before the events, so that none of its runs begins
    {"event": ID, ...}              an event with its runs, headers, body and once marks, in order of acceptance
    {"key": NAME, ...}              what plugins and receivers remember beside events
    {"counts": {...}}               what was counted beyond these events
    {"secrets": {...}}              learned signing secrets, encrypted by a passphrase
    {"end": {...}}                  how many events there are. Without it the file is not complete

A value is text, or {"base64": TEXT} if it is not UTF-8.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from receiver.contract.errors import ConfigError
from receiver.inbox.queries.event_pages import WholeEvent
from receiver.inbox.transferred_data import KeptValue

MARK = "storehooks_export"
VERSION = 1
PART_BYTES = 4 << 20
"""A part ends with the line that exceeds this size."""
_GZIP = 31
"""Tells zlib to write and read gzip members."""
_BLOCK = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
NO_EXPORT = "is no export of storehooks"


@dataclass(frozen=True)
class ExportHeader:
    """What an export is of. One that is continued has the same."""

    data: str
    """The id of the data; see receiver/inbox/known_data.py."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Of the export; see export_id."""
    store: str = ""
    topic: str = ""
    since: int = 0
    until: int = 0
    """Times of acceptance (us). The events up to `until` are exported, with those that settle meanwhile."""
    secrets: bool = False
    storehooks: str = ""
    """The version that wrote it, for people."""

    @property
    def has_all(self) -> bool:
        """Whether it has more than events: only those have a topic and a time."""
        return not self.topic and not self.is_limited

    is_limited: bool = False
    """Whether `since` or `until` was given by a person."""


class ExportEnd(NamedTuple):
    """How many events a complete file has."""

    events: int
    open: int
    failed: int


class Part(NamedTuple):
    """A complete part, and where it ends in the file."""

    end: int
    lines: list[dict[str, Any]]


def read_parts(path: Path) -> Iterator[Part]:
    """The complete parts of a file. Raises ConfigError if it is no export, or one of a newer version."""
    is_first = True
    for end, data in _members(path):
        try:
            lines = [orjson.loads(line) for line in data.splitlines()] or [{}]
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"{path} {NO_EXPORT if is_first else f'is damaged: {error}'}") from None
        if is_first:
            _require_readable(path, lines[0])
        is_first = False
        yield Part(end, lines)
    if is_first and path.stat().st_size:
        with path.open("rb") as file:
            is_gzip = file.read(2) == GZIP_MAGIC
        what = "is cut off or damaged near its beginning; export again to another file" if is_gzip else NO_EXPORT
        raise ConfigError(f"{path} {what}")


def _members(path: Path) -> Iterator[tuple[int, bytes]]:
    """The content of each complete gzip member, and where it ends. A member that was cut off or damaged ends it."""
    end, data, reader = 0, bytearray(), zlib.decompressobj(_GZIP)
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                while block:
                    data += reader.decompress(block)
                    if not reader.eof:
                        break
                    block = reader.unused_data
                    end = file.tell() - len(block)
                    yield end, bytes(data)
                    data, reader = bytearray(), zlib.decompressobj(_GZIP)
    except zlib.error:
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _require_readable(path: Path, line: Any) -> None:
    version = line.get(MARK) if isinstance(line, dict) else None
    if version is None:
        raise ConfigError(f"{path} {NO_EXPORT}")
    if not isinstance(version, int) or version > VERSION:
        raise ConfigError(
            f"{path} is an export of format {version}, and this version of storehooks reads {VERSION}; update it"
        )


def header_of(line: Mapping[str, Any]) -> ExportHeader:
    """Fields of later versions are left out."""
    return ExportHeader(**{one.name: line[one.name] for one in fields(ExportHeader) if one.name in line})


def export_id(line: Mapping[str, Any]) -> str:
    """The same for each copy of a file, also for files of versions that gave them no id."""
    return hashlib.sha256(orjson.dumps(line, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def header_line(header: ExportHeader) -> dict[str, Any]:
    return {MARK: VERSION, **asdict(header)}


class ExportWriter:
    """Appends lines to a file, a part at a time, each on disk before the next."""

    def __init__(self, path: Path, *, at: int) -> None:
        """`at`: where the complete parts of the file end; what follows is cut off."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            os.fchmod(descriptor, 0o600)  # it holds customers' data, and may have been there
            self._file = os.fdopen(descriptor, "r+b")
            self._file.truncate(at)
            self._file.seek(at)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        self._path = path
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, line: Mapping[str, Any]) -> None:
        text = orjson.dumps(line)
        self._lines.append(text)
        self._size += len(text)
        if self._size > PART_BYTES:
            self.end_part()

    def end_part(self) -> None:
        if not self._lines:
            return
        packer = zlib.compressobj(wbits=_GZIP)
        try:
            self._file.write(packer.compress(b"\n".join(self._lines) + b"\n") + packer.flush())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror}; the same command goes on") from None
        self._lines, self._size = [], 0

    def close(self) -> None:
        self._file.close()


# Lines


def event_line(one: WholeEvent) -> dict[str, Any]:
    """Raises ValueError if the headers are damaged."""
    line: dict[str, Any] = {
        "event": one.id,
        "accepted_at": one.accepted_at,
        "settled_at": one.settled_at,
        "record": _texts(one.fields),
    }
    if one.content is not None:
        headers, _, body = one.content.partition(b"\n")
        line |= {"headers": orjson.loads(headers), "body": _text(body)}
    if one.once:
        line["once"] = _texts(one.once)
    return line


def event_of(line: Mapping[str, Any]) -> WholeEvent:
    """Raises ValueError if it is damaged."""
    try:
        content = orjson.dumps(line["headers"]) + b"\n" + _bytes(line["body"]) if "body" in line else None
        record = {name.encode(): _bytes(value) for name, value in line["record"].items()}
        once = {name.encode(): _bytes(value) for name, value in line.get("once", {}).items()}
        if not record[b"store"] or not isinstance(line["event"], str):
            raise ValueError("it has no store")
        return WholeEvent(line["event"], int(line["accepted_at"]), int(line["settled_at"]), record, content, once)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from None


def value_line(one: KeptValue) -> dict[str, Any]:
    return {"key": one.key, "field": one.field, "value": _text(one.value), "kept_ms": one.kept_ms}


def value_of(line: Mapping[str, Any]) -> KeptValue:
    return KeptValue(line["key"], line["field"], _bytes(line["value"]), line["kept_ms"])


def _texts(values: Mapping[bytes, bytes]) -> dict[str, Any]:
    return {name.decode(): _text(value) for name, value in values.items()}


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else str(value).encode()


def runs_of(record: Mapping[str, Any]) -> Sequence[str]:
    """The state of each run in the record of an event."""
    return [str(value).partition(" ")[0] for name, value in record.items() if name.startswith("r:")]
