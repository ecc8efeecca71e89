"""Arrivals: what was accepted, failed or refused since the last look. Each one once, in the order in which it came."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from receiver.contract.errors import ConfigError
from receiver.inbox import FailureQueries
from receiver.inbox.outcomes import EventStatus
from receiver.inbox.queries.cursors import MAX_SCANNED, MAX_SCANNED_BYTES
from receiver.inbox.queries.events import EventSummary, read_summary
from receiver.inbox.queries.failures import Failure, FailurePlace
from receiver.inbox.redis.connecting import server_ms
from receiver.spool import Refusal, open_existing_refusals
from workers.history.event_filter import EventFilter
from workers.history.past_events import LAST_TIME, HistoryError, PastEvent
from workers.operations.all_events import SEARCH_SECONDS, AllEvents, FoundEvents, is_met

PAGE = 1_000
SECONDS = 60.0
OVERLAP_MS = 2_000
"""Failures of this time before the last look are read again: one script may have ended after another, with its time."""

_PLACE = re.compile(r"\d{1,18}(-[0-9a-f]{1,14})*(-x)?", re.ASCII)
_NOT_ALL = "-x"


class TailPlace(NamedTuple):
    """Where a tail of events goes on."""

    cursor: int
    """The events accepted until this time (us) were looked at,"""
    open: tuple[int, ...] = ()
    """but those accepted at these times were open and may match later."""
    looks_at_all: bool = True
    """False if more were open, which are left out."""

    def __str__(self) -> str:
        times = "-".join((str(self.cursor), *(f"{self.cursor - one:x}" for one in self.open)))
        return times if self.looks_at_all else times + _NOT_ALL


def parse_place(text: str) -> TailPlace:
    """A place as `str` writes it. Raises ConfigError for any other text."""
    if not _PLACE.fullmatch(text):
        raise ConfigError(f"{text[:64]!r} is not a place in a tail of events; begin again without it")
    cursor, *ages = text.removesuffix(_NOT_ALL).split("-")
    return TailPlace(int(cursor), tuple(int(cursor) - int(one, 16) for one in ages), not text.endswith(_NOT_ALL))


class EventArrivals:
    """Events in order of acceptance. Each has a time of acceptance of its own, later than those of earlier ones. One
    that waited in a spool is accepted when it is drained."""

    def __init__(
        self,
        events: AllEvents,
        *,
        store: str = "",
        content: bool = False,
        cursor: int | None = None,
        seconds: float = SECONDS,
    ) -> None:
        """One look ends soon after `seconds`, and the next one goes on."""
        self._events, self._store, self._content, self._seconds = events, store, content, seconds
        self.cursor = events.accepted_until() if cursor is None else cursor
        """The events up to this time of acceptance (us) were there at the start, or were returned."""
        self.has_more = False
        """Whether there were more events than were returned last."""
        self.fault = ""
        """Why the history cannot be read; then only events in Redis are returned."""

    def new(self) -> list[PastEvent]:
        """The next ones. If this raises an error, the next call returns them."""
        end, self.has_more = self._events.accepted_until(), False
        if end <= self.cursor:
            return []
        try:
            found, self.has_more = self._read(self._events, end)
        except HistoryError as error:
            self.fault = str(error)
            found, self.has_more = self._read(self._events.in_redis, end)
        self.cursor = found[-1].accepted_at if self.has_more else end
        return found

    def _read(self, events: AllEvents, end: int) -> tuple[list[PastEvent], bool]:
        """The next events, and whether there may be more."""
        found, size, deadline = list[PastEvent](), 0, time.monotonic() + self._seconds
        for one in events.in_order(
            start=self.cursor + 1, end=end, store=self._store, content=self._content, seconds=self._seconds
        ):
            found.append(one)
            size += len(one.content or b"")
            if len(found) == PAGE or size > MAX_SCANNED_BYTES or time.monotonic() > deadline:
                return found, True
        return found, False


class EventTail:
    """Events that match a filter, each once: when it is accepted or, if the filter is about its status or its runs,
    when it first matches. A replayed event is not returned again."""

    def __init__(
        self,
        events: AllEvents,
        wanted: EventFilter,
        *,
        status: str = "",
        place: TailPlace | None = None,
        most_open: int = MAX_SCANNED,
        seconds: float = SECONDS,
    ) -> None:
        """It goes on at `place`, or begins now. `most_open` open events are looked at again until they match or end."""
        self._events, self._wanted, self._status, self._most = events, wanted, status, most_open
        self._of_runs = EventFilter(handler=wanted.handler, result=wanted.result, error=wanted.error)
        cursor = place.cursor if place else None
        self._arrivals = EventArrivals(
            events, store=wanted.store, content=bool(wanted.where), cursor=cursor, seconds=seconds
        )
        self.looks_at_all = place.looks_at_all if place else True
        """False once there were more open events than `most_open`: then the oldest ones are left out."""
        self._open = list(place.open) if place else self._open_now()

    @property
    def place(self) -> TailPlace:
        return TailPlace(self._arrivals.cursor, tuple(self._open), self.looks_at_all)

    @property
    def has_more(self) -> bool:
        """Whether events were accepted that were not looked at yet."""
        return self._arrivals.has_more

    @property
    def fault(self) -> str:
        return self._arrivals.fault

    def before(self, *, limit: int, seconds: float = SEARCH_SECONDS) -> FoundEvents:
        """The events until the place that match now, without those that `new` returns because they were open."""
        wanted = replace(self._wanted, until=self.place.cursor + 1)
        found = self._events.find(wanted, status=self._status or None, limit=limit, seconds=seconds)
        return replace(found, events=[one for one in found.events if one.accepted_at not in self._open])

    def new(self) -> list[EventSummary]:
        """The next ones. If this raises an error, the next call returns them."""
        again = self._look_again(self._open)
        arrived = [one for one in self._arrivals.new() if self._may_match(one)]
        found, still_open = list[EventSummary](), list[int]()
        for one in (*again, *arrived):
            if is_met(one, self._of_runs, self._status):
                found.append(read_summary(one.id, one.fields, one.accepted_at))
            elif one.fields.get(b"state") == EventStatus.OPEN.encode():
                still_open.append(one.accepted_at)
        self.looks_at_all = self.looks_at_all and len(still_open) <= self._most
        self._open = still_open[-self._most :]
        return found

    def _may_match(self, one: PastEvent) -> bool:
        wanted = self._wanted
        return wanted.since <= one.accepted_at < (wanted.until or LAST_TIME) and wanted.is_met_by(one.event)

    def _open_now(self) -> list[int]:
        """The open events that may match later."""
        if self._of_runs == EventFilter() and self._status in ("", EventStatus.OPEN):
            return []
        plain = replace(self._wanted, handler="", result="", error="", until=self._arrivals.cursor + 1)
        found = self._events.in_redis.find(plain, status=EventStatus.OPEN, limit=self._most)
        self.looks_at_all = found.next is None
        again = self._look_again([one.accepted_at for one in found.events])
        return [one.accepted_at for one in again if not is_met(one, self._of_runs, self._status)]

    def _look_again(self, times: Sequence[int]) -> list[PastEvent]:
        try:
            return self._events.accepted_at(times)
        except HistoryError as error:
            self._arrivals.fault = str(error)
            return self._events.in_redis.accepted_at(times)


class FailureArrivals:
    """Failed attempts in order of their time. A run that fails again is returned again."""

    def __init__(self, failures: FailureQueries, *, group: str | None = None) -> None:
        self._failures, self._group = failures, group
        self.started = self._since = self._last_look = server_ms(failures.client)
        """ms; those that failed before are not returned."""
        self._seen: set[FailurePlace] = set()

    def new(self) -> list[Failure]:
        now = server_ms(self._failures.client)
        if now < self._last_look:  # the clock was set back
            self._since = now - OVERLAP_MS
        places = self._failures.places(since=self._since, group=self._group)
        found = self._failures.read([one for one in places if one not in self._seen])
        self._seen, self._since, self._last_look = set(places), max(self._since, now - OVERLAP_MS), now
        return found


class RefusalArrivals:
    """Refused deliveries of this host, in the order in which they were stored."""

    def __init__(self, data_dir: Path, *, store: str | None = None) -> None:
        self._data_dir, self._store = data_dir, store
        with closing(open_existing_refusals(data_dir)) as refusals:
            self.cursor = refusals.last_id()

    def new(self) -> list[Refusal]:
        """The next ones. The file is opened each time: the receiver creates it with the first one."""
        with closing(open_existing_refusals(self._data_dir)) as refusals:
            found = refusals.stored_after(self.cursor, limit=PAGE)
        self.cursor = found[-1].id if found else self.cursor
        return [one for one in found if self._store in (None, one.store, one.named)]
