"""Waiting: the runs a worker has claimed and no child process has yet, and which of them a child process is given
next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from receiver.inbox import Run
from receiver.inbox.inbox import LOSSES_ALLOWED
from workers.runtime.pool.pool import ChildPool
from workers.runtime.worker.batch_sizes import BatchSizes

PROBATION = 0.2
SUSPECT_PROBATION = 3.0
LAST_PROBATION = 60.0
"""How long a run that may lose no more workers has its worker to itself, and how long it asks for that, at most."""


class WaitingRuns:
    def __init__(self, stable: ChildPool, pace: BatchSizes) -> None:
        self._stable = stable
        self._pace = pace
        self._runs: list[Run] = []
        self._since = 0.0
        self._let_out_at = 0.0
        self._guarded_until = 0.0
        self._alone_until = 0.0
        self._asking: dict[str, float] = {}
        """Since when a last chance, by its item, has come here in vain: given back, it comes again."""
        self.slotted: Collection[str] = ()
        """Handlers whose limit has slots: what was claimed together holds one, and one child process does it."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def by_handler(self) -> Counter[str]:
        return Counter(run.handler for run in self._runs)

    def keep(self, runs: Iterable[Run]) -> None:
        if not self._runs:
            self._since = time.monotonic()
        self._runs.extend(runs)

    @property
    def guarded(self) -> bool:
        """Whether a run that lost its worker before has just begun here. Until it ends or has lived a while, nothing
        is claimed that would be lost with it.
        """
        return time.monotonic() < max(self._guarded_until, self._alone_until) and self._stable.busy

    def older_than(self, seconds: float) -> bool:
        return bool(self._runs) and time.monotonic() - self._since > seconds

    def take_all(self) -> list[Run]:
        runs, self._runs = self._runs, []
        return runs

    def forget(self, items: set[str]) -> None:
        self._runs = [run for run in self._runs if run.item not in items]

    def dispatch(self, *, unwritten: bool) -> None:
        """Give what waits here to idle child processes: fast handlers in batches, any other alone.

        With `unwritten`, ends of runs are not in the inbox yet.
        """
        idle, given = self._stable.idle, set[str]()
        for run in list(self._runs) if idle else ():
            if run.item in given or not self._may_begin(run, unwritten):
                continue
            batch = self._take_batch(run)
            self._stable.give(batch)
            if run.losses:
                self._guarded_until = time.monotonic() + PROBATION
            if _is_the_last_chance(run):
                self._alone_until = time.monotonic() + LAST_PROBATION
            given.update(one.item for one in batch)
            idle -= 1
            if not idle:
                return

    def _take_batch(self, first: Run) -> list[Run]:
        """The first run and others of its handler, as many as one child process is given; out of what waits."""
        most = self._most_with(first)
        batch, rest = [first], []
        for run in self._runs:
            if run is first:
                continue
            if len(batch) < most and self._goes_with(first, run):
                batch.append(run)
            else:
                rest.append(run)
        self._runs = rest
        return batch

    def _most_with(self, first: Run) -> int:
        if first.handler in self.slotted:
            return len(self._runs)
        return 1 if first.losses else self._pace.batch(first.handler)

    def _goes_with(self, first: Run, run: Run) -> bool:
        """Whether one child process may do both. What was claimed on one slot of a limit stays together, and alone."""
        if first.handler in self.slotted:
            return (run.handler, run.token) == (first.handler, first.token)
        return run.handler == first.handler and not run.losses

    def _may_begin(self, run: Run, unwritten: bool) -> bool:
        """What might take this process down is let out alone: a run that lost its worker twice, and one of a handler
        that has not yet ended a run here. Runs that ended a moment ago are not written yet. It waits for its
        neighbours, but not for long; only its last chance a run has alone, so that it is given up for its own deed.
        """
        now, alone = time.monotonic(), not self._stable.busy and not unwritten
        if self._stable.busy and now < self._alone_until:
            return False
        suspect = run.losses >= 2
        if not suspect and self._pace.proven(run.handler):
            return True
        if alone or self._has_waited(run, suspect, now):
            self._let_out_at = now
            self._asking.pop(run.item, None)
            return True
        return False

    def _has_waited(self, run: Run, suspect: bool, now: float) -> bool:
        if _is_the_last_chance(run):
            return now - self._asking.setdefault(run.item, now) > LAST_PROBATION
        if suspect:
            return now - max(self._let_out_at, self._since) > SUSPECT_PROBATION
        return now - self._let_out_at > PROBATION


def _is_the_last_chance(run: Run) -> bool:
    """Whether a run has lost as many workers as it may: with one more it is given up."""
    return run.losses >= LOSSES_ALLOWED
