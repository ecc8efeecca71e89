"""The values that the inbox takes and returns, and how events are read from their records. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson

from receiver.contract.event import Event, build, follow
from receiver.inbox import keys
from receiver.inbox.redis.raw_connection import Argument

DECLARATION_MS = 15 * 60 * 1000
"""Events are routed to a handler for this long after a worker last declared it."""
WORKER_SILENT_MS = 15 * 1000
"""Workers declare their handlers every 5 s. One that is silent for this long has ended, if another has begun at its
place: with the same config on the same host. Then what only the silent one wanted ends."""
UNDECLARED_MS = 15 * 1000
"""For this long after the first declaration at a server, some handlers may not be declared yet: workers declare theirs
every 5 s. Until then an event that no handler wants is not settled."""
PLUGIN_FAULT_SECONDS = 20
"""A worker that cannot load a plugin repeats that every few seconds. It no longer counts this long after the last."""
FIRST_VERSION = "0.1.0"
"""The version of processes that do not report theirs."""
EVENT_FIELDS = ("store", "topic", "delivery", "resource", "received", "occurred", "source", "data_path")
_FIELD_NAMES = tuple(name.encode() for name in EVENT_FIELDS)

DATA_PATH = "data."
"""How a path into the data begins, in `order_by`."""

PlannedRun = tuple[str, str, bool | float] | tuple[str, str, bool | float, str]
"""A handler that gets a run of an event, its queue, and when the run begins: leased to the caller (True), left ready
(False), or due this number of seconds after the event's arrival. An ordered run also has its order; see `order_for`."""


@dataclass(frozen=True)
class Declaration:
    """A worker's declaration of one of its handlers, by which any worker can route to it."""

    handler: str
    version: str
    topics: tuple[str, ...]
    stores: tuple[str, ...]
    queue: str = keys.DEFAULT_QUEUE
    details: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Declarations:
    """The union of the declarations of all workers, and its version."""

    version: str = "0"
    handlers: tuple[Declaration, ...] = ()


NOTHING_DECLARED = Declarations()


class StoredEvent:
    """An event as the server stores it. It is decoded on first use, because the worker only passes it on."""

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
            self._event = _event_of(self.id, self.values, self.blob)
        return self._event


@dataclass(slots=True)  # not frozen: that would take three times as long to make
class Run:
    """One event for one handler, leased to the caller. With the handler "" it is an event to be routed."""

    item: str
    handler: str
    token: str
    attempts: int
    losses: int
    stored: StoredEvent
    replays: int = 0
    order_key: str = ""
    """The key of an ordered run: no two runs of its handler with this key may run at once. Empty if it has none."""
    fence: int = 0
    """A number that is larger with each lease of the key."""
    stops_key: bool = False
    """Whether its failure stops the key."""
    merged: tuple[str, ...] = ()
    """The events whose runs are merged into this one."""

    @property
    def event(self) -> Event:
        return self.stored.event


@dataclass(frozen=True)
class Limit:
    """The maximum number of concurrent runs, and of runs that begin in a second; 0 is no maximum."""

    name: str
    concurrency: int = 0
    rate: float = 0.0

    @property
    def spacing_ms(self) -> float:
        """Time between two starts. A little more than the rate requires, because runs reach the target unevenly."""
        return 1000 / self.rate * 1.05 if self.rate else 0

    @property
    def burst(self) -> int:
        return max(1, int(self.rate * 0.05))


NO_LIMIT = Limit("")


@dataclass(frozen=True)
class Routes:
    """The routes that a worker knows: which handlers want the events of a store and topic, by which declarations."""

    version: str = ""
    wanted: Mapping[tuple[str, str], Sequence[PlannedRun]] = field(default_factory=dict)
    """By (store, topic)."""

    def arguments(self) -> Iterator[Argument]:
        for (store, topic), handlers in self.wanted.items():
            yield from (store, topic, len(handlers))
            for one in handlers:
                yield from planned_parts(one)


NO_ROUTES = Routes()


@dataclass(frozen=True)
class Claim:
    version: str
    runs: tuple[Run, ...]
    retry_in: float = 0.0
    """Seconds until a limit allows more runs; 0 if no limit holds any back."""


def order_of(declared: Declaration) -> str:
    """The order of a handler's runs: "c" (continue), "s" (stop) or "m" (merge), and what the key is. Empty without."""
    if declared.details.get("coalesce"):
        return "m resource"
    by = declared.details.get("order_by")
    return f"{declared.details['on_failure'][0]} {by}" if by else ""


def needs_data(order: str) -> bool:
    """Whether the key is a value in the event's data. The scripts cannot read that."""
    return order[2:].startswith(DATA_PATH)


def order_for(order: str, event: Event) -> str:
    """The order as the scripts read it, with the value of its path; "!" stands for a path that leads nowhere."""
    if not needs_data(order):
        return order
    value = follow(event.data, order[2 + len(DATA_PATH) :])
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{order[0]} ={text}" if isinstance(value, str | int | float | Decimal) and text else f"{order[0]} !"


def order_in(text: str) -> tuple[str, int, bool, tuple[str, ...]] | tuple[()]:
    """The last fields of a leased run that is ordered: its key, its fence, whether its failure stops the key, and what
    is merged into it. `text` is its order as the scripts return it."""
    if not text:
        return ()
    fence, policy, key = text.split(" ", 2)
    policy, _, merged = policy.partition(":")
    return key, int(fence), policy == "s", tuple(merged.split(",")) if merged else ()


def run_of_event(stored: StoredEvent, leased: str, token: str) -> Run:
    """The run of an event that was routed and leased in one step. `leased` is its handler, a space and its order."""
    handler, _, order = leased.partition(" ")
    return Run(keys.run_item(stored.id, handler), handler, token, 0, 0, stored, 0, *order_in(order))


def planned_parts(planned: PlannedRun) -> tuple[Argument, ...]:
    """A planned run as arguments of the scripts."""
    name, queue, start, *order = planned
    begins = str(int(start)) if isinstance(start, bool) else f">{int(start * 1000)}"
    return name, queue, begins, *(order or ("",))


def pack(event: Event) -> bytes:
    """Headers and body as they are stored: one line of JSON, then the raw bytes."""
    return orjson.dumps(dict(event.headers)) + b"\n" + event.body


def unpack(blob: bytes | None) -> tuple[dict[str, str], bytes]:
    """The reverse. Empty if the body was removed by age."""
    line, _, body = (blob or b"{}\n").partition(b"\n")
    try:
        return orjson.loads(line), body
    except orjson.JSONDecodeError:
        return {}, blob or b""


def resource_digest(store: str, topic: str, resource_id: str) -> str:
    """By which the newest event of a resource is found; the same as in lua/shared/resources.lua."""
    text = f"{store}|{topic.partition('.')[0]}|{resource_id}"
    return hashlib.sha1(text.encode(errors="surrogatepass"), usedforsecurity=False).hexdigest()[:12]


def from_ms(ms: float) -> datetime:
    """A time. A number that is none, because it is damaged, is long ago."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, UTC)


def to_number(text: bytes | str | None) -> int:
    """A whole number as it is stored. One that is missing or damaged is 0."""
    try:
        return int(text or 0)
    except ValueError:
        return 0


def read_detail(text: bytes | str | None) -> dict[str, Any]:
    """The result of a run's last attempt. One that is damaged is empty."""
    try:
        found = orjson.loads(text or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def read_event(event_id: str, fields: Mapping[bytes, bytes], blob: bytes | None) -> Event:
    """An event from its stored record and body. A damaged record is read as far as possible."""
    return _event_of(event_id, [fields.get(name) for name in _FIELD_NAMES], blob)


def _event_of(event_id: str, values: Sequence[bytes | None], blob: bytes | None) -> Event:
    headers, body = unpack(blob)
    store, topic, delivery, resource, received, occurred, source, data_path = [
        value.decode("utf-8", "replace") if value else "" for value in values
    ]
    fields = {
        "id": event_id,
        "store": store,
        "topic": topic,
        "received_at": from_ms(to_number(received)),
        "body": body,
        "headers": headers,
        "delivery_id": delivery,
        "resource_id": resource,
        "occurred_at": _moment(occurred),
        "source": source,
        "data_path": data_path,
        "merged": (),
        "record_map": None,
    }
    return build(Event, fields)


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """The fields of a hash, as a script returns them."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def read_declarations(texts: Mapping[bytes, bytes]) -> dict[bytes, Declaration]:
    """Declarations by their names. A damaged one is left out."""
    found: dict[bytes, Declaration] = {}
    for name, text in texts.items():
        with suppress(ValueError, KeyError, TypeError):
            found[name] = read_declaration(orjson.loads(text))
    return found


def read_declaration(fields: Mapping[str, Any]) -> Declaration:
    return Declaration(
        handler=fields["handler"],
        version=fields["version"],
        topics=tuple(fields["topics"]),
        stores=tuple(fields["stores"]),
        queue=fields["queue"],
        details=fields["details"],
    )
