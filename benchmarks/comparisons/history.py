"""History: the memory of a moved event, and what moving costs ingest and runs at half of their maximum and at it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import fill_inbox, receivers
from benchmarks.comparison import Comparison
from benchmarks.processes import OUR_PYTHON, ROOT, Process, Server
from receiver import config as config_room
from receiver.inbox import EventQueries, Inbox, Outcome
from receiver.inbox.history_moves import HistoryMoves
from receiver.inbox.outcomes import OutcomeKind
from workers.history.sqlite_history import SqliteHistory
from workers.runtime.history_mover import Mover
from workers.testing.local_system import wait_until

EVENTS, SIZE, GROUP = 20_000, 800, 100
HANDLER = "bench.handle"
LIMIT, LIMIT_BYTES = "at most", 200.0
MOVING, KEPT = "moving", "not moving"
HISTORY = '[history]\nurl = "{}"\nafter = "1s"\n'


class MovedMemory(Comparison):
    name = "moved"
    description = f"bytes in Redis for a settled event with a body of {SIZE} bytes, and what moving it to SQLite takes"
    systems = ("moved", LIMIT)
    share = 0.6

    def start(self) -> None:
        self._server = Server(self.folder, "moved")
        self.stop_later(self._server)
        self._config = config_room.load(receivers.write_config(self.folder, self._server), {})
        self._turns = 0

    def turn(self, system: str) -> dict[str, float]:
        if system == LIMIT:
            return {"bytes": LIMIT_BYTES}
        server = self._server
        server.empty()
        before = server.memory()
        self._settle()
        self._settled_bytes = (server.memory() - before) / EVENTS
        figures = self._move()
        return {"bytes": (server.memory() - before) / EVENTS, **figures}

    def extra(self) -> dict[str, dict[str, float]]:
        return {"settled, not moved": {"bytes": self._settled_bytes}}

    def _settle(self) -> None:
        inbox = Inbox(self._server.client)
        fill_inbox.fill(inbox, self._config, EVENTS, size=SIZE)
        version = inbox.declarations().version
        while events := inbox.claim({"": GROUP}, capacity=GROUP).runs:
            inbox.route([(event, [(HANDLER, "default", False)]) for event in events], version)
        detail = {"result": None, "version": "0123abcd", "ms": 0.123}
        while runs := inbox.claim({HANDLER: GROUP}, capacity=GROUP).runs:
            inbox.finish([Outcome(run, OutcomeKind.DONE, detail) for run in runs])
        self._server.wait_for_rewrite()

    def _move(self) -> dict[str, float]:
        self._turns += 1
        history = SqliteHistory(self.folder / f"history-{self._turns}")
        history.check()
        mover = Mover(self._server.client, history)
        began, own, redis = time.monotonic(), time.process_time(), self._server.process.cpu()
        while mover.move(age=0, known_for=86400).examined:
            pass
        spent = time.monotonic() - began, time.process_time() - own, self._server.process.cpu() - redis
        own_us, redis_us = (seconds / EVENTS * 1e6 for seconds in spent[1:])
        return {"rate": EVENTS / spent[0], "cpu us": own_us, "redis us": redis_us}


class Installation:
    """Web, worker and housekeeper with a Redis server, with or without a history."""

    def __init__(self, folder: Path, history: str) -> None:
        folder.mkdir()
        self.web = receivers.storehooks(folder, more=HISTORY.format(history))
        self._file = folder / "ours" / "config.toml"
        self._count_file = folder / "runs"
        self._count_file.touch()
        env = {"BENCH_COUNT_FILE": str(self._count_file), "PYTHONPATH": str(ROOT)}
        self._worker, self._housekeeper = (
            Process([str(OUR_PYTHON), "-m", module, "--config", str(self._file)], folder=folder, name=module, env=env)
            for module in ("workers.runtime.worker", "workers.runtime.housekeeper")
        )
        self._queries, self._moves = EventQueries(self.web.server.client), HistoryMoves(self.web.server.client)

    @property
    def runs(self) -> int:
        return self._count_file.stat().st_size

    @property
    def waiting(self) -> int:
        """Events that settled and were not moved."""
        return self._moves.waiting(age=0)

    def settle(self, events: int) -> None:
        """Let the worker run this many events, none of which is moved yet."""
        self._housekeeper.signal_all(signal.SIGSTOP)
        command = [sys.executable, "-m", "benchmarks.fill_inbox", str(self._file), str(events)]
        subprocess.run(command, cwd=ROOT, check=True, timeout=120)
        self.wait_until_settled()
        time.sleep(1.0)  # `after`
        self._housekeeper.signal_all(signal.SIGCONT)

    def wait_until_settled(self) -> None:
        wait_until(lambda: not self._queries.counters().total["open"], within=120, what="all events are settled")

    @contextmanager
    def run_rate(self) -> Iterator[list[float]]:
        """Measures the runs in a second, from the first to the last."""
        ended, seen, rates = threading.Event(), [(time.monotonic(), self.runs)], list[float]()

        def watch() -> None:
            while not ended.wait(0.005):
                if (runs := self.runs) != seen[-1][1]:
                    seen.append((time.monotonic(), runs))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield rates
            self.wait_until_settled()
        finally:
            ended.set()
            thread.join()
        (began, first), (end, last) = seen[1], seen[-1]
        rates.append((last - first) / (end - began))

    def stop(self) -> None:
        for process in (self._housekeeper, self._worker, self.web):
            process.stop()


class Moving(Comparison):
    name = "moving"
    description = "requests/s and runs/s, while events are moved to SQLite and without; then at the maximum rate"
    systems = (MOVING, KEPT)

    def start(self) -> None:
        self._installations = {
            name: Installation(self.folder / name.replace(" ", "-"), "sqlite" if name == MOVING else "off")
            for name in self.systems
        }
        for one in self._installations.values():
            self.stop_later(one)
            one.web.run(seconds=1.0)
            one.wait_until_settled()
        kept = self._installations[KEPT].web
        self._maximum = median(kept.run(seconds=self.timing.seconds)["rate"] for _ in range(3))
        self.say(f"maximum {self._maximum:,.0f}/s")

    def turn(self, system: str) -> dict[str, float]:
        one = self._installations[system]
        one.wait_until_settled()
        one.settle(int(self._maximum * self.timing.seconds))
        half = self._load(one, self._maximum / 2)
        full = self._load(one, 0.0)
        one.web.server.trim()
        return {
            "rate": half["rate"],
            "runs": half["runs"],
            "p99": half["p99"],
            "moved": half["moved"],
            "maximum": full["rate"],
            "runs at maximum": full["runs"],
            "moved at maximum": full["moved"],
        }

    def _load(self, one: Installation, rate: float) -> dict[str, float]:
        """Events that are left in Redis although they have settled were not moved."""
        before, runs = one.waiting, one.runs
        with one.run_rate() as rates:
            began = time.monotonic()
            found = one.web.run(seconds=self.timing.seconds, rate=rate)
            took = time.monotonic() - began
            moved = before + one.runs - runs - one.waiting
        return {**found, "runs": rates[0], "moved": moved / took}
