"""Growth: what one step costs with a thousand open events, and with a million."""

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
from receiver.inbox import Inbox, Ledger, Outcome

T = TypeVar("T")
FEW = 1_000
GROUP = 64
SIZE = 256
"""Bytes of a body: a million of 2 KiB would measure how much memory the machine has."""


class Growth(Bout):
    name = "growth"
    about = "microseconds for each: ingest and claim of one event, one page of 50 events"
    systems = ("many", "few")

    def start(self) -> None:
        self._servers, self._configs = {}, {}
        for name, many in (("few", FEW), ("many", self.pace.many)):
            self._servers[name] = server = Server(self.folder, name)
            self.keep(server)
            file = webs.product(self.folder, server, name=name)
            self._configs[name] = config_room.load(file, {})
            started = time.monotonic()
            _fill_by_two(file, many)
            server.settle()
            self.say(f"{many:,} open events after {time.monotonic() - started:.0f} s, {server.memory() >> 20:,} MB")

    def turn(self, system: str) -> dict[str, float]:
        """Groups are accepted, claimed and settled in turns, so that the number of open events stays."""
        inbox, ledger = Inbox(self._servers[system].client), Ledger(self._servers[system].client)
        spent: dict[str, list[float]] = {"ingest": [], "claim": [], "page": []}
        for _ in range(int(40 * self.pace.seconds)):
            group = list(fill.deliveries(self._configs[system], GROUP, size=SIZE))
            _time(spent["ingest"], lambda group=group: inbox.accept(group))  # type: ignore[misc]
            claimed = _time(spent["claim"], lambda: inbox.claim({"": GROUP}, room=GROUP))
            _time(spent["page"], lambda: ledger.events(limit=50))
            inbox.finish([Outcome(run, "done", {}) for run in claimed.runs])
        self._servers[system].trim()
        each = {"ingest": GROUP, "claim": GROUP, "page": 1}
        return {name: median(seconds) / each[name] * 1e6 for name, seconds in spent.items()}


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
