"""Pace: which handlers are fast, and so how many runs of each a worker may take. Pure.

A handler known to be fast is claimed in batches. Any other, and any not yet measured, gets a child process
alone. One handler holds at most half of a worker's child processes, so that a slow one cannot hold them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BATCH_SECONDS = 0.05
SLOT_SECONDS = 0.3
"""How much work one slot of a limit is given at once. A run that waits behind another waits for the limit anyway."""
LARGEST_BATCH = 64
FAST = 0.010
KNOWN_AFTER = 8
SLOT_KNOWN_AFTER = 3
WEIGHT = 0.1
SLOWEST = 60.0
ROUTES_AT_ONCE = 64
LONG = 0.1
"""A run of a batch that takes longer than this holds up the rest, which then goes elsewhere."""
LACKS_FOR = 5.0
"""How long no run is claimed of a handler that a child process did not have. Another worker may have it."""


@dataclass
class _Measure:
    mean: float = 0.0
    runs: int = 0


class BatchSizes:
    def __init__(self, child_processes: int) -> None:
        self._most_horses = max(1, child_processes // 2)
        self._measures: dict[str, _Measure] = {}
        self._lacking: dict[str, float] = {}
        """Handlers that are declared here and that a child process did not have, and until when none is claimed."""

    def measured(self, handler: str, seconds: float) -> None:
        """A run ended after so long. The mean follows; what is far off counts, but not for ever."""
        known = self._measures.setdefault(handler, _Measure())
        known.runs += 1
        weight = max(WEIGHT, 1 / known.runs)
        known.mean += weight * (min(seconds, SLOWEST) - known.mean)

    def lacks(self, handler: str, now: float) -> bool:
        """A child process did not have it. Gives whether that is news."""
        news = self._lacking.get(handler, now) <= now
        self._lacking[handler] = now + LACKS_FOR
        return news

    def proven(self, handler: str) -> bool:
        """Whether a run of this handler has ever ended in this worker."""
        return handler in self._measures

    def batch(self, handler: str) -> int:
        """How many runs of a handler one child process is given at once."""
        known = self._measures.get(handler)
        if known is None or known.runs < KNOWN_AFTER or known.mean > FAST:
            return 1
        return min(LARGEST_BATCH, int(BATCH_SECONDS / max(known.mean, 1e-6)))

    def behind_each_other(self, handler: str) -> int:
        """How many runs of a handler one slot of its limit is given at once: so many as are done in a moment."""
        known = self._measures.get(handler)
        if known is None or known.runs < SLOT_KNOWN_AFTER or known.mean > LONG:
            return 1
        return max(1, min(LARGEST_BATCH, int(SLOT_SECONDS / max(known.mean, 1e-6))))

    def quotas(
        self, handlers: Iterable[str], *, idle: int, holding: Mapping[str, int], now: float = 0.0
    ) -> dict[str, int]:
        """How many runs of each handler may be claimed now, given the idle child processes and those it holds."""
        found = {}
        for handler in handlers:
            if self._lacking.get(handler, now) > now:
                continue
            child_processes = min(idle, self._most_horses - holding.get(handler, 0))
            if child_processes > 0:
                found[handler] = child_processes * self.batch(handler)
        return found
