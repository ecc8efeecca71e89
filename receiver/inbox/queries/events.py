"""Ledger: reading back what the inbox holds, for people and for scripts. It changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson
from redis import Redis

from receiver.contract.event import Event
from receiver.contract.topics import matches
from receiver.inbox import keys
from receiver.inbox.model import Declaration, from_ms, read_declaration, read_event, unpack
from receiver.inbox.outcomes import RunState, RunStatus, status_of

COUNTED = ("accepted", "duplicates", "refused", "settled", "open", "failed", "spooled", "conflicts")
_SUMMARY = ("store", "topic", "delivery", "resource", "received", "source", "state")
_PAGE = 200
_SEARCHED = 2_000
SILENT_AFTER = 10.0


@dataclass(frozen=True)
class Counters:
    """Every counter at one moment. accepted = settled + open + failed, in all and for each store."""

    total: dict[str, int]
    stores: dict[str, dict[str, int]]

    def as_json(self) -> dict[str, Any]:
        return {**self.total, "stores": self.stores}


@dataclass(frozen=True)
class SeenName:
    """An event name as a store writes it; the empty one stands for all beyond the number that is kept."""

    theirs: str
    seen: int
    last_at: datetime


@dataclass(frozen=True)
class Spool:
    """What waits on one host, as of `at`; a host that has been silent since may hold more, or nothing."""

    count: int
    oldest: float
    at: float

    def silent(self, now: float) -> bool:
        return now - self.at > SILENT_AFTER


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
    """An EventStatus; other text only where the record is damaged."""


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
    """Why it ended without a call, or as a failure of nobody's code: skipped, lost-worker, no-such-handler."""


@dataclass(frozen=True)
class EventRecord:
    summary: EventSummary
    headers: dict[str, str]
    body: bytes = field(repr=False)
    runs: tuple[RunRecord, ...]
    reason: str | None


class EventQueries:
    def __init__(self, client: Redis) -> None:
        self.client = client

    def spools(self) -> dict[str, Spool]:
        """What each host last said of its spool."""
        found: Any = self.client.hgetall(keys.SPOOLS)
        return {host.decode(): Spool(**orjson.loads(text)) for host, text in found.items()}

    def declared(self) -> list[tuple[Declaration, datetime]]:
        """Everything that workers have ever declared, each with when that was last; the newest first."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.hgetall(keys.DECLARATIONS)
        pipeline.hgetall(keys.DECLARED_AT)
        texts, seen = pipeline.execute()
        found = [(read_declaration(text), from_ms(seen.get(name, b"0"))) for name, text in texts.items()]
        return sorted(found, key=lambda pair: (pair[1], pair[0].handler), reverse=True)

    def counters(self) -> Counters:
        """All counters in one call, so that they are of one moment. Each is kept by store; the total is their sum."""
        total = dict.fromkeys(COUNTED, 0)
        stores: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTED, 0))
        for field_name, value in self.client.hgetall(keys.COUNTERS).items():
            name, _, store = _decoded(field_name).partition("|")
            if store and name in COUNTED:
                stores[store][name] = int(value)
                total[name] += int(value)
        return Counters(total, dict(stores))

    def busy_limits(self) -> dict[str, datetime]:
        """The limits, or h:HANDLER, that somebody said Busy of, and until when."""
        found: Any = self.client.hgetall(keys.BUSY)
        now: Any = self.client.time()
        until = {_decoded(name): int(ms) for name, ms in found.items()}
        return {name: from_ms(str(ms)) for name, ms in until.items() if ms > now[0] * 1000}

    def slots_taken(self, limit: str) -> int:
        return int(self.client.hlen(keys.SLOTS + limit))

    def names(self, store: str) -> list[SeenName]:
        """The event names a store has really sent, the most frequent first."""
        found = {_decoded(name): int(value) for name, value in self.client.hgetall(keys.EVENT_NAMES + store).items()}
        names = [
            SeenName(name[2:], many, from_ms(str(found.get("l:" + name[2:], 0))))
            for name, many in found.items()
            if name.startswith("n:")
        ]
        return sorted(names, key=lambda name: (-name.seen, name.theirs))

    def events(
        self,
        *,
        store: str | None = None,
        topic: str | None = None,
        status: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
    ) -> list[EventSummary]:
        """The newest events that fit, newest first."""
        found: list[EventSummary] = []
        page = _PAGE if topic or status else min(limit, _PAGE)  # nothing is read that is not shown
        for summary in self._newest(keys.index_of(store) if store else keys.INDEX, since, page):
            if topic and not matches(topic, summary.topic):
                continue
            if status and summary.status != status:
                continue
            found.append(summary)
            if len(found) >= limit:
                break
        return found

    def find(self, which: str) -> str:
        """The id of the event that is meant: by its id, `last`, or the newest of a delivery or a resource.

        Only the newest events are searched; what is not found is given back.
        """
        if self.client.exists(keys.EVENT + which):
            return which
        for event in islice(self._newest(keys.INDEX, None), _SEARCHED):
            if which in ("last", event.delivery_id, event.resource_id):
                return event.id
        return which

    def event(self, event_id: str) -> EventRecord | None:
        """One event with its runs, read in one moment."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.hgetall(keys.EVENT + event_id)
        pipeline.get(keys.BODY + event_id)
        fields, blob = pipeline.execute()
        if not fields:
            return None
        named = {name.decode(): value for name, value in fields.items()}
        headers, body = unpack(blob)
        handlers = sorted(name[2:] for name in named if name.startswith("r:") and name != "r:")
        summary = _summary(event_id, [named.get(name) for name in _SUMMARY])
        runs = tuple(self._run(event_id, handler, named) for handler in handlers)
        reason = named.get("reason")
        return EventRecord(summary, headers, body, runs, reason.decode() if reason else None)

    def as_event(self, event_id: str) -> Event | None:
        """An event as a handler would be given it; None if it, or its body, is gone."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.hgetall(keys.EVENT + event_id)
        pipeline.get(keys.BODY + event_id)
        fields, blob = pipeline.execute()
        return read_event(event_id, fields, blob) if fields and blob else None

    def _newest(self, index: str, since: datetime | None, page: int = _PAGE) -> Iterator[EventSummary]:
        """A page at a time. What comes meanwhile is newer than the first and left out: it would push the others on, and
        some would be told twice."""
        oldest: float | str = since.timestamp() * 1000 if since else "-inf"
        newest: float | str = "+inf"
        start = 0
        while found := self._page(index, newest, oldest, start, page):
            newest = found[0][1] if start == 0 else newest
            ids = [event_id for event_id, _ in found]
            pipeline = self.client.pipeline(transaction=False)
            for event_id in ids:
                pipeline.hmget(keys.EVENT + _decoded(event_id), _SUMMARY)
            for event_id, fields in zip(ids, pipeline.execute(), strict=True):
                if fields[0] is not None:
                    yield _summary(_decoded(event_id), fields)
            if len(ids) < page:
                return
            start += len(ids)

    def _page(
        self, index: str, newest: float | str, oldest: float | str, start: int, many: int
    ) -> list[tuple[bytes, float]]:
        found: Any = self.client.zrange(
            index, newest, oldest, desc=True, byscore=True, offset=start, num=many, withscores=True
        )
        return list(found)

    def _run(self, event_id: str, handler: str, fields: dict[str, bytes]) -> RunRecord:
        state, attempts, *_ = fields[f"r:{handler}"].decode().split(" ")
        detail = orjson.loads(fields.get(f"x:{handler}", b"{}"))
        due = self.client.zscore(keys.LATER, keys.run_item(event_id, handler)) if state == RunState.LATER else None
        return RunRecord(
            handler=handler,
            version=detail.get("version"),
            status=status_of(state),
            attempts=int(attempts),
            result=detail.get("result"),
            error=detail.get("error"),
            due_at=datetime.fromtimestamp(due / 1000, UTC) if due else None,
            reason=detail.get("reason"),
        )


def _decoded(value: Any) -> str:
    """redis-py types an answer as bytes or text; ours are bytes, because bodies are."""
    return bytes(value).decode()


def _summary(event_id: str, fields: list[bytes | None]) -> EventSummary:
    store, topic, delivery, resource, received, source, state = ((value or b"").decode() for value in fields)
    return EventSummary(event_id, store, topic, delivery, resource, from_ms(received or "0"), source, state)
