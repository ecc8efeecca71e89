"""Replay: runs are reopened at a chosen rate. An interrupted replay continues where it stopped.

A failure group needs no cursor: a replayed run has left the group, and a run that fails again after the start of the
replay is skipped. A replay by selection stores a cursor in the same step that reopens the runs.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from datetime import datetime

from receiver.contract.topics import PROBE, matches
from receiver.inbox import Administration, FailureQueries, Inbox
from receiver.inbox.outcomes import ENDED, status_of
from receiver.inbox.queries.runs import EventRuns, RunQueries

PAGE = 200


@dataclass(frozen=True)
class Selection:
    """Selects runs of past events."""

    handler: str | None = None
    run_status: str | None = None
    handler_version: str | None = None
    store: str | None = None
    topic: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def name(self) -> str:
        """Names the stored cursor: the same selection gets the same name."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:16]


class ReplayRate:
    """Limits a replay to `rate` runs a second. None means no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self._sent = 0

    @property
    def slice(self) -> int:
        """Maximum number of runs to reopen in one step."""
        return PAGE if self._rate is None else max(1, min(PAGE, int(self._rate / 10)))

    def wait(self, sent: int) -> None:
        self._sent += sent
        if self._rate is not None:
            time.sleep(max(0.0, self._started + self._sent / self._rate - time.monotonic()))


class Replay:
    def __init__(
        self,
        inbox: Inbox,
        *,
        rate: float | None,
        first: int | None,
        progress: Callable[[int], None],
        again: bool = False,
    ) -> None:
        self.administration = Administration(inbox.client)
        self._failures, self._runs = FailureQueries(inbox.client), RunQueries(inbox.client)
        self.queues = {one.handler: one.queue for one in inbox.declarations().handlers}
        self.counts: Counter[str] = Counter()
        self._rate = ReplayRate(rate)
        self._first = first
        self._progress = progress
        self._again = again

    @property
    def _next_count(self) -> int:
        """Maximum number of runs for the next step."""
        left = PAGE if self._first is None else self._first - self.counts["reopened"]
        return min(left, self._rate.slice)

    def group(self, group: str) -> Counter[str]:
        """Replay every run that is in a failure group now."""
        until, skipped = self._runs.server_time(), 0
        while (count := self._next_count) > 0:
            items = self._failures.page(group, until=until, skip=skipped, limit=count)
            if not items:
                break
            replies = self._reopen(items)
            skipped += sum(reply not in ("reopened", "open") for reply in replies)
        return self.counts

    def items(self, items: list[str], *, make: bool = False) -> Counter[str]:
        """Replay these runs. With `make`, a run is created for a handler that has none yet."""
        while items and (count := self._next_count) > 0:
            self._reopen(items[:count], make=make)
            items = items[count:]
        return self.counts

    def selection(self, selection: Selection) -> Counter[str]:
        """Replay every matching run in order of arrival, from where an interrupted replay stopped."""
        for after, items in self._pages(selection, self.position(selection)):
            if not self._reopen_page(items, selection, after):
                return self.counts
        self.administration.end_replay(selection.name)
        return self.counts

    def _reopen_page(self, items: list[str], selection: Selection, after: str) -> bool:
        """Reopen a page in several steps; the last one moves the cursor. Returns False when the limit is reached."""
        while items:
            if (count := self._next_count) <= 0:
                return False
            cursor = (selection.name, after) if count >= len(items) else ("", "")
            self._reopen(items[:count], make=selection.handler is not None, cursor=cursor)
            items = items[count:]
        return True

    def position(self, selection: Selection) -> str:
        """Where an interrupted replay of this selection stopped; empty if there was none."""
        return self.administration.replay_position(selection.name)

    def matching(self, selection: Selection) -> Iterator[str]:
        """The runs that a replay would reopen."""
        for _, items in self._pages(selection, ""):
            yield from items

    def _reopen(self, items: list[str], *, make: bool = False, cursor: tuple[str, str] = ("", "")) -> list[str]:
        replies = self.administration.reopen(items, self.queues, make=make, again=self._again, cursor=cursor)
        self.counts.update(replies)
        self._progress(len(items))
        self._rate.wait(len(items))
        return replies

    def _pages(self, selection: Selection, position: str) -> Iterator[tuple[str, list[str]]]:
        """The runs that match, event by event in order of arrival, each page with the position after it."""
        pages = self._runs.pages(store=selection.store, since=selection.since, until=selection.until, after=position)
        for after, events in pages:
            yield after, [item for event in events for item in matching_runs(selection, event)]


def matching_runs(selection: Selection, event: EventRuns) -> list[str]:
    """The runs of one event that a selection matches. Our own probe has no handlers."""
    if event.topic == PROBE or (selection.topic and not matches(selection.topic, event.topic)):
        return []
    if selection.handler and selection.handler not in event.runs and selection.run_status is None:
        return [event.item(selection.handler)]
    return [
        event.item(handler)
        for handler, run in sorted(event.runs.items())
        if handler not in ("", "intake")
        and selection.handler in (None, handler)
        and selection.run_status in (None, run.state)
        and status_of(run.state) in ENDED
        and (selection.handler_version is None or selection.handler_version == run.version)
    ]
