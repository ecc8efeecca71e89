"""Fan-out: the cost of storing one event and creating a run for each of five handlers."""

from __future__ import annotations

import time

from benchmarks import fill_inbox
from benchmarks.comparisons.storage import GROUP, StorageComparison, route_all
from benchmarks.targets import US
from receiver.inbox import Inbox

NAIVE_EVENTS = 300


class FanOut(StorageComparison):
    name = "fanout"
    description = "events/s accepted, claimed and routed to five handlers, against enqueue_many of five jobs"
    systems = (US, "enqueue_many")

    def turn(self, system: str) -> dict[str, float]:
        return {"rate": self._routed() if system == US else self._enqueued(events_at_once=1)}

    def extra(self) -> dict[str, dict[str, float]]:
        """RQ with as many events in one call as our groups have; its web processes do not group events."""
        return {f"enqueue_many, {GROUP} events at once": {"rate": self._enqueued(events_at_once=GROUP)}}

    def _routed(self) -> float:
        """The work of receiver and worker before a handler is called: accept a group, claim it, create the runs.

        The deliveries are created before the measurement, like the peers' events.
        """
        inbox = Inbox(self.ours.client)
        count = int(GROUP * 25 * self.timing.seconds)
        deliveries = list(fill_inbox.deliveries(self.config, count))
        started = time.perf_counter()
        for at in range(0, count, GROUP):
            inbox.accept(deliveries[at : at + GROUP])
        route_all(inbox)
        took = time.perf_counter() - started
        self.ours.empty()
        return count / took

    def _enqueued(self, *, events_at_once: int) -> float:
        calls = int(NAIVE_EVENTS * self.timing.seconds / events_at_once)
        started = time.perf_counter()
        for _ in range(calls):
            self.enqueue(events_at_once)
        took = time.perf_counter() - started
        self.theirs.empty()
        return calls * events_at_once / took
