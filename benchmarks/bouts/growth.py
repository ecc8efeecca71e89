"""Growth: what one step costs with a thousand open events, and with a million.

Both have the same history of settled ones, as any receiver has that did not start today: a thousand events and nothing
else are all in the processor's caches, which is shown beside it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks import fill, webs
from benchmarks.bout import Bout
from benchmarks.machine import ROOT, Server
from receiver import config as config_room
from receiver.config import Config
from receiver.inbox import EventQueries, Inbox, Outcome
from receiver.inbox.outcomes import OutcomeKind

T = TypeVar("T")
FEW = 1_000
HISTORY = 10
"""One in so many of the open events of `many` are settled ones that both have."""
GROUP = 64
SIZE = 256
"""Bytes of a body: a million of 2 KiB would measure how much memory the machine has."""


class Growth(Bout):
    name = "growth"
    about = "microseconds for each: ingest and claim of one event, one page of 50 events"
    systems = ("many", "few")

    def start(self) -> None:
        self._servers, self._configs, self._files = {}, {}, {}
        for name in self.systems:
            self._servers[name] = server = Server(self.folder, name)
            self.keep(server)
            self._files[name] = file = webs.product(self.folder, server, name=name)
            self._configs[name] = config_room.load(file, {})
        self._open("few", FEW)
        self._fresh = self.turn("few")
        for name in self.systems:
            self._settle(name, self.pace.many // HISTORY)
        self._open("many", self.pace.many)

    def _open(self, name: str, many: int) -> None:
        started, server = time.monotonic(), self._servers[name]
        _fill_by_two(self._files[name], many)
        server.settle()
        self.say(f"{many:,} open events after {time.monotonic() - started:.0f} s, {server.memory() >> 20:,} MB")

    def _settle(self, name: str, many: int) -> None:
        """Accepted, claimed and done, in groups: open ones stay as many as they are."""
        inbox = Inbox(self._servers[name].client)
        for _ in range(many // GROUP):
            self._step(inbox, self._configs[name], {"ingest": [], "claim": []})

    def extra(self) -> dict[str, dict[str, float]]:
        return {"few, and nothing settled": self._fresh}

    def turn(self, system: str) -> dict[str, float]:
        """Groups are accepted, claimed and settled in turns, so that the number of open events stays."""
        inbox, ledger = Inbox(self._servers[system].client), EventQueries(self._servers[system].client)
        spent: dict[str, list[float]] = {"ingest": [], "claim": [], "page": []}
        for _ in range(int(40 * self.pace.seconds)):
            self._step(inbox, self._configs[system], spent)
            _time(spent["page"], lambda: ledger.events(limit=50))
        each = {"ingest": GROUP, "claim": GROUP, "page": 1}
        return {name: median(seconds) / each[name] * 1e6 for name, seconds in spent.items()}

    @staticmethod
    def _step(inbox: Inbox, config: Config, spent: dict[str, list[float]]) -> None:
        group = list(fill.deliveries(config, GROUP, size=SIZE))
        _time(spent["ingest"], lambda: inbox.accept(group))
        claimed = _time(spent["claim"], lambda: inbox.claim({"": GROUP}, room=GROUP))
        inbox.finish([Outcome(run, OutcomeKind.DONE) for run in claimed.runs])


def _time(spent: list[float], call: Callable[[], T]) -> T:
    started = time.perf_counter()
    answer = call()
    spent.append(time.perf_counter() - started)
    return answer


def _fill_by_two(file: Path, many: int) -> None:
    command = [sys.executable, "-m", "benchmarks.fill", str(file), str(many // 2), str(SIZE)]
    both = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    for one in both:
        if one.wait(600):
            raise RuntimeError("filling failed")
