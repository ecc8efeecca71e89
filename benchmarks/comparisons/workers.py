"""Workers: the runs of a no-op handler per second, ordered and not, and the throughput of two workers against one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import queue_workers
from benchmarks.comparison import Comparison
from benchmarks.receivers import NO_OP_HANDLER, ORDERED_HANDLER, SLEEPING_HANDLER
from benchmarks.targets import US

STARTS: dict[str, Callable[[Path], queue_workers.QueueWorker]] = {
    US: queue_workers.OwnWorker,
    "rq simple": lambda folder: queue_workers.rq(folder, "SimpleWorker"),
    "celery": queue_workers.celery,
    "dramatiq": queue_workers.dramatiq,
    "huey": queue_workers.huey,
}


class NoOpRuns(Comparison):
    name = "workers"
    description = "runs/s of a no-op handler, 2 KiB events, one worker (storehooks: with four child processes)"
    systems = tuple(STARTS)

    def start(self) -> None:
        self._workers = {}
        for name in self.systems:
            self._workers[name] = STARTS[name](self.folder)
            self.stop_later(self._workers[name])
            self._workers[name].warm_up()
            self.say(f"{name} is running")

    def turn(self, system: str) -> dict[str, float]:
        found = self._workers[system].run(seconds=self.timing.seconds)
        if system == US:
            self._workers[US].server.trim()
        return found

    def extra(self) -> dict[str, dict[str, float]]:
        """storehooks with appendfsync always, and with one child process; RQ's forking worker."""
        ours = self._workers[US]
        ours.server.set_appendfsync("always")
        found = {f"{US}, fsync always": self.turn(US)}
        alone = queue_workers.OwnWorker(self.folder, name="one-child", child_processes=1)
        self.stop_later(alone)
        alone.warm_up()
        found[f"{US}, one child process"] = alone.run(seconds=self.timing.seconds)
        forking = queue_workers.rq(self.folder, "Worker")
        self.stop_later(forking)
        forking.warm_up(20)
        found["rq fork"] = forking.run(seconds=self.timing.seconds)
        return found


class Ordered(Comparison):
    name = "order"
    description = "runs/s of a no-op handler with order_by, over 1,000 keys and over one, against the same without"
    systems = ("1,000 keys", "not ordered", "one key", "one child process")

    def start(self) -> None:
        self._workers = {
            name: queue_workers.OwnWorker(
                self.folder,
                name=name.replace(" ", "-"),
                handlers=ORDERED_HANDLER if "key" in name else NO_OP_HANDLER,
                child_processes=1 if name == "one child process" else 4,
                resources=1000 if name == "1,000 keys" else 1,
            )
            for name in self.systems
        }
        for worker in self._workers.values():
            self.stop_later(worker)
            worker.warm_up()

    def turn(self, system: str) -> dict[str, float]:
        found = self._workers[system].run(seconds=self.timing.seconds)
        self._workers[system].server.trim()
        return found


class TwoWorkers(Comparison):
    name = "two"
    description = "runs/s of a handler that sleeps 2 ms, one worker process and two"
    systems = ("two", "one")

    def start(self) -> None:
        self._workers = {}
        for number, name in enumerate(("one", "two"), 1):
            self._workers[name] = queue_workers.OwnWorker(
                self.folder, name=name, handlers=SLEEPING_HANDLER, workers=number
            )
            self.stop_later(self._workers[name])
            self._workers[name].warm_up()

    def turn(self, system: str) -> dict[str, float]:
        found = self._workers[system].run(seconds=self.timing.seconds)
        self._workers[system].server.trim()
        return found
