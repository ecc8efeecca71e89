"""All events: those in Redis and those in the history, read as one.

An event that is in both is shown once, as Redis has it. Redis is always read first: an event that has left it is in the
history by then.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson
from redis import Redis

from receiver.contract.event import Event
from receiver.inbox import EventQueries, keys
from receiver.inbox.history_moves import HistoryMoves
from receiver.inbox.model import read_detail, to_number
from receiver.inbox.outcomes import EventStatus
from receiver.inbox.queries.cursors import MAX_PAYLOADS, MAX_SCANNED, MAX_SCANNED_BYTES, Cursor
from receiver.inbox.queries.event_pages import (
    PAGE,
    EventPage,
    EventPages,
    WholeEvent,
    newest_of_resource,
    open_since,
)
from receiver.inbox.queries.events import EventRecord, EventSummary, read_summary
from receiver.inbox.queries.runs import EventRuns, RunQueries, event_runs
from workers.history.event_filter import EventFilter
from workers.history.past_events import LAST_TIME, HistoryDatabase, HistoryError, PastEvent, Position
from workers.operations.given_ids import LAST, NEWEST, choose
from workers.operations.resource_walk import ResourceWalk, kind_of_resource

SEARCH_SECONDS = 10.0
RESTORE_BYTES = 4 << 20
"""About the size of the bodies that are written back to Redis in one step."""
BODIES_AT_ONCE = 20
"""Past events that are read at once with their bodies, each of which may be large."""
READ_AT_ONCE = 50
"""Number of past events to be written back that are in memory at once."""
FIRST_SPAN = 3_600_000_000


@dataclass
class FoundEvents:
    """Events, the newest first."""

    events: list[EventSummary] = field(default_factory=list)
    next: Cursor | None = None
    """Where to go on. None if all events were compared."""
    looked_back_to: datetime | None = None
    """Set if the search ended before it had found enough: events accepted before this time were not compared."""
    fault: str = ""
    """Why the history cannot be read; then only Redis was."""


class AllEvents:
    def __init__(self, client: Redis, history: HistoryDatabase | None) -> None:
        self._client, self._history = client, history
        self._recent, self._moves = EventQueries(client), HistoryMoves(client)

    @property
    def in_redis(self) -> AllEvents:
        """Only those in Redis."""
        return AllEvents(self._client, None)

    def find(
        self,
        wanted: EventFilter,
        *,
        status: str | None = None,
        before: Cursor | None = None,
        limit: int = 50,
        seconds: float = SEARCH_SECONDS,
    ) -> FoundEvents:
        """The events accepted last that match, the newest first, after a cursor.

        In Redis, a search reads MAX_SCANNED events, or MAX_PAYLOADS or MAX_SCANNED_BYTES of bodies; in the history, it
        has `seconds`. Then it says how far back it looked.
        """
        history = self._history if status in (None, EventStatus.SETTLED) else None
        if status == EventStatus.OPEN:
            wanted = replace(wanted, since=max(wanted.since, open_since(self._client)))
        return _Search(self._client, history, wanted, status, limit, seconds).run(before)

    def find_id(self, which: str) -> str:
        """The id of an event, given by an id that its sender was told, by a delivery or resource id (the newest of
        them), as `last`, or by the beginning of its id. Raises NotFound, and ConfigError if several begin so."""
        if which == LAST:
            missing = "no event was accepted yet; `storehooks send --help` says how to send one"
            return choose(which, self._newest_ids(1), kind="events", missing=missing)
        named = self._named(which)
        return named or choose(which, self._newest_ids(NEWEST), kind="events", missing=_not_found(self._client, which))

    def _named(self, which: str) -> str:
        """The id of an event, given by a whole id; empty if there is none."""
        found = self._recent.find_id(which)
        if self._history is None or self._client.exists(keys.EVENT + which, keys.SAME + which):
            return found
        try:
            return which if self._history.event(which) else _newer(self._client, self._history, which, found) or found
        except HistoryError:
            if not found:
                raise
            return found

    def _newest_ids(self, limit: int) -> list[str]:
        """The ids of the newest events, the newest first."""
        found = dict(self._recent.newest_ids(limit))
        oldest = min(found.values()) if len(found) == limit else 0
        try:
            past = self._history.find(EventFilter(since=oldest), limit=limit).events if self._history else ()
        except HistoryError:
            if not found:
                raise
            past = ()
        found = {one.id: one.accepted_at for one in past} | found
        return sorted(found, key=found.__getitem__, reverse=True)[:limit]

    def of_resource(self, *, store: str, kind: str, resource_id: str, limit: int = 10) -> list[PastEvent]:
        """The newest events of a resource, such as an order, the newest first, with their bodies."""
        newest = newest_of_resource(self._client, store=store, kind=kind, resource_id=resource_id)
        walk = ResourceWalk(self._client, self._history, store, kind, resource_id)
        return list(islice(walk.begin(Position(LAST_TIME, ""), newest), limit))

    def earlier_of_resource(self, event_id: str, *, limit: int = 10) -> list[PastEvent]:
        """The events of the same resource that were accepted before an event, the newest first, with their bodies."""
        accepted = self._client.zscore(keys.INDEX, event_id)
        here = EventPages(self._client).accepted_at(int(accepted)) if accepted else None
        one = _past_event(here) if here else self._past(event_id)
        if one is None or not one.event.resource_id:
            return []
        event = one.event
        walk = ResourceWalk(self._client, self._history, event.store, kind_of_resource(event), event.resource_id)
        return list(islice(walk.before(one), limit))

    def event(self, event_id: str) -> EventRecord | None:
        """One event with its runs. Raises DamagedRecord, HistoryError."""
        return self._recent.event(event_id) or ((past := self._past(event_id)) and past.record) or None

    def as_event(self, event_id: str) -> Event | None:
        """An event as a handler gets it. None if it, or its body, was removed. Raises DamagedRecord, HistoryError."""
        if event := self._recent.as_event(event_id):
            return event
        past = self._past(event_id) if self._moves.past([event_id]) else None
        return past.event if past and past.content is not None else None

    def once_marks(self, event_id: str) -> Mapping[bytes, bytes]:
        """The marks of `ctx.once` with the scope of an event."""
        marks: Any = self._client.hgetall(keys.ONCE + event_id)
        past = self._past(event_id) if not marks and self._moves.past([event_id]) else None
        return past.once if past else marks

    def runs_of(self, event_id: str) -> EventRuns | None:
        """One event's runs. Raises DamagedRecord, HistoryError."""
        if runs := RunQueries(self._client).of_event(event_id):
            return runs
        past = self._past(event_id)
        return event_runs(event_id, past.fields) if past else None

    def runs(
        self, *, store: str | None, since: datetime | None, until: datetime | None, first: str = ""
    ) -> Iterator[EventRuns]:
        """The runs of all events in order of acceptance. Without `until`, of those that there are now.

        `first` is the time of acceptance of an event to begin with.
        """
        start = int(first or (since.timestamp() * 1e6 if since else 0))
        end = int(until.timestamp() * 1e6) if until else self.accepted_until(unknown=int(time.time() * 1e6))
        for one in self.in_order(start=start, end=end, store=store or ""):
            yield event_runs(one.id, one.fields, str(one.accepted_at))

    def in_order(
        self, *, start: int, end: int, store: str = "", content: bool = False, seconds: float = 60
    ) -> Iterator[PastEvent]:
        """The events that were accepted from one time to another (us), in order of acceptance. Each query of the
        history may take `seconds`."""
        pages = EventPages(self._client, store=store, content=content)
        previous = Position(-1, "")
        while True:
            page = pages.oldest(since=start, until=end)
            last = end if page.last is None else page.last
            past = self._ascending(EventFilter(store=store), start, last, content, seconds)
            for one in heapq.merge(map(_past_event, page.events), past, key=_place):
                if one.position != previous:
                    yield one
                previous = one.position
            if page.last is None:
                return
            start = last + 1

    def accepted_at(self, times: Sequence[int]) -> list[PastEvent]:
        """The events that were accepted at these times (us), in order, as far as they are still stored."""
        found = {one.accepted_at: _past_event(one) for one in EventPages(self._client).at(times)}
        for missing in set(times) - set(found) if self._history else ():
            found |= {one.accepted_at: one for one in self._ascending(EventFilter(), missing, missing, content=False)}
        return [found[accepted] for accepted in sorted(found)]

    def accepted_until(self, *, unknown: int = 0) -> int:
        """A time of acceptance (us) that no event exceeds and that later ones will; `unknown` if it is not stored."""
        recent: Any = self._client.zrange(keys.INDEX, -1, -1, withscores=True)
        until: Any = self._client.get(keys.ACCEPTED_UNTIL)
        return max(int(recent[0][1]) if recent else 0, to_number(until) or unknown)

    @contextmanager
    def brought_back(self, event_ids: Iterable[str]) -> Iterator[None]:
        """Bring events back, and let none of them be moved before the end, so that they can be replayed."""
        ids = list(event_ids) if self._history else []
        with self._moves.kept(ids):
            self.bring_back(ids)
            yield

    def bring_back(self, event_ids: Iterable[str]) -> None:
        """Write those of the events that are only in the history back to Redis."""
        if self._history is None:
            return
        missing = self._moves.past(list(dict.fromkeys(event_ids)))
        found: list[WholeEvent] = []
        size = 0
        for at in range(0, len(missing), READ_AT_ONCE):
            for past in self._history.events(missing[at : at + READ_AT_ONCE]):
                found.append(past.whole)
                size += len(past.content or b"")
                if size > RESTORE_BYTES:
                    self._moves.restore(found)
                    found, size = [], 0
        self._moves.restore(found)

    def _past(self, event_id: str) -> PastEvent | None:
        return self._history.event(event_id) if self._history else None

    def _ascending(
        self, wanted: EventFilter, start: int, end: int, content: bool, seconds: float = 60
    ) -> Iterator[PastEvent]:
        """Past events in order of acceptance. The databases have the newest first, so they are read in spans, each of
        which has at most some pages."""
        span, most = FIRST_SPAN, BODIES_AT_ONCE if content else 5 * PAGE
        while self._history is not None and start <= end:
            until = min(start + span, end + 1)
            within = replace(wanted, since=start, until=until)
            found = self._history.find(within, limit=most + 1, seconds=seconds)
            is_fit = len(found.events) <= most or span == 1
            if content and is_fit and not found.out_of_time:
                found = self._history.find(within, limit=most + 1, seconds=seconds, content=True)
            if found.out_of_time:
                raise HistoryError(f"the history did not answer within {seconds:g} s; try again later")
            if not is_fit:
                span //= 2
                continue
            current = EventPages(self._client, content=content).of({one.id: one.accepted_at for one in found.events})
            for one in reversed(found.events):
                yield _past_event(current[one.id]) if one.id in current else one
            start, span = until, span * 2 if len(found.events) < most * 2 // 5 else span


class _Search:
    """One search in both places."""

    def __init__(
        self,
        client: Redis,
        history: HistoryDatabase | None,
        wanted: EventFilter,
        status: str | None,
        limit: int,
        seconds: float,
    ) -> None:
        self._found = FoundEvents()
        self._pages = EventPages(client, store=wanted.store, content=bool(wanted.where))
        self._history, self._wanted, self._status, self._limit = history, wanted, status, limit
        self._deadline = time.monotonic() + seconds
        self._end: Position | None = None
        """Where the time was over: events before it were not compared."""

    def run(self, before: Cursor | None) -> FoundEvents:
        wanted, found = self._wanted, self._found
        position = Position(*before) if before else Position(LAST_TIME, "")
        if wanted.until is not None:
            position = min(position, Position(wanted.until, ""))
        entries = max(MAX_PAYLOADS if wanted.where else MAX_SCANNED, self._limit)
        size = MAX_SCANNED_BYTES
        while entries > 0 and size > 0 and self._end is None:
            page = self._pages.newest(
                before=position.accepted_at, since=wanted.since, many=min(PAGE, entries), size=size
            )
            for one in self._merged(page, position):
                found.events.append(read_summary(one.id, one.fields, one.accepted_at))
                if len(found.events) >= self._limit:
                    found.next = Cursor(*one.position)
                    return found
            if self._end is None and page.last is None:
                return found
            position = Position(page.last or 0, "")
            entries, size = entries - page.examined, size - page.size
        found.next = Cursor(*(self._end or position))
        found.looked_back_to = datetime.fromtimestamp(min(found.next.time, int(time.time() * 1e6)) / 1e6, UTC)
        return found

    def _merged(self, page: EventPage, before: Position) -> Iterator[PastEvent]:
        """The matching events of a page of Redis, and the past ones of the same time."""
        recent = [_past_event(one) for one in page.events]
        oldest = self._wanted.since if page.last is None else page.last
        past = self._past_events(before, oldest, {one.accepted_at for one in recent})
        for one in heapq.merge(filter(self._is_met, recent), past, key=_youth):
            if self._end is not None and one.position < self._end:
                return
            yield one

    def _past_events(self, before: Position, oldest: int, here: set[int]) -> Iterator[PastEvent]:
        position: Position | None = before
        while position and self._history is not None:
            left = self._deadline - time.monotonic()
            wanted = replace(self._wanted, since=oldest)
            try:
                found = self._history.find(wanted, before=position, limit=min(self._limit, PAGE), seconds=left)
            except HistoryError as error:
                self._history, self._found.fault = None, str(error)
                return
            # One that was brought back since Redis was read is in no page of Redis.
            current = self._pages.of({one.id: one.accepted_at for one in found.events if one.accepted_at not in here})
            for one in found.events:
                if one.id in current:
                    restored = _past_event(current[one.id])
                    if self._is_met(restored):
                        yield restored
                elif one.accepted_at not in here:
                    yield one
            position = found.position
            if found.out_of_time:
                self._end = position
                return

    def _is_met(self, one: PastEvent) -> bool:
        return is_met(one, self._wanted, self._status)


def is_met(one: PastEvent, wanted: EventFilter, status: str | None) -> bool:
    """Whether an event in Redis matches."""
    if status and one.fields.get(b"state", b"").decode() != status:
        return False
    return _has_run(one.fields, wanted) and wanted.is_met_by(one.event)


def _has_run(fields: Mapping[bytes, bytes], wanted: EventFilter) -> bool:
    """Whether an event has a run with this handler, result and error. Only what decides is read: there may be many."""
    if not (wanted.handler or wanted.result or wanted.error):
        return True
    handlers = [wanted.handler.encode()] if wanted.handler else [name[2:] for name in fields if name.startswith(b"r:")]
    return any(
        _contains(orjson.dumps(detail.get("result")).decode(), wanted.result)
        and _contains(str(detail.get("error") or ""), wanted.error)
        for detail in (read_detail(fields.get(b"x:" + one)) for one in handlers if one and b"r:" + one in fields)
    )


def _contains(text: str, part: str) -> bool:
    return part.lower() in text.lower()


def _past_event(one: WholeEvent) -> PastEvent:
    return PastEvent(*one)


def _place(one: PastEvent) -> Position:
    return one.position


def _youth(one: PastEvent) -> int:
    return -one.accepted_at


def _newer(client: Redis, history: HistoryDatabase, which: str, recent: str) -> str:
    """The past event that is meant, if it is newer than the one that was found in Redis."""
    found, newest = "", int(client.zscore(keys.INDEX, recent) or -1)
    for one in (EventFilter(delivery_id=which), EventFilter(resource_id=which)):
        for past in history.find(replace(one, since=newest + 1), limit=1).events:
            found, newest = past.id, past.accepted_at
    return found


def _not_found(client: Redis, which: str) -> str:
    if client.zcard(keys.INDEX) <= MAX_SCANNED:
        return f"no event {which[:64]!r}; `storehooks events` lists them"
    missing = f"no event {which[:64]!r} among the newest {MAX_SCANNED:,} in Redis; older ones are found"
    return f"{missing} by the event's id, and by `storehooks events --delivery ID`"
