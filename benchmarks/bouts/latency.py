"""Latency: from when a delivery was sent to when its handler began.

At 150 a second, which is about half of what the slower side can do.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import queues, webs
from benchmarks.bout import Bout
from benchmarks.machine import OUR_PYTHON, ROOT, Process
from benchmarks.targets import US
from workers.testing.local_system import wait_until

RATE = 150


class Latency(Bout):
    name = "latency"
    about = f"ms from sending a delivery to the start of its handler, {RATE}/s"
    systems = (US, "naive")

    def start(self) -> None:
        self._webs = {US: webs.ours(self.folder, handlers=webs.TIMED), "naive": webs.naive(self.folder)}
        simple = [str(OUR_PYTHON), "-m", "rq.cli", "worker", "--quiet", "--worker-class", "rq.worker.SimpleWorker"]
        ours = [str(OUR_PYTHON), "-m", "workers", "--config", str(self.folder / "ours" / "config.toml")]
        self._worker(US, ours)
        self._worker("naive", [*simple, "--url", self._webs["naive"].server.url])
        for name, web in self._webs.items():
            self.keep(web)
            self._measure(name, seconds=1.0)  # until it is warm

    def _worker(self, name: str, command: list[str]) -> None:
        notes = self._notes(name)
        notes.touch()
        env = {"BENCH_NOTES": str(notes), "PYTHONPATH": str(ROOT)}
        self.keep(Process(command, folder=self.folder, name=f"worker-{name}", env=env))

    def _notes(self, name: str) -> Path:
        return self.folder / f"notes-{name}"

    def turn(self, system: str) -> dict[str, float]:
        return self._measure(system, seconds=self.pace.seconds)

    def _measure(self, system: str, *, seconds: float) -> dict[str, float]:
        sent = self.folder / "sent"
        self._webs[system].run(seconds=seconds, rate=RATE, connections=8, sent=sent)
        times = dict(line.split() for line in sent.read_text().splitlines())
        wait_until(
            lambda: times.keys() <= self._begun(system).keys(),
            within=queues.LONGEST,
            what=f"{system} handles all",
        )
        begun = self._begun(system)
        waits = sorted((int(begun[one]) - int(at)) / 1e6 for one, at in times.items())
        return {"p50": waits[len(waits) // 2], "p99": waits[int(len(waits) * 0.99)]}

    def _begun(self, system: str) -> dict[str, str]:
        return dict(line.split() for line in self._notes(system).read_text().splitlines() if line.count(" ") == 1)
