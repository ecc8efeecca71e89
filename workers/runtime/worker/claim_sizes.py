"""What a worker asks for in its next claim: which lanes, in which order, and how many runs of each. Pure.

- Batches: a handler known to be fast is claimed in batches, worth BATCH_SECONDS, so that all handlers have about the
  same share of the child processes. A run of any other, and of one not measured yet, has a child process to itself.
- Quotas: one handler holds at most half of a worker's child processes, rounded up, so that a slow one cannot hold
  them all.
- Absent handlers: no run is claimed for a while of a handler that a child process did not have.
- Turns: each claim begins with another lane, and every other claim with the lanes that have suspects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from receiver.inbox.keys import ROUTING_LANE

BATCH_SECONDS = 0.05
SLOT_SECONDS = 0.3
"""How much work one slot of a limit is given at once. A run that waits behind another waits for the limit anyway."""
LARGEST_BATCH = 64
MEASURED_AFTER = 8
SLOT_MEASURED_AFTER = 3
WEIGHT = 0.1
EVENTS_TO_ROUTE = 64
LONG = 0.1
"""A run of a batch that takes longer than this delays the rest, which then goes to another child process."""
SLOWEST = 2 * LONG
"""No run counts as longer: it delays those behind it no more than that. If a killed child process counted for a minute,
its handler would have one run for each claim until sixty more had ended, and fall behind the others."""
ABSENT_SECONDS = 5.0
"""How long no run of a handler is claimed after a child process did not have it. Another worker may have it."""


@dataclass
class _Measure:
    mean: float = 0.0
    runs: int = 0


class ClaimSizes:
    def __init__(self, child_processes: int) -> None:
        self.resize(child_processes)
        self._measures: dict[str, _Measure] = {}
        self._absent_until: dict[str, float] = {}
        """Handler -> until when none of its runs is claimed, because a child process did not have it."""
        self._turn = 0

    def resize(self, child_processes: int) -> None:
        self._most_processes = (child_processes + 1) // 2

    def note_duration(self, handler: str, seconds: float) -> None:
        """Add a run that ended to the handler's mean duration; infinity stands for a child process that died.

        The latest runs weigh most, and no run counts as longer than SLOWEST.
        """
        measure = self._measures.get(handler)
        if measure is None:
            measure = self._measures[handler] = _Measure()
        measure.runs += 1
        weight = max(WEIGHT, 1 / measure.runs)
        measure.mean += weight * (min(seconds, SLOWEST) - measure.mean)

    def note_absent(self, handler: str, now: float) -> bool:
        """Claim no run of this handler for ABSENT_SECONDS, because a child process did not have it.

        Returns False if that was noted less than ABSENT_SECONDS ago.
        """
        is_new = self._absent_until.get(handler, now) <= now
        self._absent_until[handler] = now + ABSENT_SECONDS
        return is_new

    def proven(self, handler: str) -> bool:
        """Whether a run of this handler has ended in this worker before."""
        return handler in self._measures

    def batch(self, handler: str) -> int:
        """How many runs of a handler one child process is given at once."""
        measure = self._measures.get(handler)
        if measure is None or measure.runs < MEASURED_AFTER:
            return 1
        return max(1, min(LARGEST_BATCH, int(BATCH_SECONDS / max(measure.mean, 1e-6))))

    def slot_batch(self, handler: str) -> int:
        """How many runs of a handler one slot of its limit is given at once: as many as are done in SLOT_SECONDS."""
        measure = self._measures.get(handler)
        if measure is None or measure.runs < SLOT_MEASURED_AFTER or measure.mean > LONG:
            return 1
        return max(1, min(LARGEST_BATCH, int(SLOT_SECONDS / max(measure.mean, 1e-6))))

    def quotas(
        self, handlers: Iterable[str], *, idle: int, busy: Mapping[str, int], now: float = 0.0
    ) -> dict[str, int]:
        """How many runs of each handler may be claimed now, by the idle child processes and those busy with it."""
        quotas = {}
        for handler in handlers:
            if self._absent_until.get(handler, now) > now:
                continue
            processes = min(idle, self._most_processes - busy.get(handler, 0))
            if processes > 0:
                quotas[handler] = processes * self.batch(handler)
        return quotas

    def next_claim(self, quotas: Mapping[str, int], *, slotted: Collection[str]) -> tuple[dict[str, int], bool]:
        """The lanes to claim from with the maximum of each, and whether lanes that have suspects are served first.

        Each time another lane is first. Suspects, which are runs that lost a worker before, are first every other time.
        """
        most = {name: self.slot_batch(name) if name in slotted else quota for name, quota in quotas.items()}
        most = {ROUTING_LANE: EVENTS_TO_ROUTE, **most}
        self._turn += 1
        names = list(most)
        first = self._turn % len(names)
        return {name: most[name] for name in names[first:] + names[:first]}, self._turn % 2 == 0
