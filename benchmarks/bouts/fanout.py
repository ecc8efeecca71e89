"""Fan-out: what it costs to keep one event and give it to five handlers."""

from __future__ import annotations

import json
import time

from redis import Redis
from rq import Queue

from benchmarks import fill, load, webs
from benchmarks.bout import Bout
from benchmarks.machine import Server
from benchmarks.targets import US
from receiver import config as config_room
from receiver.inbox import Inbox

HANDLERS = tuple(f"bench.handler{number}" for number in range(5))
GROUP = 64
NAIVE_EVENTS = 300


class FanOut(Bout):
    name = "fanout"
    about = "events/s kept and given to five handlers: accepted, claimed, routed; or enqueue_many of five jobs for each"
    systems = (US, "enqueue_many")

    def start(self) -> None:
        self._ours, self._theirs = Server(self.folder, "ours"), Server(self.folder, "theirs")
        for server in (self._ours, self._theirs):
            self.keep(server)
        self._config = config_room.load(webs.product(self.folder, self._ours), {})

    def turn(self, system: str) -> dict[str, float]:
        return {"rate": self._routed() if system == US else self._enqueued(events_at_once=1)}

    def extra(self) -> dict[str, dict[str, float]]:
        """RQ with as many events in one call as we have in a group, which a web process of its kind never has."""
        return {f"enqueue_many, {GROUP} events at once": {"rate": self._enqueued(events_at_once=GROUP)}}

    def _routed(self) -> float:
        """What receiver and worker do with events before a handler sees them: keep a group, claim it, give each its
        runs. Made before the clock starts, as theirs are."""
        inbox = Inbox(self._ours.client)
        many = int(GROUP * 25 * self.pace.seconds)
        deliveries = list(fill.deliveries(self._config, many))
        started = time.perf_counter()
        for at in range(0, many, GROUP):
            inbox.accept(deliveries[at : at + GROUP])
        route_all(inbox)
        took = time.perf_counter() - started
        self._ours.empty()
        return many / took

    def _enqueued(self, *, events_at_once: int) -> float:
        event = {"id": "msg_1", "store": load.STORE, "payload": json.loads(load.body())}
        queue = Queue(connection=Redis.from_url(self._theirs.url))
        handler = "benchmarks.comparators.counting.handle"
        calls = int(NAIVE_EVENTS * self.pace.seconds / events_at_once)
        started = time.perf_counter()
        for _ in range(calls):
            queue.enqueue_many([Queue.prepare_data(handler, (event,)) for _ in HANDLERS * events_at_once])
        took = time.perf_counter() - started
        self._theirs.empty()
        return calls * events_at_once / took


def route_all(inbox: Inbox) -> None:
    """Give every event of the inbox a run for each handler, all left to be claimed."""
    chosen = [(name, "default", False) for name in HANDLERS]
    version = inbox.declarations().version
    while runs := inbox.claim({"": GROUP}, room=GROUP).runs:
        inbox.route([(run, chosen) for run in runs], version)
