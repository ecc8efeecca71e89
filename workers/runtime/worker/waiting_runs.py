"""The runs that a worker has claimed and given to no child process yet, and which of them are given next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from receiver.inbox import Run
from receiver.inbox.leases import LOSSES_ALLOWED
from workers.runtime.pool.pool import ChildPool
from workers.runtime.worker.batch_sizes import BatchSizes

PROBATION = 0.2
SUSPECT_PROBATION = 3.0
LAST_PROBATION = 60.0
"""How long a run on its last chance has its worker to itself, and how long it waits for that, at most."""


class WaitingRuns:
    def __init__(self, pool: ChildPool, batch_sizes: BatchSizes) -> None:
        self._pool = pool
        self._batch_sizes = batch_sizes
        self._runs: list[Run] = []
        self._since = 0.0
        self._suspect_began_at = 0.0
        self._guarded_until = 0.0
        self._alone_until = 0.0
        self._last_chance_since: dict[str, float] = {}
        """Since when a run on its last chance, by its item, has waited to be alone: released, it is claimed again."""
        self.slotted: Collection[str] = ()
        """Handlers whose limit has slots. Runs claimed together hold one slot, and one child process does them."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def room(self, quotas: Mapping[str, int]) -> dict[str, int]:
        """What is left of each handler's quota after the runs that wait here."""
        waiting = Counter(run.handler for run in self._runs)
        return {name: quotas.get(name, 0) - waiting[name] for name in {*quotas, *waiting}}

    def add(self, runs: Iterable[Run]) -> None:
        if not self._runs:
            self._since = time.monotonic()
        self._runs.extend(runs)

    @property
    def guarded(self) -> bool:
        """Whether a run that lost its worker before has just begun. Until it ends or has run for a while, no run is
        claimed that would be lost with it.
        """
        return time.monotonic() < max(self._guarded_until, self._alone_until) and self._pool.busy

    def older_than(self, seconds: float) -> bool:
        return bool(self._runs) and time.monotonic() - self._since > seconds

    def take_all(self) -> list[Run]:
        runs, self._runs = self._runs, []
        return runs

    def forget(self, items: set[str]) -> None:
        self._runs = [run for run in self._runs if run.item not in items]

    def dispatch(self, *, unwritten: bool) -> None:
        """Give waiting runs to idle child processes: those of fast handlers in batches, any other alone.

        `unwritten` says that outcomes are not in the inbox yet.
        """
        process, given = self._pool.idle_child(), set[str]()
        for run in list(self._runs) if process else ():
            if process is None:
                return
            if run.item in given or not self._may_begin(run, unwritten):
                continue
            batch = self._take_batch(run)
            process.give(batch)
            if run.losses:
                self._guarded_until = time.monotonic() + PROBATION
            if _is_the_last_chance(run):
                self._alone_until = time.monotonic() + LAST_PROBATION
            given.update(one.item for one in batch)
            process = self._pool.idle_child()

    def _take_batch(self, first: Run) -> list[Run]:
        """Remove the first run and others of its handler from the waiting runs, as many as one child process gets."""
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
        return 1 if first.losses else self._batch_sizes.batch(first.handler)

    def _goes_with(self, first: Run, run: Run) -> bool:
        """Whether one child process may do both. Runs claimed on one slot of a limit stay together, without others."""
        if first.handler in self.slotted:
            return (run.handler, run.token) == (first.handler, first.token)
        return run.handler == first.handler and not run.losses

    def _may_begin(self, run: Run, unwritten: bool) -> bool:
        """Whether a run may begin now. A run that may kill this worker begins while no other run is under way: one
        that lost its worker twice, and one of a handler of which no run has ended here yet. It waits for the other
        runs and for their outcomes to be written, but not for long. Only on its last chance a run is really alone, so
        that it fails because of what it did itself.
        """
        now, alone = time.monotonic(), not self._pool.busy and not unwritten
        if self._pool.busy and now < self._alone_until:
            return False
        suspect = run.losses >= 2
        if not suspect and self._batch_sizes.proven(run.handler):
            return True
        if alone or self._has_waited(run, suspect, now):
            self._suspect_began_at = now
            self._last_chance_since.pop(run.item, None)
            return True
        return False

    def _has_waited(self, run: Run, suspect: bool, now: float) -> bool:
        if _is_the_last_chance(run):
            return now - self._last_chance_since.setdefault(run.item, now) > LAST_PROBATION
        if suspect:
            return now - max(self._suspect_began_at, self._since) > SUSPECT_PROBATION
        return now - self._suspect_began_at > PROBATION


def _is_the_last_chance(run: Run) -> bool:
    """Whether a run has lost as many workers as it may: one more makes it a failure."""
    return run.losses >= LOSSES_ALLOWED
