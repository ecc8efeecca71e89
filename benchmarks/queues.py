"""The workers that are compared: how each is started and filled, and how many runs it ends in a second.

A worker is started once. For each turn it is stopped by a signal, its queue is filled, and it is let go on: so
nobody's start-up is measured, and filling takes nothing from working.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import load
from benchmarks.machine import OUR_PYTHON, ROOT, THEIR_PYTHON, Process, Server
from benchmarks.targets import US
from benchmarks.webs import product
from workers.testing.local_system import wait_until

WARM_UP = 0.3
LONGEST = 60.0


class Workers(ABC):
    """A worker at work, with its server; the size of its notes is how many runs it has begun."""

    def __init__(self, name: str, folder: Path, command: list[str], *, server: Server, notes: Path) -> None:
        self.name = name
        self.server = server
        self.notes = notes
        self.folder = folder
        self._speed = 200.0
        notes.touch()
        self.env = {"BENCH_REDIS": server.url, "BENCH_NOTES": str(notes), "PYTHONPATH": str(ROOT)}
        self.process = Process(command, folder=folder, name=f"worker-{name.replace(' ', '-')}", env=self.env)

    @abstractmethod
    def fill(self, many: int) -> None:
        """Give it so many to do."""

    def count(self) -> int:
        return self.notes.stat().st_size

    def _come_to(self, many: int, what: str) -> None:
        said = f"{self.name} {what}; {self.process.tail()}"
        wait_until(lambda: self.count() >= many, within=LONGEST, what=said)

    def warm(self, many: int = 400) -> None:
        """Until it works, and has learned what its handlers cost."""
        self.fill(many)
        self._come_to(many, "works")

    def run(self, *, seconds: float) -> dict[str, float]:
        """Fill it for so long, let it run, and measure between two moments at which it is busy.

        Where it was done before there was anything to measure, it is faster than thought: filled for more, again.
        """
        while True:
            found = self._run(seconds)
            if found.pop("seconds") > seconds / 2:
                self._speed = found["rate"]
                return found
            self._speed = max(self._speed * 3, found["rate"])

    def _run(self, seconds: float) -> dict[str, float]:
        self.process.signal_all(signal.SIGSTOP)
        start = self.count()
        many = int(self._speed * (seconds + WARM_UP) * 1.3) + 100
        self.fill(many)
        self.process.signal_all(signal.SIGCONT)
        self._come_to(start + 11, "goes on")
        time.sleep(WARM_UP)
        first, began, cpu, redis = self.count(), time.monotonic(), self.process.cpu(), self.server.process.cpu()
        while time.monotonic() < began + seconds and self.count() < start + many - 64:
            time.sleep(0.005)
        runs, took = self.count() - first, time.monotonic() - began
        spent = self.process.cpu() - cpu, self.server.process.cpu() - redis
        self._come_to(start + many, "ends")
        time.sleep(0.1)
        each = 1e6 / max(runs, 1)
        rate = runs / max(took, 0.001)
        return {"seconds": took, "rate": rate, "cpu us": spent[0] * each, "redis us": spent[1] * each}

    def stop(self) -> None:
        self.process.stop()
        self.server.stop()


class Ours(Workers):
    """`python -m workers`: worker, child processes, housekeeper."""

    def __init__(self, folder: Path, *, name: str = US, **how: Any) -> None:
        server = Server(folder, f"queue-{name}")
        file = product(folder, server, name=f"queue-of-{name}", **how)
        command = [str(OUR_PYTHON), "-m", "workers", "--config", str(file)]
        super().__init__(name, folder, command, server=server, notes=folder / f"notes-{name}")
        self._file = file

    def fill(self, many: int) -> None:
        command = [sys.executable, "-m", "benchmarks.fill", str(self._file), str(many)]
        subprocess.run(command, cwd=ROOT, check=True, timeout=LONGEST)


class Theirs(Workers):
    """A comparator; its own program fills its queue."""

    def __init__(
        self, name: str, folder: Path, python: Path, module: str, worker: Callable[[Server], list[str]]
    ) -> None:
        server = Server(folder, f"queue-{module}-{name.replace(' ', '-')}")
        super().__init__(name, folder, worker(server), server=server, notes=folder / f"notes-{name}")
        self._filler = [str(python), "-m", "benchmarks.comparators.send", module]

    def fill(self, many: int) -> None:
        event = json.dumps({"id": "msg_1", "store": load.STORE, "payload": json.loads(load.body())})
        env = {**self.env, "BENCH_NOTES": "/dev/null"}
        subprocess.run([*self._filler, str(many)], input=event, text=True, cwd=ROOT, env=env, check=True, timeout=60)


def rq(folder: Path, kind: str) -> Theirs:
    """RQ's own worker: `Worker` forks for each job, `SimpleWorker` does not."""
    name = "rq simple" if kind == "SimpleWorker" else "rq fork"
    command = [str(OUR_PYTHON), "-m", "rq.cli", "worker", "--quiet", "--worker-class", f"rq.worker.{kind}", "--url"]
    return Theirs(name, folder, OUR_PYTHON, "rq_app", lambda server: [*command, server.url])


def celery(folder: Path) -> Theirs:
    app = "benchmarks.comparators.celery_app"
    command = [str(THEIR_PYTHON), "-m", "celery", "-A", app, "worker", "-P", "solo", "-l", "WARNING"]
    return Theirs("celery", folder, THEIR_PYTHON, "celery_app", lambda _: command)


def dramatiq(folder: Path) -> Theirs:
    command = [str(THEIR_PYTHON), "-m", "dramatiq", "benchmarks.comparators.dramatiq_app", "--processes", "1"]
    return Theirs("dramatiq", folder, THEIR_PYTHON, "dramatiq_app", lambda _: command)


def huey(folder: Path) -> Theirs:
    consumer = str(THEIR_PYTHON.parent / "huey_consumer")
    command = [consumer, "benchmarks.comparators.huey_app.huey", "--quiet"]
    return Theirs("huey", folder, THEIR_PYTHON, "huey_app", lambda _: command)
