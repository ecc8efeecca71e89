"""Replay: runs are reopened at a chosen rate. A replay that stopped, interrupted or at its limit, continues there.

A failure group needs no stored cursor: a replayed run has left the group, and a run that fails again after the start of
the replay is skipped. Nor does a selection of failed runs: one that failed again is replayed again. Any other replay by
selection stores its position in the same step that reopens the runs, and stops if another process has stored one since.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import datetime
from itertools import islice
from typing import TypeVar

from receiver.contract.diagnosis.formatting import counted
from receiver.contract.errors import StorehooksError
from receiver.contract.event import UNREADABLE
from receiver.contract.topics import PROBE, matches
from receiver.inbox import Administration, Declaration, FailureQueries, Inbox, keys
from receiver.inbox.administration import NO_REPLAY, ReopenResult, ReplayStep
from receiver.inbox.model import needs_data, order_for, order_of
from receiver.inbox.outcomes import ENDED, RunState, status_of
from receiver.inbox.queries.damage import DamagedRecord
from receiver.inbox.queries.runs import EventRuns
from workers.operations.all_events import AllEvents
from workers.plugins.router import wanted_by
from workers.subscriptions.managed_store import declared_handlers

RUNS_AT_ONCE = 200
T = TypeVar("T")


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

    def name(self, *, again: bool) -> str:
        """Names the stored position: the same selection gets the same name. A replay that repeats effects has its own,
        because one that leaves them out does not replace it."""
        chosen = (*astuple(self), again) if again else astuple(self)
        return hashlib.sha256(repr(chosen).encode()).hexdigest()[:16]


class ReplayedElsewhere(StorehooksError):
    """Another process replays the same selection, or has done so since this one looked for its runs."""


class ReplayRate:
    """Limits a replay to `rate` runs a second, from the first one on. None means no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = 0.0
        self._sent = 0

    @property
    def slice(self) -> int:
        """Maximum number of runs to reopen in one step."""
        return RUNS_AT_ONCE if self._rate is None else max(1, min(RUNS_AT_ONCE, int(self._rate / 10)))

    def wait(self, sent: int) -> None:
        self._started = self._started or time.monotonic()
        self._sent += sent
        if self._rate is not None:
            time.sleep(max(0.0, self._started + self._sent / self._rate - time.monotonic()))


class Replay:
    """Replays at most `first` runs. With `urgent`, those of a paused handler begin although it is paused."""

    def __init__(
        self,
        inbox: Inbox,
        events: AllEvents,
        *,
        rate: float | None,
        first: int | None,
        again: bool = False,
        urgent: bool = False,
    ) -> None:
        self.administration = Administration(inbox.client)
        self._failures, self._events = FailureQueries(inbox.client), events
        self._handlers = declared_handlers(inbox.client).present
        self.queues = {one.handler: one.queue for one in self._handlers}
        self._orders = {one.handler: order for one in self._handlers if (order := order_of(one))}
        self.counts: Counter[tuple[ReopenResult, str]] = Counter()
        """What became of the runs, by result and handler."""
        self.progress: Callable[[int], None] = lambda _: None
        self._rate = ReplayRate(rate)
        self._first = first
        self._again = again
        self._urgent = urgent
        self._before: dict[Selection, str] = {}

    @property
    def replayed(self) -> int:
        return sum(number for (result, _), number in self.counts.items() if result.replayed)

    def group(self, group: str) -> None:
        """Replay every run that is in a failure group now."""
        self.failures(self._failures.runs_of(group))

    def failures(self, items: Iterable[str]) -> None:
        """Replay these failed runs, except for those that were replayed or dropped meanwhile, and are no failures."""
        for step in self._steps(iter(items)):
            self._reopen(step, failures_only=True)

    def items(self, items: Iterable[str], *, make: bool = False) -> None:
        """Replay these runs. With `make`, a run is created for a handler that has none yet."""
        for step in self._steps(iter(items)):
            self._reopen(step, make=make)

    def selection(self, selection: Selection) -> None:
        """Replay the matching runs in order of acceptance, from where the last replay of this selection stopped."""
        name, before = selection.name(again=self._again), self._stored(selection)
        left = self.matching(selection)
        for step in self._steps(left):
            items, positions = zip(*step, strict=True)
            if selection.run_status == RunState.FAILED:
                self._reopen(items, failures_only=True)
            else:
                self._reopen(items, make=selection.handler is not None, replay=ReplayStep(name, before, positions[-1]))
                before = positions[-1]
        if next(left, None) is None and selection.run_status != RunState.FAILED:
            self.administration.end_replay(name, before)
        self._before.pop(selection, None)

    def position(self, selection: Selection) -> str:
        """Where the last replay of this selection stopped; empty if it came to its end."""
        return position_in(self._stored(selection))

    def _stored(self, selection: Selection) -> str:
        """What was stored when it was first read: what the runs were counted from is what they are replayed from."""
        if selection.run_status == RunState.FAILED:
            return ""
        if selection not in self._before:
            self._before[selection] = self.administration.stored_replay(selection.name(again=self._again))
        return self._before[selection]

    def matching(self, selection: Selection) -> Iterator[tuple[str, str]]:
        """The runs that a replay of this selection would reopen now, each with its position."""
        accepted, _, last = self.position(selection).partition(" ")
        for event in self._events.runs(
            store=selection.store, since=selection.since, until=selection.until, first=accepted
        ):
            for item in matching_runs(selection, event, self._handlers):
                if event.accepted != accepted or item > last:
                    yield item, f"{event.accepted} {item}"

    def _steps(self, left: Iterator[T]) -> Iterator[list[T]]:
        """As many at a time as the rate allows, until the limit is reached."""
        while (count := self._next_count) > 0 and (step := list(islice(left, count))):
            yield step

    @property
    def _next_count(self) -> int:
        """Maximum number of runs for the next step."""
        left = RUNS_AT_ONCE if self._first is None else self._first - self.replayed
        return min(left, self._rate.slice)

    def _reopen(
        self,
        items: Sequence[str],
        *,
        make: bool = False,
        failures_only: bool = False,
        replay: ReplayStep = NO_REPLAY,
    ) -> None:
        with self._events.brought_back(keys.split_item(item)[0] for item in items):
            orders = {item: self._order_of(item) for item in items if keys.split_item(item)[1] in self._orders}
            results = self.administration.reopen(
                items,
                self.queues,
                make=make,
                failures_only=failures_only,
                again=self._again,
                urgent=self._urgent,
                orders=orders,
                replay=replay,
            )
        if replay.name and not results:
            raise self._replayed_elsewhere(replay.name)
        self.counts.update(zip(results, (keys.split_item(item)[1] for item in items), strict=True))
        self.progress(len(items))
        self._rate.wait(len(items))

    def _replayed_elsewhere(self, name: str) -> ReplayedElsewhere:
        is_under_way = position_in(self.administration.stored_replay(name))
        again = "goes on there" if is_under_way else "begins with the first run, also with those that were replayed"
        return ReplayedElsewhere(
            f"another process replays the same runs, or has replayed them; {counted(self.replayed, 'run')} replayed "
            f"here. The command again {again}"
        )

    def _order_of(self, item: str) -> str:
        """The order of a run that has none yet: it is created here, or is older than its handler's `order_by`."""
        event_id, handler = keys.split_item(item)
        order = self._orders[handler]
        if not needs_data(order):
            return order
        with suppress(DamagedRecord):
            if event := self._events.as_event(event_id):
                return order_for(order, event)
        return ""  # it is not replayed


def position_in(stored: str) -> str:
    """The position of a replay that has not come to its end."""
    return "" if stored.startswith(" ") else stored


def matching_runs(
    selection: Selection, event: EventRuns, handlers: Iterable[Declaration] = (), *, by_id: bool = False
) -> list[str]:
    """The runs of one event that a selection matches. If the selection's handler has none, it gets one if `handlers`
    declare that it wants the event. An event chosen by its id is given to any handler, and its open runs match: some of
    them begin before they are due, and the replay counts the others. Our own probe has no handlers, nor has an event
    that could not be read."""
    if event.topic in (PROBE, UNREADABLE) or (selection.topic and not matches(selection.topic, event.topic)):
        return []
    if selection.handler and selection.handler not in event.runs:
        wanted = by_id or selection.handler in wanted_by(handlers, topic=event.topic, store=event.store)
        is_new = wanted and selection.run_status is None and selection.handler_version is None
        return [event.item(selection.handler)] if is_new else []
    return [
        event.item(handler)
        for handler, run in sorted(event.runs.items())
        if handler not in (keys.ROUTING_LANE, keys.INTAKE)
        and selection.handler in (None, handler)
        and selection.run_status in (None, run.state)
        and (by_id or status_of(run.state) in ENDED)
        and (selection.handler_version is None or selection.handler_version == run.version)
    ]
