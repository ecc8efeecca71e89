"""Records: what the inbox gives and takes, and how events are read from what the server keeps. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from receiver.contract.event import Event
from receiver.inbox import keys
from receiver.inbox.redis.raw_connection import Argument

DECLARATION_MS = 15 * 60 * 1000
"""So long after a worker last named a handler, events are routed to it."""
EVENT_FIELDS = ("store", "topic", "delivery", "resource", "received", "occurred", "source", "data_path")
_FIELD_NAMES = tuple(name.encode() for name in EVENT_FIELDS)

Wanted = tuple[str, str, bool | float]
"""A handler that is to have a run, its queue, and how: leased to us (True), left ready (False), or due so many seconds
after the event's arrival."""


@dataclass(frozen=True)
class Declaration:
    """What a worker says of one of its handlers, so that any worker can route to it."""

    handler: str
    version: str
    topics: tuple[str, ...]
    stores: tuple[str, ...]
    queue: str = keys.DEFAULT_QUEUE
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Declarations:
    """The union of what all workers have declared lately, and its version."""

    version: str
    handlers: tuple[Declaration, ...]


class StoredEvent:
    """An event as the server keeps it. It is read when somebody wants it: the worker only passes it on."""

    __slots__ = ("_event", "blob", "id", "values")

    def __init__(self, event_id: str, values: Sequence[bytes | None], blob: bytes | None) -> None:
        self.id = event_id
        self.values = values
        """In the order of EVENT_FIELDS."""
        self.blob = blob
        self._event: Event | None = None

    @property
    def store(self) -> str:
        return (self.values[0] or b"").decode("utf-8", "replace")

    @property
    def topic(self) -> str:
        return (self.values[1] or b"").decode("utf-8", "replace")

    @property
    def event(self) -> Event:
        if self._event is None:
            fields = {name: value or b"" for name, value in zip(_FIELD_NAMES, self.values, strict=True)}
            self._event = read_event(self.id, fields, self.blob)
        return self._event


@dataclass(frozen=True)
class Run:
    """One event for one handler, leased to us. With the handler "" it is an event to be routed."""

    item: str
    handler: str
    token: str
    attempts: int
    losses: int
    kept: StoredEvent
    replays: int = 0

    @property
    def event(self) -> Event:
        return self.kept.event


@dataclass(frozen=True)
class Limit:
    """How many runs may be under way at once, and how many may begin in a second; 0 is any number."""

    name: str
    concurrency: int = 0
    rate: float = 0.0

    @property
    def spacing_ms(self) -> float:
        """Time between two beginnings. A little more than the rate asks for: runs reach the other side unevenly."""
        return 1000 / self.rate * 1.05 if self.rate else 0

    @property
    def burst(self) -> int:
        return max(1, int(self.rate * 0.05))


NO_LIMIT = Limit("")


@dataclass(frozen=True)
class Routes:
    """What a worker knows of routing: who wants the events of a store and topic, by which declarations."""

    version: str = ""
    wanted: Mapping[tuple[str, str], Sequence[Wanted]] = field(default_factory=dict)
    """By (store, topic)."""

    def arguments(self) -> Iterator[Argument]:
        for (store, topic), handlers in self.wanted.items():
            yield from (store, topic, len(handlers))
            for name, queue, how in handlers:
                yield from (name, queue, how_text(how))


NO_ROUTES = Routes()


@dataclass(frozen=True)
class Claim:
    version: str
    runs: tuple[Run, ...]
    again_in: float = 0.0
    """Seconds until a limit lets more work begin; 0 when none keeps any back."""


def how_text(how: bool | float) -> str:
    return str(int(how)) if isinstance(how, bool) else f">{int(how * 1000)}"


def pack(event: Event) -> bytes:
    """Headers and body as they are kept: one line of JSON, then the raw bytes."""
    return orjson.dumps(dict(event.headers)) + b"\n" + event.body


def unpack(blob: bytes | None) -> tuple[dict[str, str], bytes]:
    """The reverse; empty where retention has removed the body."""
    line, _, body = (blob or b"{}\n").partition(b"\n")
    try:
        return orjson.loads(line), body
    except orjson.JSONDecodeError:
        return {}, blob or b""


def from_ms(text: bytes | str) -> datetime:
    return datetime.fromtimestamp(int(text) / 1000, UTC)


def read_event(event_id: str, fields: Mapping[bytes, bytes], blob: bytes | None) -> Event:
    """An event from its record and its body as they are kept. A spoiled record is read as far as it goes."""
    headers, body = unpack(blob)
    text = {name: fields.get(name.encode(), b"").decode("utf-8", "replace") for name in EVENT_FIELDS}
    return Event(
        id=event_id,
        store=text["store"],
        topic=text["topic"],
        received_at=from_ms(text["received"] if text["received"].isdecimal() else "0"),
        body=body,
        headers=headers,
        delivery_id=text["delivery"],
        resource_id=text["resource"],
        occurred_at=_moment(text["occurred"]),
        source=text["source"],
        data_path=text["data_path"],
    )


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def read_declaration(text: bytes) -> Declaration:
    fields = orjson.loads(text)
    return Declaration(
        handler=fields["handler"],
        version=fields["version"],
        topics=tuple(fields["topics"]),
        stores=tuple(fields["stores"]),
        queue=fields["queue"],
        details=fields["details"],
    )
