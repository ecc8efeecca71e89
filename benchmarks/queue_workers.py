"""The workers that are compared: how each is started, how its queue is filled, and its runs per second.

A worker is started once. For each turn it is stopped by a signal, its queue is filled, and it is continued. So neither
start-up nor filling is measured.
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
from benchmarks.processes import OUR_PYTHON, PEERS_PYTHON, ROOT, Process, Server
from benchmarks.receivers import write_config
from benchmarks.targets import US
from workers.testing.local_system import wait_until

WARM_UP_SECONDS = 0.3
TIMEOUT = 60.0


class QueueWorker(ABC):
    """A running worker with its Redis server. The size of its count file is the number of runs that it has started."""

    def __init__(self, name: str, folder: Path, command: list[str], *, server: Server, count_file: Path) -> None:
        self.name = name
        self.server = server
        self.count_file = count_file
        self.folder = folder
        self._estimated_rate = 200.0
        count_file.touch()
        self.env = {"BENCH_REDIS": server.url, "BENCH_COUNT_FILE": str(count_file), "PYTHONPATH": str(ROOT)}
        self.process = Process(command, folder=folder, name=f"worker-{name.replace(' ', '-')}", env=self.env)

    @abstractmethod
    def fill(self, runs: int) -> None:
        """Add this many runs to its queue."""

    def count(self) -> int:
        return self.count_file.stat().st_size

    def _wait_for_runs(self, runs: int, what: str) -> None:
        message = f"{self.name} {what}; {self.process.tail()}"
        wait_until(lambda: self.count() >= runs, within=TIMEOUT, what=message)

    def warm_up(self, runs: int = 400) -> None:
        """Execute some runs, until the worker has measured how long its handlers take."""
        self.fill(runs)
        self._wait_for_runs(runs, "has started")

    def run(self, *, seconds: float) -> dict[str, float]:
        """Fill the queue with work for `seconds`, continue the worker, and measure while it is busy.

        If the queue is empty too early, the worker is faster than estimated: repeat with a fuller queue.
        """
        while True:
            figures = self._run(seconds)
            if figures.pop("seconds") > seconds / 2:
                self._estimated_rate = figures["rate"]
                return figures
            self._estimated_rate = max(self._estimated_rate * 3, figures["rate"])

    def _run(self, seconds: float) -> dict[str, float]:
        self.process.signal_all(signal.SIGSTOP)
        start = self.count()
        queued = int(self._estimated_rate * (seconds + WARM_UP_SECONDS) * 1.3) + 100
        self.fill(queued)
        self.process.signal_all(signal.SIGCONT)
        self._wait_for_runs(start + 11, "continues")
        time.sleep(WARM_UP_SECONDS)
        first, began, cpu, redis = self.count(), time.monotonic(), self.process.cpu(), self.server.process.cpu()
        while time.monotonic() < began + seconds and self.count() < start + queued - 64:
            time.sleep(0.005)
        runs, took = self.count() - first, time.monotonic() - began
        spent = self.process.cpu() - cpu, self.server.process.cpu() - redis
        self._wait_for_runs(start + queued, "ends")
        time.sleep(0.1)
        us_per_run = 1e6 / max(runs, 1)
        rate = runs / max(took, 0.001)
        return {"seconds": took, "rate": rate, "cpu us": spent[0] * us_per_run, "redis us": spent[1] * us_per_run}

    def stop(self) -> None:
        self.process.stop()
        self.server.stop()


class OwnWorker(QueueWorker):
    """`python -m workers`: worker, child processes and housekeeper."""

    def __init__(self, folder: Path, *, name: str = US, resources: int = 1, **options: Any) -> None:
        server = Server(folder, f"queue-{name}")
        file = write_config(folder, server, name=f"queue-of-{name}", **options)
        command = [str(OUR_PYTHON), "-m", "workers", "--config", str(file)]
        super().__init__(name, folder, command, server=server, count_file=folder / f"runs-{name}")
        self._file, self._resources = file, resources

    def fill(self, runs: int) -> None:
        command = [sys.executable, "-m", "benchmarks.fill_inbox", str(self._file), str(runs), "2048"]
        command.append(str(self._resources))
        subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT)


class PeerWorker(QueueWorker):
    """A peer, whose own program fills its queue."""

    def __init__(
        self, name: str, folder: Path, python: Path, module: str, worker: Callable[[Server], list[str]]
    ) -> None:
        server = Server(folder, f"queue-{module}-{name.replace(' ', '-')}")
        super().__init__(name, folder, worker(server), server=server, count_file=folder / f"runs-{name}")
        self._filler = [str(python), "-m", "benchmarks.peers.fill_queue", module]

    def fill(self, runs: int) -> None:
        event = json.dumps({"id": "msg_1", "store": load.STORE, "payload": json.loads(load.body())})
        env = {**self.env, "BENCH_COUNT_FILE": "/dev/null"}
        subprocess.run([*self._filler, str(runs)], input=event, text=True, cwd=ROOT, env=env, check=True, timeout=60)


def rq(folder: Path, kind: str) -> PeerWorker:
    """RQ's worker: `Worker` forks for each job, `SimpleWorker` does not."""
    name = "rq simple" if kind == "SimpleWorker" else "rq fork"
    command = [str(OUR_PYTHON), "-m", "rq.cli", "worker", "--quiet", "--worker-class", f"rq.worker.{kind}", "--url"]
    return PeerWorker(name, folder, OUR_PYTHON, "rq_app", lambda server: [*command, server.url])


def celery(folder: Path) -> PeerWorker:
    app = "benchmarks.peers.celery_app"
    command = [str(PEERS_PYTHON), "-m", "celery", "-A", app, "worker", "-P", "solo", "-l", "WARNING"]
    return PeerWorker("celery", folder, PEERS_PYTHON, "celery_app", lambda _: command)


def dramatiq(folder: Path) -> PeerWorker:
    command = [str(PEERS_PYTHON), "-m", "dramatiq", "benchmarks.peers.dramatiq_app", "--processes", "1"]
    return PeerWorker("dramatiq", folder, PEERS_PYTHON, "dramatiq_app", lambda _: command)


def huey(folder: Path) -> PeerWorker:
    consumer = str(PEERS_PYTHON.parent / "huey_consumer")
    command = [consumer, "benchmarks.peers.huey_app.huey", "--quiet"]
    return PeerWorker("huey", folder, PEERS_PYTHON, "huey_app", lambda _: command)
