"""The base of the fan-out and memory comparisons: events for five handlers, in our inbox and as RQ jobs.

Each system has its own Redis server.
"""

from __future__ import annotations

import json

from redis import Redis
from rq import Queue

from benchmarks import load, receivers
from benchmarks.comparison import Comparison
from benchmarks.processes import Server
from receiver import config as config_room
from receiver.inbox import Inbox

HANDLERS = tuple(f"bench.handler{number}" for number in range(5))
GROUP = 64


class StorageComparison(Comparison):
    def start(self) -> None:
        self.ours, self.theirs = Server(self.folder, "ours"), Server(self.folder, "theirs")
        for server in (self.ours, self.theirs):
            self.stop_later(server)
        self.config = config_room.load(receivers.write_config(self.folder, self.ours), {})
        self._queue = Queue(connection=Redis.from_url(self.theirs.url))
        self._event = {"id": "msg_1", "store": load.STORE, "payload": json.loads(load.body())}

    def enqueue(self, events: int = 1) -> None:
        """Enqueue a job for each handler and event in one call."""
        handler = "benchmarks.peers.run_counter.handle"
        self._queue.enqueue_many([Queue.prepare_data(handler, (self._event,)) for _ in HANDLERS * events])


def route_all(inbox: Inbox) -> None:
    """Create a run for each handler and event of the inbox. The runs are ready and not claimed."""
    chosen = [(name, "default", False) for name in HANDLERS]
    version = inbox.declarations().version
    while runs := inbox.claim({"": GROUP}, capacity=GROUP).runs:
        inbox.route([(run, chosen) for run in runs], version)
