"""`python -m benchmarks.scaling`: what one event costs Redis, a web process and a worker, by number of handlers.

It prints the table of docs/scaling.md. Costs are CPU time, so a busy machine changes them little. What a process
spends while it is idle is measured first and subtracted. Each figure is the median of some rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import tables
from benchmarks.__main__ import machine_line
from benchmarks.processes import Process, cpu_of
from benchmarks.queue_workers import OwnWorker
from benchmarks.receivers import storehooks
from receiver.inbox import EventQueries
from workers.testing.local_system import wait_until

CHILD_PROCESSES = 4
SLOW_SECONDS = 0.02
"""How long a slow handler waits, as for an answer of another system."""
SHAPES = ((0, False), (1, False), (3, False), (10, False), (1, True), (3, True), (10, True))
"""Numbers of handlers, and whether they are slow."""
FAST_RUNS, SLOW_RUNS = 6_000, 1_000
"""Runs of one round."""
IDLE_SECONDS = 2.0
LOW_RATE = 100.0
"""Deliveries a second that come alone, so that each is a group of its own."""
HANDLER = """
@router.on("*")
def handle_{number}(event, ctx):
    {wait}run_counter.count_run()
"""
HEAD = ("handlers", "Redis us", "worker us", "children us", "bytes accepted", "bytes settled", "Redis max/s",
        "worker max/s", "first limit")  # fmt: skip


@dataclass(frozen=True)
class Spent:
    """CPU seconds of the processes that handle events."""

    redis: float
    worker: float
    children: float

    def minus(self, other: Spent, times: float = 1.0) -> Spent:
        return Spent(
            self.redis - other.redis * times,
            self.worker - other.worker * times,
            self.children - other.children * times,
        )


@dataclass(frozen=True)
class Cost:
    """Of one event: CPU in microseconds, and bytes in Redis."""

    redis: float
    worker: float
    children: float
    open_bytes: float
    settled_bytes: float


@dataclass(frozen=True)
class Accepting:
    """Of one delivery: CPU in microseconds."""

    web: float
    redis: float


def handlers_of(number: int, slow: bool) -> str:
    wait = f"import time; time.sleep({SLOW_SECONDS}); " if slow else ""
    return "".join(HANDLER.format(number=one, wait=wait) for one in range(number))


def accepting(folder: Path, rate: float, seconds: float, rounds: int) -> Accepting:
    receiver = storehooks(folder)
    try:
        receiver.run(seconds=1.0, rate=rate)
        found = [receiver.run(seconds=seconds, rate=rate) for _ in range(rounds)]
    finally:
        receiver.stop()
    return Accepting(*(median(one[name] for one in found) for name in ("cpu us", "redis us")))


def handling(folder: Path, number: int, slow: bool, rounds: int) -> Cost:
    worker = OwnWorker(folder, handlers=handlers_of(number, slow), child_processes=CHILD_PROCESSES)
    try:
        _handle(worker, 300)  # the worker measures first how long its handlers take
        idle = _spent_in(worker, lambda: time.sleep(IDLE_SECONDS))
        runs = SLOW_RUNS if slow else FAST_RUNS
        found = [_round(worker, max(100, runs // max(1, number)), idle) for _ in range(rounds)]
    finally:
        worker.stop()
    names = Cost.__dataclass_fields__
    return Cost(*(median(getattr(one, name) for one in found) for name in names))


def _round(worker: OwnWorker, events: int, idle: Spent) -> Cost:
    worker.server.empty()
    _handle(worker, 20)  # the declarations of the handlers are there again
    empty = worker.server.memory()
    worker.process.signal_all(signal.SIGSTOP)
    worker.fill(events)
    stored = worker.server.memory()
    began = time.monotonic()
    spent = _spent_in(worker, lambda: _let_it_handle(worker))
    spent = spent.minus(idle, (time.monotonic() - began) / IDLE_SECONDS)
    settled = worker.server.memory()
    us = 1e6 / events
    return Cost(
        redis=max(0.0, spent.redis * us),
        worker=max(0.0, spent.worker * us),
        children=max(0.0, spent.children * us),
        open_bytes=(stored - empty) / events,
        settled_bytes=(settled - empty) / events,
    )


def _handle(worker: OwnWorker, events: int) -> None:
    worker.process.signal_all(signal.SIGSTOP)
    worker.fill(events)
    _let_it_handle(worker)


def _let_it_handle(worker: OwnWorker) -> None:
    ledger = EventQueries(worker.server.client)
    worker.process.signal_all(signal.SIGCONT)

    def is_done() -> bool:
        time.sleep(0.1)  # a question to Redis costs it too
        return ledger.counters().total["open"] == 0

    wait_until(is_done, within=300, what=f"all events are handled; {worker.process.tail()}")


def _spent_in(worker: OwnWorker, work: Callable[[], None]) -> Spent:
    before = _spent(worker.process, worker.server.process)
    work()
    return _spent(worker.process, worker.server.process).minus(before)


def _spent(workers: Process, redis: Process) -> Spent:
    by_name = {"sh-worker": 0.0, "sh-child": 0.0}
    for pid in workers.tree():
        name = _name_of(pid)
        for known in by_name:
            by_name[known] += cpu_of(pid) if name.startswith(known) else 0.0
    return Spent(redis.cpu(), by_name["sh-worker"], by_name["sh-child"])


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


# The table


def line(number: int, slow: bool, cost: Cost, accept: Accepting) -> tuple[str, ...]:
    kind = f"{number} {'slow' if slow else 'fast'}" if number else "0"
    limits = limits_of(number, slow, cost, accept)
    figures = (
        accept.redis + cost.redis, cost.worker, cost.children, cost.open_bytes, cost.settled_bytes, limits["Redis"],
        min(limits["worker"], limits["child processes"]),
    )  # fmt: skip
    return (kind, *map(tables.number, figures), min(limits, key=lambda name: limits[name]))


def limits_of(number: int, slow: bool, cost: Cost, accept: Accepting) -> dict[str, float]:
    """Events a second that each part can do, with one web process and one worker with its child processes.

    Redis and a worker use one core each. Child processes share what cores there are; here each has one.
    """
    busy = cost.children / 1e6 + (number * SLOW_SECONDS if slow else 0.0)
    return {
        "Redis": 1e6 / (accept.redis + cost.redis),
        "web": 1e6 / accept.web,
        "worker": 1e6 / cost.worker if cost.worker else float("inf"),
        "child processes": CHILD_PROCESSES / busy if busy else float("inf"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix="scaling-"))
    os.environ.pop("REDIS_URL", None)
    print(f"{machine_line()}\n", flush=True)
    try:
        many = accepting(folder / "many", 0.0, 3.0, rounds)
        alone = accepting(folder / "alone", LOW_RATE, 3.0, rounds)
        for name, one in (("at its highest rate", many), (f"at {LOW_RATE:g}/s", alone)):
            print(f"a delivery {name}: web {one.web:.0f} us, Redis {one.redis:.0f} us", flush=True)
        print(f"a web process: {1e6 / many.web:,.0f} deliveries/s\n", flush=True)
        lines: list[tuple[str, ...]] = [HEAD]
        for number, slow in SHAPES:
            cost = handling(folder / f"{number}-{slow}", number, slow, rounds)
            lines.append(line(number, slow, cost, many))
            print("  ".join(lines[-1]), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{tables.markdown(lines)}")


if __name__ == "__main__":
    main()
