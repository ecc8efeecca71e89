"""Memory: bytes in Redis for one event of 2 KiB with its indexes and marks: open with five handlers, and settled."""

from __future__ import annotations

from benchmarks import fill_inbox, load
from benchmarks.comparisons.storage import GROUP, HANDLERS, StorageComparison, route_all
from benchmarks.targets import US
from receiver.inbox import Housekeeping, Inbox, Outcome
from receiver.inbox.outcomes import OutcomeKind

EVENTS = 1_000


class Memory(StorageComparison):
    name = "memory"
    description = "bytes in Redis for an open event of 2 KiB with five handlers"
    systems = (US, "naive")
    share = 0.6

    def turn(self, system: str) -> dict[str, float]:
        return self._own_bytes() if system == US else self._rq_bytes()

    def _own_bytes(self) -> dict[str, float]:
        self.ours.empty()
        before, inbox = self.ours.memory(), Inbox(self.ours.client)
        fill_inbox.fill(inbox, self.config, EVENTS)
        accepted = self.ours.memory()
        route_all(inbox)
        with_runs = self.ours.memory()
        _finish_all(inbox)
        settled = self.ours.memory()
        figures = {
            "accepted": accepted,
            "bytes": with_runs,
            "settled": settled,
            "settled, body deleted": self._without_bodies(),
        }
        return {name: (used - before) / EVENTS for name, used in figures.items()}

    def _without_bodies(self) -> int:
        housekeeping = Housekeeping(self.ours.client)
        while housekeeping.trim(bodies=-1, records=1e9)[0]:
            pass
        return self.ours.memory()

    def _rq_bytes(self) -> dict[str, float]:
        self.theirs.empty()
        before = self.theirs.memory()
        for number in range(EVENTS):
            self.theirs.client.set(f"seen:{load.STORE}:msg_{number:014d}", 1, ex=604800)
            self.enqueue()
        return {"bytes": (self.theirs.memory() - before) / EVENTS}


def _finish_all(inbox: Inbox) -> None:
    detail = {"result": None, "version": "0123abcd", "ms": 0.123}
    while runs := inbox.claim(dict.fromkeys(HANDLERS, GROUP), capacity=5 * GROUP).runs:
        inbox.finish([Outcome(run, OutcomeKind.DONE, detail) for run in runs])
