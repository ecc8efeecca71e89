"""Working: how many runs of a no-op handler a worker ends in a second; two workers beside one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import queues
from benchmarks.bout import Bout
from benchmarks.targets import US
from benchmarks.webs import SLEEPY

STARTS: dict[str, Callable[[Path], queues.Workers]] = {
    US: queues.Ours,
    "rq simple": lambda folder: queues.rq(folder, "SimpleWorker"),
    "celery": queues.celery,
    "dramatiq": queues.dramatiq,
    "huey": queues.huey,
}


class Working(Bout):
    name = "workers"
    about = "runs/s of a no-op handler, 2 KiB events, one worker (ours has four child processes, each a process)"
    systems = tuple(STARTS)

    def start(self) -> None:
        self._workers = {}
        for name in self.systems:
            self._workers[name] = STARTS[name](self.folder)
            self.keep(self._workers[name])
            self._workers[name].warm()
            self.say(f"{name} works")

    def turn(self, system: str) -> dict[str, float]:
        found = self._workers[system].run(seconds=self.pace.seconds)
        if system == US:
            self._workers[US].server.trim()
        return found

    def extra(self) -> dict[str, dict[str, float]]:
        """Ours with every write on disk before it is answered, and with one child process; RQ's worker that forks."""
        ours = self._workers[US]
        ours.server.sync("always")
        found = {f"{US}, fsync always": self.turn(US)}
        alone = queues.Ours(self.folder, name="one-child", child_processes=1)
        self.keep(alone)
        alone.warm()
        found[f"{US}, one child process"] = alone.run(seconds=self.pace.seconds)
        forking = queues.rq(self.folder, "Worker")
        self.keep(forking)
        forking.warm(20)
        found["rq fork"] = forking.run(seconds=self.pace.seconds)
        return found


class TwoWorkers(Bout):
    name = "two"
    about = "runs/s of a handler that sleeps 2 ms, one worker process and two"
    systems = ("two", "one")

    def start(self) -> None:
        self._workers = {}
        for number, name in enumerate(("one", "two"), 1):
            self._workers[name] = queues.Ours(self.folder, name=name, handlers=SLEEPY, workers=number)
            self.keep(self._workers[name])
            self._workers[name].warm()

    def turn(self, system: str) -> dict[str, float]:
        found = self._workers[system].run(seconds=self.pace.seconds)
        self._workers[system].server.trim()
        return found
