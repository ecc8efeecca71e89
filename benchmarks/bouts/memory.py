"""Memory: bytes in Redis for one event of 2 KiB, with indexes and marks: open with five handlers, and settled."""

from __future__ import annotations

import json

from redis import Redis
from rq import Queue

from benchmarks import fill, load, webs
from benchmarks.bout import Bout
from benchmarks.bouts.fanout import GROUP, HANDLERS, route_all
from benchmarks.machine import Server
from benchmarks.targets import US
from receiver import config as config_room
from receiver.inbox import Inbox, Outcome

EVENTS = 1_000


class Memory(Bout):
    name = "memory"
    about = "bytes in Redis for an open event of 2 KiB with five handlers"
    systems = (US, "naive")
    share = 0.6

    def start(self) -> None:
        self._ours, self._theirs = Server(self.folder, "ours"), Server(self.folder, "theirs")
        for server in (self._ours, self._theirs):
            self.keep(server)
        self._config = config_room.load(webs.product(self.folder, self._ours), {})

    def turn(self, system: str) -> dict[str, float]:
        return self._of_ours() if system == US else self._of_theirs()

    def _of_ours(self) -> dict[str, float]:
        self._ours.empty()
        before, inbox = self._ours.memory(), Inbox(self._ours.client)
        fill.fill(inbox, self._config, EVENTS)
        kept = self._ours.memory()
        route_all(inbox)
        with_runs = self._ours.memory()
        _end_all(inbox)
        settled = self._ours.memory()
        found = {"accepted": kept, "bytes": with_runs, "settled": settled, "settled, body gone": self._worn(inbox)}
        return {name: (used - before) / EVENTS for name, used in found.items()}

    def _worn(self, inbox: Inbox) -> int:
        while inbox.trim(bodies=-1, records=1e9)[0]:
            pass
        return self._ours.memory()

    def _of_theirs(self) -> dict[str, float]:
        self._theirs.empty()
        before = self._theirs.memory()
        client = Redis.from_url(self._theirs.url)
        queue = Queue(connection=client)
        event = {"id": "msg_1", "store": load.STORE, "payload": json.loads(load.body())}
        handler = "benchmarks.comparators.counting.handle"
        for number in range(EVENTS):
            client.set(f"seen:{load.STORE}:msg_{number:014d}", 1, ex=604800)
            queue.enqueue_many([Queue.prepare_data(handler, (event,)) for _ in HANDLERS])
        return {"bytes": (self._theirs.memory() - before) / EVENTS}


def _end_all(inbox: Inbox) -> None:
    detail = {"result": None, "version": "0123abcd", "ms": 0.123}
    while runs := inbox.claim(dict.fromkeys(HANDLERS, GROUP), room=5 * GROUP).runs:
        inbox.finish([Outcome(run, "done", detail) for run in runs])
