"""Memory: bytes in Redis for one event of 2 KiB, with indexes and marks: open with five handlers, and settled."""

from __future__ import annotations

from benchmarks import fill, load
from benchmarks.bouts.keeping import GROUP, HANDLERS, Keeping, route_all
from benchmarks.targets import US
from receiver.inbox import Housekeeping, Inbox, Outcome
from receiver.inbox.outcomes import OutcomeKind

EVENTS = 1_000


class Memory(Keeping):
    name = "memory"
    about = "bytes in Redis for an open event of 2 KiB with five handlers"
    systems = (US, "naive")
    share = 0.6

    def turn(self, system: str) -> dict[str, float]:
        return self._of_ours() if system == US else self._of_theirs()

    def _of_ours(self) -> dict[str, float]:
        self.ours.empty()
        before, inbox = self.ours.memory(), Inbox(self.ours.client)
        fill.fill(inbox, self.config, EVENTS)
        kept = self.ours.memory()
        route_all(inbox)
        with_runs = self.ours.memory()
        _end_all(inbox)
        settled = self.ours.memory()
        found = {"accepted": kept, "bytes": with_runs, "settled": settled, "settled, body gone": self._worn()}
        return {name: (used - before) / EVENTS for name, used in found.items()}

    def _worn(self) -> int:
        housekeeping = Housekeeping(self.ours.client)
        while housekeeping.trim(bodies=-1, records=1e9)[0]:
            pass
        return self.ours.memory()

    def _of_theirs(self) -> dict[str, float]:
        self.theirs.empty()
        before = self.theirs.memory()
        for number in range(EVENTS):
            self.theirs.client.set(f"seen:{load.STORE}:msg_{number:014d}", 1, ex=604800)
            self.enqueue()
        return {"bytes": (self.theirs.memory() - before) / EVENTS}


def _end_all(inbox: Inbox) -> None:
    detail = {"result": None, "version": "0123abcd", "ms": 0.123}
    while runs := inbox.claim(dict.fromkeys(HANDLERS, GROUP), room=5 * GROUP).runs:
        inbox.finish([Outcome(run, OutcomeKind.DONE, detail) for run in runs])
