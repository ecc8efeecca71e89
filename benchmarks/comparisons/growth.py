"""Growth: the cost of one operation with a thousand open events and with a million.

Both inboxes have the same number of settled events, as any installation has after a while. A thousand events alone fit
into the processor's caches; that case is shown separately.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks import fill_inbox, receivers
from benchmarks.comparison import Comparison
from benchmarks.processes import ROOT, Server
from receiver import config as config_room
from receiver.config import Config
from receiver.inbox import EventQueries, Inbox, Outcome
from receiver.inbox.outcomes import OutcomeKind

T = TypeVar("T")
FEW = 1_000
SETTLED_SHARE = 10
"""The number of settled events is the large backlog divided by this."""
GROUP = 64
SIZE = 256
"""Bytes of a body. A million bodies of 2 KiB might exceed the machine's memory."""


class Growth(Comparison):
    name = "growth"
    description = "microseconds to accept one event, to claim one event, and to list a page of 50 events"
    systems = ("many", "few")

    def start(self) -> None:
        self._servers, self._configs, self._files = {}, {}, {}
        for name in self.systems:
            self._servers[name] = server = Server(self.folder, name)
            self.stop_later(server)
            self._files[name] = file = receivers.write_config(self.folder, server, name=name)
            self._configs[name] = config_room.load(file, {})
        self._open("few", FEW)
        self._without_settled = self.turn("few")
        for name in self.systems:
            self._settle(name, self.timing.backlog // SETTLED_SHARE)
        self._open("many", self.timing.backlog)

    def _open(self, name: str, count: int) -> None:
        started, server = time.monotonic(), self._servers[name]
        _fill_with_two_processes(self._files[name], count)
        server.wait_for_rewrite()
        self.say(f"{count:,} open events after {time.monotonic() - started:.0f} s, {server.memory() >> 20:,} MB")

    def _settle(self, name: str, count: int) -> None:
        """Accept, claim and finish events in groups. The number of open events stays the same."""
        inbox = Inbox(self._servers[name].client)
        for _ in range(count // GROUP):
            self._step(inbox, self._configs[name], {"ingest": [], "claim": []})

    def extra(self) -> dict[str, dict[str, float]]:
        return {"few, no settled events": self._without_settled}

    def turn(self, system: str) -> dict[str, float]:
        """Accept, claim and finish groups, so that the number of open events stays the same."""
        inbox, queries = Inbox(self._servers[system].client), EventQueries(self._servers[system].client)
        spent: dict[str, list[float]] = {"ingest": [], "claim": [], "page": []}
        for _ in range(int(40 * self.timing.seconds)):
            self._step(inbox, self._configs[system], spent)
            _time(spent["page"], lambda: queries.events(limit=50))
        per_call = {"ingest": GROUP, "claim": GROUP, "page": 1}
        return {name: median(seconds) / per_call[name] * 1e6 for name, seconds in spent.items()}

    @staticmethod
    def _step(inbox: Inbox, config: Config, spent: dict[str, list[float]]) -> None:
        group = list(fill_inbox.deliveries(config, GROUP, size=SIZE))
        _time(spent["ingest"], lambda: inbox.accept(group))
        claimed = _time(spent["claim"], lambda: inbox.claim({"": GROUP}, capacity=GROUP))
        inbox.finish([Outcome(run, OutcomeKind.DONE) for run in claimed.runs])


def _time(spent: list[float], call: Callable[[], T]) -> T:
    started = time.perf_counter()
    answer = call()
    spent.append(time.perf_counter() - started)
    return answer


def _fill_with_two_processes(file: Path, count: int) -> None:
    command = [sys.executable, "-m", "benchmarks.fill_inbox", str(file), str(count // 2), str(SIZE)]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    for process in processes:
        if process.wait(600):
            raise RuntimeError("filling the inbox failed")
