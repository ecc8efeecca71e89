"""Fan-out: what it costs to keep one event and give it to five handlers."""

from __future__ import annotations

import time

from benchmarks import fill
from benchmarks.bouts.keeping import GROUP, Keeping, route_all
from benchmarks.targets import US
from receiver.inbox import Inbox

NAIVE_EVENTS = 300


class FanOut(Keeping):
    name = "fanout"
    about = "events/s kept and given to five handlers: accepted, claimed, routed; or enqueue_many of five jobs for each"
    systems = (US, "enqueue_many")

    def turn(self, system: str) -> dict[str, float]:
        return {"rate": self._routed() if system == US else self._enqueued(events_at_once=1)}

    def extra(self) -> dict[str, dict[str, float]]:
        """RQ with as many events in one call as we have in a group, which a web process of its kind never has."""
        return {f"enqueue_many, {GROUP} events at once": {"rate": self._enqueued(events_at_once=GROUP)}}

    def _routed(self) -> float:
        """What receiver and worker do with events before a handler sees them: keep a group, claim it, give each its
        runs. Made before the clock starts, as theirs are."""
        inbox = Inbox(self.ours.client)
        many = int(GROUP * 25 * self.pace.seconds)
        deliveries = list(fill.deliveries(self.config, many))
        started = time.perf_counter()
        for at in range(0, many, GROUP):
            inbox.accept(deliveries[at : at + GROUP])
        route_all(inbox)
        took = time.perf_counter() - started
        self.ours.empty()
        return many / took

    def _enqueued(self, *, events_at_once: int) -> float:
        calls = int(NAIVE_EVENTS * self.pace.seconds / events_at_once)
        started = time.perf_counter()
        for _ in range(calls):
            self.enqueue(events_at_once)
        took = time.perf_counter() - started
        self.theirs.empty()
        return calls * events_at_once / took
