"""Replay: have runs done again, at a rate one chooses. Interrupted, it goes on where it was when started again.

A group needs no bookkeeping: what was replayed has left the group, and what fails again after the start is
not taken a second time. A replay by filter keeps a cursor, written in the same step that reopens the runs.
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
    """Which runs of past events are meant."""

    handler: str | None = None
    run_status: str | None = None
    handler_version: str | None = None
    store: str | None = None
    topic: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def name(self) -> str:
        """The same selection, started again, finds its cursor by this."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:16]


class ReplayRate:
    """Waits so that not more than `rate` a second go out; no rate is as fast as it goes."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self._sent = 0

    @property
    def slice(self) -> int:
        """How many to send at once."""
        return PAGE if self._rate is None else max(1, min(PAGE, int(self._rate / 10)))

    def wait(self, sent: int) -> None:
        self._sent += sent
        if self._rate is not None:
            time.sleep(max(0.0, self._started + self._sent / self._rate - time.monotonic()))


class Replay:
    def __init__(
        self, inbox: Inbox, *, rate: float | None, first: int | None, told: Callable[[int], None], again: bool = False
    ) -> None:
        self.administration = Administration(inbox.client)
        self._failures, self._runs = FailureQueries(inbox.client), RunQueries(inbox.client)
        self.queues = {one.handler: one.queue for one in inbox.declarations().handlers}
        self.counts: Counter[str] = Counter()
        self._pace = ReplayRate(rate)
        self._first = first
        self._told = told
        self._again = again

    @property
    def _room(self) -> int:
        """How many may still be reopened."""
        left = PAGE if self._first is None else self._first - self.counts["reopened"]
        return min(left, self._pace.slice)

    def group(self, group: str) -> Counter[str]:
        """Every run that is in a group of failures now."""
        until, stuck = self._runs.server_time(), 0
        while (room := self._room) > 0:
            items = self._failures.page(group, until=until, skip=stuck, limit=room)
            if not items:
                break
            replies = self._reopen(items)
            stuck += sum(reply not in ("reopened", "open") for reply in replies)
        return self.counts

    def items(self, items: list[str], *, make: bool = False) -> Counter[str]:
        """Just these runs."""
        while items and (room := self._room) > 0:
            self._reopen(items[:room], make=make)
            items = items[room:]
        return self.counts

    def selection(self, selection: Selection) -> Counter[str]:
        """Every run that fits, in order of arrival, going on where an interrupted one stopped."""
        for after, items in self._pages(selection, self.position(selection)):
            if not self._send_page(items, selection, after):
                return self.counts
        self.administration.end_replay(selection.name)
        return self.counts

    def _send_page(self, items: list[str], selection: Selection, after: str) -> bool:
        """Reopen a page in slices; the cursor moves past it with the last one. False: as many as were wanted."""
        while items:
            if (room := self._room) <= 0:
                return False
            cursor = (selection.name, after) if room >= len(items) else ("", "")
            self._reopen(items[:room], make=selection.handler is not None, cursor=cursor)
            items = items[room:]
        return True

    def position(self, selection: Selection) -> str:
        """Where an interrupted replay of this selection stopped; empty if there was none."""
        return self.administration.replay_position(selection.name)

    def matching(self, selection: Selection) -> Iterator[str]:
        """What would be replayed."""
        for _, items in self._pages(selection, ""):
            yield from items

    def _reopen(self, items: list[str], *, make: bool = False, cursor: tuple[str, str] = ("", "")) -> list[str]:
        replies = self.administration.reopen(items, self.queues, make=make, again=self._again, cursor=cursor)
        self.counts.update(replies)
        self._told(len(items))
        self._pace.wait(len(items))
        return replies

    def _pages(self, selection: Selection, position: str) -> Iterator[tuple[str, list[str]]]:
        """The runs that match, event by event in order of arrival, each page with the position after it."""
        pages = self._runs.pages(store=selection.store, since=selection.since, until=selection.until, after=position)
        for after, events in pages:
            yield after, [item for event in events for item in matching_runs(selection, event)]


def matching_runs(selection: Selection, event: EventRuns) -> list[str]:
    """The runs of one event that a selection matches. A probe of our own is for no handler."""
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
