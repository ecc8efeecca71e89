"""The runs that a worker has claimed and given to no child process yet, and which of them are given next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from receiver.inbox import Run
from receiver.inbox.leases import LOSSES_ALLOWED
from workers.runtime.pool.pool import ChildPool
from workers.runtime.worker.claim_sizes import ClaimSizes

LOST_REPEATEDLY = 2
"""A run with at least this number of losses has probably caused them. A single loss may be due to another run."""
NO_CLAIM_SECONDS = 0.2
"""After a run with a loss has begun, no run is claimed for this long, while it is under way."""
UNPROVEN_SECONDS = 0.2
"""Seconds between the begin of one risky run and of a run of an unproven handler, if that is not alone."""
LOST_REPEATEDLY_SECONDS = 3.0
"""The same for a run that was lost repeatedly, which also waits this long for the other runs to end."""
LAST_CHANCE_WAIT = 60.0
"""The longest time that a last-chance run waits to be alone."""
LAST_CHANCE_ALONE = 60.0
"""After a last-chance run has begun, no other run begins or is claimed for this long, while any run is under way."""


class WaitingRuns:
    def __init__(self, pool: ChildPool, claim_sizes: ClaimSizes) -> None:
        self._pool = pool
        self._claim_sizes = claim_sizes
        self._runs: list[Run] = []
        self._since = 0.0
        self._risky_run_began_at = 0.0
        self._suspect, self._guarded_until = "", 0.0
        self._alone_until = 0.0
        self._last_chance_since: dict[str, float] = {}
        """Item -> since when its last-chance run has waited to be alone. Kept when the run is released, because this
        worker may claim it again."""
        self.slotted: Collection[str] = ()
        """Handlers whose limit has slots. Runs claimed together hold one slot, and one child process does them."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def capacity(self, quotas: Mapping[str, int]) -> dict[str, int]:
        """What is left of each handler's quota after the runs that wait here."""
        waiting = Counter(run.handler for run in self._runs)
        return {name: quotas.get(name, 0) - waiting[name] for name in {*quotas, *waiting}}

    def add(self, runs: Iterable[Run]) -> None:
        if not self._runs:
            self._since = time.monotonic()
        self._runs.extend(runs)

    @property
    def guarded(self) -> bool:
        """Whether a run that lost its worker before has just begun and is under way. Then none is claimed: if this
        worker dies, every run that it holds is lost. After a last chance, runs of others must have ended, too.
        """
        now = time.monotonic()
        if now < self._alone_until and self._pool.busy:
            return True
        return now < self._guarded_until and any(run.item == self._suspect for run in self._pool.runs())

    def older_than(self, seconds: float) -> bool:
        return bool(self._runs) and time.monotonic() - self._since > seconds

    def take_all(self) -> list[Run]:
        runs, self._runs = self._runs, []
        return runs

    def forget(self, items: set[str]) -> list[Run]:
        """Remove these runs. Those that wait here behind one of them, in their order, are removed and returned."""
        lost = {(run.handler, run.order_key) for run in self._runs if run.item in items and run.order_key}
        left = [run for run in self._runs if run.item not in items]
        self._runs = [run for run in left if (run.handler, run.order_key) not in lost]
        return [run for run in left if (run.handler, run.order_key) in lost]

    def dispatch(self, *, unwritten: bool) -> None:
        """Give waiting runs to idle child processes: those of fast handlers in batches, any other alone.

        `unwritten` says that outcomes are not in the inbox yet.
        """
        given, behind = set[str](), set[tuple[str, str]]()
        for run in list(self._runs):
            if run.item in given:
                continue
            if run.order_key and not self._may_begin_next(run, behind):
                continue
            idle = self._pool.idle_with(run.handler)
            if not idle and not self._pool.idle:
                return
            if not idle or not self._may_begin(run, unwritten):
                behind.add((run.handler, run.order_key))
                continue
            batch = self._take_batch(run)
            idle[0].give(batch)
            if run.losses:
                self._suspect, self._guarded_until = run.item, time.monotonic() + NO_CLAIM_SECONDS
            if _is_last_chance(run):
                self._alone_until = time.monotonic() + LAST_CHANCE_ALONE
            given.update(one.item for one in batch)

    def _may_begin_next(self, run: Run, behind: set[tuple[str, str]]) -> bool:
        """Whether an ordered run may begin: those of its key before it have, and its lease was renewed in time."""
        return (run.handler, run.order_key) not in behind and not self._pool.lease.has_ended

    def _take_batch(self, first: Run) -> list[Run]:
        """Remove the first run and others of its handler from the waiting runs, as many as one child process gets. It
        gets all that wait here of an order key, in their order, or none."""
        most = self._most_with(first)
        batch, rest, ordered = [first], [], {first.order_key} - {""}
        for run in self._runs:
            if run is first:
                continue
            if self._goes_with(first, run) and (len(batch) < most or run.order_key in ordered):
                batch.append(run)
                ordered |= {run.order_key} - {""}
            else:
                rest.append(run)
        self._runs = rest
        return batch

    def _most_with(self, first: Run) -> int:
        if first.handler in self.slotted:
            return len(self._runs)
        return 1 if first.losses else self._claim_sizes.batch(first.handler)

    def _goes_with(self, first: Run, run: Run) -> bool:
        """Whether one child process may do both. Runs claimed on one slot of a limit stay together, without others."""
        if first.handler in self.slotted:
            return (run.handler, run.token) == (first.handler, first.token)
        return run.handler == first.handler and not run.losses

    def _may_begin(self, run: Run, unwritten: bool) -> bool:
        """Whether a run may begin now.

        - After a last-chance run has begun: none for LAST_CHANCE_ALONE, while any run is under way.
        - Proven handler, fewer losses than LOST_REPEATEDLY: at once.

        Any other run is risky: it may kill this worker. It begins if it is alone, which means that no run is under way
        and every outcome is written. If it is not alone, it begins later:

        - Unproven handler (none of its runs has ended here): UNPROVEN_SECONDS after the last risky run began.
        - Lost repeatedly: LOST_REPEATEDLY_SECONDS after the last risky run began and runs began to wait here.
        - Last chance: after it has waited for LAST_CHANCE_WAIT. It waits that long so that it is alone if possible,
          and fails because of what it did itself.
        """
        now, alone = time.monotonic(), not self._pool.busy and not unwritten
        if self._pool.busy and now < self._alone_until:
            return False
        if run.losses < LOST_REPEATEDLY and self._claim_sizes.proven(run.handler):
            return True
        if alone or self._has_waited(run, now):
            self._risky_run_began_at = now
            self._last_chance_since.pop(run.item, None)
            return True
        return False

    def _has_waited(self, run: Run, now: float) -> bool:
        """Whether a risky run need not wait any longer to be alone."""
        if _is_last_chance(run):
            return now - self._last_chance_since.setdefault(run.item, now) > LAST_CHANCE_WAIT
        if run.losses >= LOST_REPEATEDLY:
            return now - max(self._risky_run_began_at, self._since) > LOST_REPEATEDLY_SECONDS
        return now - self._risky_run_began_at > UNPROVEN_SECONDS


def _is_last_chance(run: Run) -> bool:
    """Whether a run has lost as many workers as it may: one more makes it a failure."""
    return run.losses >= LOSSES_ALLOWED
