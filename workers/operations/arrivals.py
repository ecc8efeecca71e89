"""Arrivals: what was accepted, failed or refused since the last look. Each one once, in the order in which it came."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path

from receiver.inbox import FailureQueries
from receiver.inbox.queries.failures import Failure, FailurePlace
from receiver.inbox.redis.connecting import server_ms
from receiver.spool import Refusal, open_existing_refusals
from workers.history.past_events import HistoryError, PastEvent
from workers.operations.all_events import AllEvents

PAGE = 1_000
OVERLAP_MS = 2_000
"""Failures of this time before the last look are read again: one script may have ended after another, with its time."""


class EventArrivals:
    """Events in order of acceptance. Each has a time of acceptance of its own, later than those of earlier ones."""

    def __init__(self, events: AllEvents, *, store: str = "", content: bool = False) -> None:
        self._events, self._store, self._content = events, store, content
        self.cursor = events.accepted_until()
        """The events up to this time of acceptance (us) were there at the start, or were returned."""
        self.fault = ""
        """Why the history cannot be read; then only events in Redis are returned."""

    def new(self) -> list[PastEvent]:
        """The next ones. If this raises an error, the next call returns them."""
        end = self._events.accepted_until()
        if end <= self.cursor:
            return []
        try:
            found = self._read(self._events, end)
        except HistoryError as error:
            self.fault = str(error)
            found = self._read(self._events.in_redis, end)
        self.cursor = found[-1].accepted_at if len(found) == PAGE else end
        return found

    def _read(self, events: AllEvents, end: int) -> list[PastEvent]:
        following = events.in_order(start=self.cursor + 1, end=end, store=self._store, content=self._content)
        return list(islice(following, PAGE))


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
