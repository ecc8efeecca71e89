"""Latency: the time from sending a delivery to the start of its handler.

The rate of 150 per second is about half of what the slower system can handle.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import queue_workers, receivers
from benchmarks.comparison import Comparison
from benchmarks.processes import OUR_PYTHON, ROOT, Process
from benchmarks.targets import US
from workers.testing.local_system import wait_until

RATE = 150


class Latency(Comparison):
    name = "latency"
    description = f"ms from sending a delivery to the start of its handler, {RATE}/s"
    systems = (US, "naive")

    def start(self) -> None:
        self._receivers = {
            US: receivers.storehooks(self.folder, handlers=receivers.TIMED_HANDLER),
            "naive": receivers.naive(self.folder),
        }
        simple = [str(OUR_PYTHON), "-m", "rq.cli", "worker", "--quiet", "--worker-class", "rq.worker.SimpleWorker"]
        ours = [str(OUR_PYTHON), "-m", "workers", "--config", str(self.folder / "ours" / "config.toml")]
        self._worker(US, ours)
        self._worker("naive", [*simple, "--url", self._receivers["naive"].server.url])
        for name, web in self._receivers.items():
            self.stop_later(web)
            self._measure(name, seconds=1.0)  # warm-up

    def _worker(self, name: str, command: list[str]) -> None:
        starts = self._starts_file(name)
        starts.touch()
        env = {"BENCH_COUNT_FILE": str(starts), "PYTHONPATH": str(ROOT)}
        self.stop_later(Process(command, folder=self.folder, name=f"worker-{name}", env=env))

    def _starts_file(self, name: str) -> Path:
        return self.folder / f"starts-{name}"

    def turn(self, system: str) -> dict[str, float]:
        return self._measure(system, seconds=self.timing.seconds)

    def _measure(self, system: str, *, seconds: float) -> dict[str, float]:
        sent = self.folder / "sent"
        self._receivers[system].run(seconds=seconds, rate=RATE, connections=8, sent=sent)
        times = dict(line.split() for line in sent.read_text().splitlines())
        wait_until(
            lambda: times.keys() <= self._started(system).keys(),
            within=queue_workers.TIMEOUT,
            what=f"{system} has handled all deliveries",
        )
        started = self._started(system)
        latencies = sorted((int(started[id_]) - int(sent_at)) / 1e6 for id_, sent_at in times.items())
        return {"p50": latencies[len(latencies) // 2], "p99": latencies[int(len(latencies) * 0.99)]}

    def _started(self, system: str) -> dict[str, str]:
        return dict(line.split() for line in self._starts_file(system).read_text().splitlines() if line.count(" ") == 1)
