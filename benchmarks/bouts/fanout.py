"""Fan-out: what it costs to give one event to five handlers."""

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
    about = "events/s given to five handlers: claimed and routed in groups, or enqueue_many of five jobs"
    systems = (US, "enqueue_many")

    def start(self) -> None:
        self._ours, self._theirs = Server(self.folder, "ours"), Server(self.folder, "theirs")
        for server in (self._ours, self._theirs):
            self.keep(server)
        self._config = config_room.load(webs.product(self.folder, self._ours), {})

    def turn(self, system: str) -> dict[str, float]:
        return {"rate": self._routed() if system == US else self._enqueued()}

    def _routed(self) -> float:
        """What a worker does with events nobody has looked at yet: claim a group, give each its runs."""
        inbox = Inbox(self._ours.client)
        many = int(GROUP * 25 * self.pace.seconds)
        fill.fill(inbox, self._config, many)
        started = time.perf_counter()
        route_all(inbox)
        took = time.perf_counter() - started
        self._ours.empty()
        return many / took

    def _enqueued(self) -> float:
        event = {"id": "msg_1", "store": load.STORE, "payload": json.loads(load.body())}
        queue = Queue(connection=Redis.from_url(self._theirs.url))
        handler = "benchmarks.comparators.counting.handle"
        many = int(NAIVE_EVENTS * self.pace.seconds)
        started = time.perf_counter()
        for _ in range(many):
            queue.enqueue_many([Queue.prepare_data(handler, (event,)) for _ in HANDLERS])
        took = time.perf_counter() - started
        self._theirs.empty()
        return many / took


def route_all(inbox: Inbox) -> None:
    """Give every event of the inbox a run for each handler, all left to be claimed."""
    chosen = [(name, "default", False) for name in HANDLERS]
    version = inbox.declarations().version
    while runs := inbox.claim({"": GROUP}, room=GROUP).runs:
        inbox.route([(run, chosen) for run in runs], version)
