"""Events, counters, spools and declarations in the inbox, for people and for commands. Only reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal

import orjson

from receiver.contract.event import Event, delivery_key
from receiver.contract.event import event_id as id_of_event
from receiver.inbox import keys
from receiver.inbox.model import (
    FIRST_VERSION,
    Declaration,
    from_ms,
    read_declarations,
    read_detail,
    read_event,
    to_number,
    unpack,
)
from receiver.inbox.outcomes import ENDED, RunState, RunStatus, status_of
from receiver.inbox.queries.cursors import MAX_SCANNED
from receiver.inbox.queries.damage import DAMAGED, DamagedRecord, as_text, read_each, read_numbers
from receiver.inbox.queries.runs import FailedAttempt, failed_attempts
from receiver.inbox.redis.connecting import ServerUser, server_ms

COUNTED = (
    "accepted",
    "duplicates",
    "refused",
    "settled",
    "open",
    "failed",
    "conflicts",
    "altered",
    "unkeyed",
    "retried",
)
_SUMMARY = ("store", "topic", "delivery", "resource", "received", "source", "state")
_PAGE = 200
SILENT_SECONDS = 10.0
"""A receiver reports every second. One that has not for this long, and has not signed off, was killed or is cut off.
So was one whose last report is as far in the future: the server's clock was set back since."""
SpoolState = Literal["receiving", "stopped", "silent"]


@dataclass(frozen=True)
class Counters:
    """Every counter at one moment. accepted = settled + open + failed, in total and for each store."""

    total: dict[str, int]
    stores: dict[str, dict[str, int]]
    other: dict[tuple[str, str], int] = field(default_factory=dict)
    """By name and store those that are not in COUNTED, such as `repairs`, and `refused:` with each reason."""

    def as_json(self) -> dict[str, Any]:
        return {**self.total, "stores": self.stores}


@dataclass(frozen=True)
class EventName:
    """An event name as the store writes it. The empty name stands for all names above the maximum that is counted."""

    theirs: str
    seen: int
    last_at: datetime


@dataclass(frozen=True)
class Spool:
    """What a host last reported about its spool, at `at`. If it is silent since then, it may have more."""

    state: SpoolState
    count: int | None
    """None where the host could not read its file."""
    oldest: datetime | None
    at: datetime | None
    """None where the report is damaged, or of another version: what it says is not known."""
    version: str = ""
    """The version of storehooks that wrote it; empty where that is not known."""


@dataclass(frozen=True)
class EventSummary:
    id: str
    store: str
    topic: str
    delivery_id: str
    resource_id: str
    received_at: datetime
    source: str
    status: str
    """An EventStatus; other text, such as "damaged", only where the record is damaged."""
    accepted_at: int = 0
    """Its place in the order of all events (us); 0 if it was not read."""


@dataclass(frozen=True)
class RunRecord:
    """A run as people see it."""

    handler: str
    version: str | None
    status: RunStatus
    attempts: int
    result: Any
    error: str | None
    due_at: datetime | None
    reason: str | None = None
    """Why it ended without a call, or without the handler's error: skipped, echo, stale, merged, lost-worker,
    no-such-handler, no-body. Why it waits without a call: loop, own-write, gap."""
    order: OrderPlace | None = None
    """None without `order_by`."""
    ended_at: datetime | None = None
    ms: float | None = None
    """The duration of the last attempt."""
    failed_attempts: tuple[FailedAttempt, ...] = ()
    """The last ten, the newest first; those before a replay too."""
    merged: tuple[str, ...] = ()
    """The events whose runs were merged into this one."""


@dataclass(frozen=True)
class OrderPlace:
    """Where an ordered run is in its order."""

    key: str
    is_own_id: bool
    """Whether the key is the event's own id, because the event has no value where `order_by` looks for one."""
    place: int | None = None
    """1 is next. None if it is not queued."""
    waits_for: str | None = None
    """The event whose run must end first. None if an older event of the store is not routed yet."""
    is_stopped: bool = False
    """Whether that run has failed, and stops the key until it is replayed or dropped."""

    @property
    def text(self) -> str:
        behind = f"event {self.waits_for}" if self.waits_for else "an older event of the store, which is not routed yet"
        behind += ", which has failed and stops the key until it is replayed or dropped" if self.is_stopped else ""
        return f"queued behind {behind}; place {self.place} of the key {self.key}"


@dataclass(frozen=True)
class EventRecord:
    summary: EventSummary
    headers: dict[str, str]
    body: bytes = field(repr=False)
    runs: tuple[RunRecord, ...]
    reason: str | None
    signed_with: str = ""
    """The fingerprint of the secret that its signature was made with."""
    redacted: tuple[str, ...] = ()
    """The paths of its data whose values were not stored."""
    erased_at: datetime | None = None
    """When its content was erased."""


class EventQueries(ServerUser):
    def spools(self) -> dict[str, Spool]:
        """What each host last published about its spool. Times are the server's."""
        found: Any = self.client.hgetall(keys.SPOOLS)
        now = from_ms(server_ms(self.client))
        spools = {keys.host_name(host): _read_spool(text) for host, text in found.items()}
        late = {
            host: replace(one, state="silent")
            for host, one in spools.items()
            if one.state == "receiving" and abs((now - (one.at or now)).total_seconds()) > SILENT_SECONDS
        }
        return spools | late

    def declared(self) -> list[tuple[Declaration, datetime]]:
        """All declarations that are stored, each with the time it was last made, the newest first."""
        pipeline = self.client.pipeline(transaction=False)
        pipeline.hgetall(keys.DECLARATIONS)
        pipeline.hgetall(keys.DECLARED_AT)
        texts, seen = pipeline.execute()
        found = [(one, from_ms(to_number(seen.get(name)))) for name, one in read_declarations(texts).items()]
        return sorted(found, key=lambda pair: (pair[1], pair[0].handler), reverse=True)

    def counters(self) -> Counters:
        """All counters, read in one call, so that they belong to one moment. The total is the sum over all stores."""
        total = dict.fromkeys(COUNTED, 0)
        stores: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTED, 0))
        other: dict[tuple[str, str], int] = {}
        found: Any = self.client.hgetall(keys.COUNTERS)
        for field_name, number in read_numbers(self.client, keys.COUNTERS, found).items():
            name, _, store = field_name.partition("|")
            if store and name in COUNTED:
                stores[store][name] = number
                total[name] += number
            else:
                other[name, store] = number
        return Counters(total, dict(stores), other)

    def event_names(self, store: str) -> list[EventName]:
        """The event names that a store has sent, the most frequent first."""
        fields: Any = self.client.hgetall(keys.EVENT_NAMES + store)
        found = read_numbers(self.client, keys.EVENT_NAMES + store, fields)
        names = [
            EventName(name[2:], many, from_ms(found.get("l:" + name[2:], 0)))
            for name, many in found.items()
            if name.startswith("n:")
        ]
        return sorted(names, key=lambda name: (-name.seen, name.theirs))

    def events(self, *, store: str | None = None, since: datetime | None = None, limit: int = 50) -> list[EventSummary]:
        """The events accepted last, the newest first; `since` is a time of acceptance."""
        index = keys.index_of(store) if store else keys.INDEX
        return list(islice(self._newest(index, since, min(limit, _PAGE)), limit))

    def find_id(self, which: str) -> str:
        """The id of an event given by an id that its sender was told, by a delivery id that tells it from all others,
        or by another delivery or resource id (the newest, if it is among the newest events). Empty if there is none."""
        if self.client.exists(keys.EVENT + which):
            return which
        if same := self.client.get(keys.SAME + which):
            return as_text(same)
        newest = islice(self._newest(keys.INDEX, None), MAX_SCANNED)
        found = (one.id for one in newest if which in (one.delivery_id, one.resource_id))
        return next(found, "") or self._find_delivery(which)

    def _find_delivery(self, delivery_id: str) -> str:
        ids = [id_of_event(store, delivery_key(delivery_id)) for store in self.counters().stores]
        pipeline = self.client.pipeline(transaction=False)
        for one in ids:
            pipeline.zscore(keys.INDEX, one)
        found = [(at, one) for at, one in zip(pipeline.execute(), ids, strict=True) if at is not None]
        return max(found)[1] if found else ""

    def newest_ids(self, limit: int) -> list[tuple[str, int]]:
        """The ids of the newest events, each with its time of acceptance (us), the newest first."""
        found = self._page(keys.INDEX, "+inf", "-inf", limit)
        return [(as_text(event_id), int(accepted_at)) for event_id, accepted_at in found]

    def event(self, event_id: str) -> EventRecord | None:
        """One event with its runs, which are one record. Raises DamagedRecord."""
        fields, blob, accepted_at = self._read(event_id)
        if not fields:
            return None
        try:
            record = read_record(event_id, fields, blob, accepted_at, lambda handler: self._due_at(event_id, handler))
        except ValueError:
            raise DamagedRecord(event_id) from None
        return replace(record, runs=tuple(self._with_place(event_id, run) for run in record.runs))

    def seconds_stored(self, event_id: str) -> float:
        """The seconds since an event was accepted, by the server's clock."""
        now = server_ms(self.client)
        return max(0.0, now - (self.client.zscore(keys.INDEX, event_id) or now * 1000) / 1000) / 1000

    def as_event(self, event_id: str) -> Event | None:
        """An event as a handler receives it. None if it, or its body, was removed. Raises DamagedRecord."""
        fields, blob, _ = self._read(event_id)
        return read_event(event_id, fields, blob) if fields and blob else None

    def _read(self, event_id: str) -> tuple[dict[bytes, bytes], bytes | None, int]:
        pipeline = self.client.pipeline(transaction=False)
        pipeline.hgetall(keys.EVENT + event_id)
        pipeline.get(keys.BODY + event_id)
        pipeline.zscore(keys.INDEX, event_id)
        fields, blob, accepted_at = read_each(pipeline)
        if fields is None:
            raise DamagedRecord(event_id)
        return ({}, None, 0) if b"moved" in fields else (fields, blob, int(accepted_at or 0))

    def _newest(self, index: str, since: datetime | None, page: int = _PAGE) -> Iterator[EventSummary]:
        """Read a page at a time. Each begins after the last event of the one before: events that are accepted, removed
        or moved to the history meanwhile shift no others."""
        oldest = keys.index_score(since) if since else "-inf"
        newest = "+inf"
        while found := self._page(index, newest, oldest, page):
            ids = [as_text(event_id) for event_id, _ in found]
            pipeline = self.client.pipeline(transaction=False)
            for event_id in ids:
                pipeline.hmget(keys.EVENT + event_id, _SUMMARY)
            for event_id, fields in zip(ids, read_each(pipeline), strict=True):
                if fields is None:
                    yield _summary(event_id, [*[None] * 6, DAMAGED.encode()])
                elif fields[0] is not None:
                    yield _summary(event_id, fields)
            if len(ids) < page:
                return
            newest = f"({found[-1][1]:.0f}"

    def _page(self, index: str, newest: str, oldest: str, many: int) -> list[tuple[bytes, float]]:
        found: Any = self.client.zrange(
            index, newest, oldest, desc=True, byscore=True, offset=0, num=many, withscores=True
        )
        return list(found)

    def _with_place(self, event_id: str, run: RunRecord) -> RunRecord:
        """A waiting run with its place among those that are queued, if it is."""
        if run.order is None or run.status is not RunStatus.WAITING:
            return run
        key = run.order.key
        place: Any = self.client.zrank(f"{keys.QUEUED}{run.handler}:{key}", keys.run_item(event_id, run.handler))
        if place is None:
            return run
        active: Any = self.client.hget(keys.ORDER + run.handler, key)
        waits_for = as_text(active.split()[0]) if active else None
        state: Any = self.client.hget(keys.EVENT + waits_for, f"r:{run.handler}") if waits_for else None
        stopped = (state or b"").startswith(RunState.FAILED.encode())
        return replace(run, order=replace(run.order, place=place + 1, waits_for=waits_for, is_stopped=stopped))

    def _due_at(self, event_id: str, handler: str) -> datetime | None:
        due = self.client.zscore(keys.LATER, keys.run_item(event_id, handler))
        return from_ms(due) if due else None


def read_summary(event_id: str, fields: Mapping[bytes, bytes], accepted_at: int = 0) -> EventSummary:
    """An event from its record, without its runs. A damaged record is read as far as possible."""
    return _summary(event_id, [fields.get(name.encode()) for name in _SUMMARY], accepted_at)


def read_record(
    event_id: str,
    fields: Mapping[bytes, bytes],
    blob: bytes | None,
    accepted_at: int,
    due_at: Callable[[str], datetime | None] = lambda _: None,
) -> EventRecord:
    """`due_at` is asked when a handler's run begins that waits until later. Raises ValueError for a damaged record."""
    headers, body = unpack(blob)
    reason = fields.get(b"reason")
    runs, secret = read_runs(event_id, fields, due_at), fields.get(b"secret", b"").decode()
    summary = read_summary(event_id, fields, accepted_at)
    redacted = read_event(event_id, fields, blob).redacted
    erased = fields.get(b"erased")
    erased_at = from_ms(to_number(erased.split()[0])) if erased else None
    return EventRecord(summary, headers, body, runs, reason.decode() if reason else None, secret, redacted, erased_at)


def read_runs(
    event_id: str,
    fields: Mapping[bytes, bytes],
    due_at: Callable[[str], datetime | None] = lambda _: None,
) -> tuple[RunRecord, ...]:
    """The runs of an event from its record, by handler. Raises ValueError for a damaged record."""
    handlers = sorted(name[2:].decode() for name in fields if name.startswith(b"r:") and name != b"r:")
    return tuple(_run(event_id, handler, fields, due_at) for handler in handlers)


_MERGED_IN = (RunState.LEASED, RunState.DONE, RunState.DROPPED)
"""In other states a run has not accounted for the others; see lua/shared/merge.lua."""


def _run(
    event_id: str, handler: str, fields: Mapping[bytes, bytes], due_at: Callable[[str], datetime | None]
) -> RunRecord:
    name = handler.encode()
    state, attempts, _, _, ended, *_ = [*fields[b"r:" + name].decode().split(" "), "", "", ""]
    detail, key = read_detail(fields.get(b"x:" + name)), fields.get(b"k:" + name, b"").decode()[2:]
    return RunRecord(
        handler=handler,
        version=detail.get("version"),
        status=status_of(state),
        attempts=int(attempts),
        result=detail.get("result"),
        error=detail.get("error"),
        due_at=due_at(handler) if state == RunState.LATER else None,
        reason=detail.get("reason"),
        order=OrderPlace(key, key.endswith(f":!{event_id}")) if key else None,
        ended_at=from_ms(to_number(ended)) if status_of(state) in ENDED and ended else None,
        ms=detail.get("ms"),
        failed_attempts=tuple(failed_attempts(fields.get(b"a:" + name, b""))),
        merged=tuple(fields.get(b"m:" + name, b"").decode().split()) if state in _MERGED_IN else (),
    )


def _read_spool(text: bytes) -> Spool:
    """A report that cannot be read is that of a silent host: one entry must not hide the others."""
    try:
        report = orjson.loads(text)
        match report:
            case {
                "state": "receiving" | "stopped" as state,
                "count": int() | None as count,
                "oldest": int() | float() as oldest,
                "at": int() | float() as at,
            }:
                since = datetime.fromtimestamp(oldest, UTC) if oldest else None
                version = str(report.get("version", FIRST_VERSION))
                return Spool(state, count, since, datetime.fromtimestamp(at, UTC), version)
    except (ValueError, OverflowError, OSError):
        pass
    return Spool("silent", None, None, None)


def _summary(event_id: str, fields: list[bytes | None], accepted_at: int = 0) -> EventSummary:
    texts = ((value or b"").decode("utf-8", "replace") for value in fields)
    store, topic, delivery, resource, received, source, state = texts
    received_at = from_ms(to_number(received))
    return EventSummary(event_id, store, topic, delivery, resource, received_at, source, state, accepted_at)
