"""What fan-out and memory have in common: events that are kept for five handlers, by us and as RQ jobs, each on a
server of its own."""

from __future__ import annotations

import json

from redis import Redis
from rq import Queue

from benchmarks import load, webs
from benchmarks.bout import Bout
from benchmarks.machine import Server
from receiver import config as config_room
from receiver.inbox import Inbox

HANDLERS = tuple(f"bench.handler{number}" for number in range(5))
GROUP = 64


class Keeping(Bout):
    def start(self) -> None:
        self.ours, self.theirs = Server(self.folder, "ours"), Server(self.folder, "theirs")
        for server in (self.ours, self.theirs):
            self.keep(server)
        self.config = config_room.load(webs.product(self.folder, self.ours), {})
        self._queue = Queue(connection=Redis.from_url(self.theirs.url))
        self._event = {"id": "msg_1", "store": load.STORE, "payload": json.loads(load.body())}

    def enqueue(self, events: int = 1) -> None:
        """A job for each handler of so many events, in one call."""
        handler = "benchmarks.comparators.counting.handle"
        self._queue.enqueue_many([Queue.prepare_data(handler, (self._event,)) for _ in HANDLERS * events])


def route_all(inbox: Inbox) -> None:
    """Give every event of the inbox a run for each handler, all left to be claimed."""
    chosen = [(name, "default", False) for name in HANDLERS]
    version = inbox.declarations().version
    while runs := inbox.claim({"": GROUP}, room=GROUP).runs:
        inbox.route([(run, chosen) for run in runs], version)
