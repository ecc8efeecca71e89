"""Ordered runs while processes are killed: no two runs of a key overlap, and they begin in the order of acceptance.

The evidence is the handler's own log. A run writes a line when it begins, while it works and when it ends, so also of a
run that was killed it is known until when it was alive.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from receiver.contract.event import Event
from receiver.contract.intake import Delivery
from receiver.inbox import keys
from receiver.inbox.model import from_ms
from tests.support.harness import Server, System, eventually
from tests.support.programs import Process
from tests.support.soak import Soak

PLUGIN = """
import os, random, time
from storehooks import Router

router = Router("shop")
log = os.open(os.environ["SOAK_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@router.on("*", order_by="resource", retries=(0.05,) * 50)
def watch(event, ctx):
    run = f"{os.getpid()}-{time.monotonic_ns()}"
    def note(what):
        line = f"{time.monotonic_ns()} {run} {what} {event.id} {event.store}:{event.resource_id} {ctx.fence}\\n"
        os.write(log, line.encode())
    note("begin")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(0.005)
        note("work")
    note("end")
"""

FIRST, SECOND = "turn8resource7north", "turn9resource7north"


@dataclass
class LoggedRun:
    event: str
    key: str
    fence: int
    begin: int
    last: int = 0
    ended: bool = False


@dataclass
class OrderReport:
    runs: list[LoggedRun]
    accepted: dict[str, float]
    overlaps: list[tuple[LoggedRun, LoggedRun]] = field(default_factory=list)
    out_of_order: list[tuple[str, str]] = field(default_factory=list)
    smaller_fences: list[tuple[LoggedRun, LoggedRun]] = field(default_factory=list)
    older: list[tuple[LoggedRun, LoggedRun]] = field(default_factory=list)
    """Runs of an event that occurred before the one that was handled before it."""

    def __post_init__(self) -> None:
        by_key: dict[str, list[LoggedRun]] = {}
        for run in sorted(self.runs, key=lambda run: run.begin):
            by_key.setdefault(run.key, []).append(run)
        for runs in by_key.values():
            pairs = list(pairwise(runs))
            self.overlaps += [(one, other) for one, other in pairs if other.begin < one.last]
            self.smaller_fences += [(one, other) for one, other in pairs if other.fence <= one.fence]
            self.older += [(one, other) for one, other in pairs if turn_of(other.event) < turn_of(one.event)]
            first = list(dict.fromkeys(run.event for run in runs))
            order = sorted(first, key=self.accepted.__getitem__)
            self.out_of_order += [pair for pair in zip(first, order, strict=True) if pair[0] != pair[1]]

    @property
    def done(self) -> set[str]:
        return {run.event for run in self.runs if run.ended}


def turn_of(event: str) -> int:
    return int(event.removeprefix("turn").partition("resource")[0])


def read_log(path: Path) -> list[LoggedRun]:
    runs: dict[str, LoggedRun] = {}
    complete = path.read_text().rpartition("\n")[0]
    for line in complete.splitlines():
        at, run, what, event, key, fence = line.split()
        one = runs.setdefault(run, LoggedRun(event, key, int(fence), int(at)))
        one.last, one.ended = int(at), what == "end"
    return list(runs.values())


class OrderedSoak(Soak):
    """Events of many resources are stored in the inbox, shuffled, while processes are killed."""

    def __init__(
        self, folder: Path, *, events: int, resources: int, width: int, seed: int, faults: int, plugin: str
    ) -> None:
        super().__init__(folder, seconds=0, seed=seed, senders=1, faults=faults, plugin=plugin)
        self.events, self.turns, self.width = events, events // resources, width
        """`width` resources take turns, then the next ones. With fewer than 50 their events are sent in another order
        than they occurred."""
        self.stored = 0

    def _send_until_stopped(self, number: int) -> None:
        """Begins when a worker has declared the handler: events from before may run in another order."""
        while not self._is_ordered() and not self._stop.is_set():
            self._stop.wait(0.02)
        choices = random.Random(number)
        planned = [(n // self.width % self.turns, self._resource_of(n)) for n in range(self.events)]
        # Each is sent at most about 50 places from its place.
        planned = [one for _, one in sorted((at + choices.uniform(0, 50), one) for at, one in enumerate(planned))]
        while self.stored < len(planned) and not self._stop.is_set():
            group = planned[self.stored : self.stored + 20]
            with suppress(RedisError):
                if self.system.ledger.counters().total["open"] > 1000:
                    self._stop.wait(0.02)
                    continue
                self.system.inbox.accept([delivery(turn, resource) for turn, resource in group])
                self.stored += len(group)

    def _is_ordered(self) -> bool:
        with suppress(RedisError):
            return bool(self.system.client.exists(keys.PREFIX + "ordered"))
        return False

    def _resource_of(self, number: int) -> int:
        return number % self.width + self.width * (number // (self.width * self.turns))

    def _done(self, started: float) -> bool:
        return self.stored >= self.events and sum(self.report.faults.values()) >= self.wanted_faults

    def _count(self) -> None:
        scores = self.system.client.zrange(keys.INDEX, 0, -1, withscores=True)
        accepted = {event.decode(): at for event, at in scores}
        self.order = OrderReport(read_log(self.effects), accepted)


def delivery(turn: int, resource: int, store: str = "north") -> Delivery:
    name = f"turn{turn}resource{resource}{store}"
    event = Event(
        id=name,
        store=store,
        topic="order.updated",
        received_at=from_ms(time.time() * 1000),
        body=b'{"data": {"id": 1}}',
        delivery_id=name,
        resource_id=str(resource),
        occurred_at=from_ms(1_800_000_000_000 + turn),
        data_path="data",
    )
    return Delivery(event, "orders/update")


def soak(
    folder: Path,
    *,
    events: int,
    resources: int,
    seed: int,
    faults: int,
    pause: float,
    seconds: str,
    stale: str = "run",
) -> None:
    plugin = PLUGIN.replace("SECONDS", seconds).replace('order_by="resource"', f'order_by="resource", stale="{stale}"')
    width = resources if stale == "run" else min(resources, 20)
    one = OrderedSoak(folder, events=events, resources=resources, width=width, seed=seed, faults=faults, plugin=plugin)
    try:
        report = one.run(pause=pause)
        counts = one.system.ledger.counters().total
        left = one.order.accepted.keys() - one.order.done
        skipped = {event for event in left if one.system.run_of(event, "shop.watch").reason == "stale"}
    finally:
        one.close()
    order = one.order
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(report.faults.items()))
    print(f"\nseed {seed}: {sum(report.faults.values())} faults ({kinds}) in {report.seconds:.0f} s")
    print(f"{len(order.accepted):,} events of {resources:,} resources, {len(order.runs):,} runs began")
    print(f"identity true in {report.samples - len(report.wrong_samples):,} of {report.samples:,} samples")
    assert order.overlaps == []
    assert order.out_of_order == []
    assert order.smaller_fences == []
    assert left == skipped, "each event was handled, or is stale"
    assert bool(skipped) == (stale == "skip")
    assert bool(order.older) == (stale == "run" and width < 50)
    assert report.wrong_samples == []
    assert (counts["accepted"], counts["settled"], counts["failed"]) == (len(order.accepted), len(order.accepted), 0)


@pytest.mark.full
def test_ordered_runs_never_overlap_while_processes_are_killed(tmp_path: Path) -> None:
    soak(
        tmp_path,
        events=400,
        resources=20,
        seed=21,
        faults=8,
        pause=0.3,
        seconds="random.choice((0, 0, 0, 0, 0, 0.01, 0.1))",
    )


@pytest.mark.slow
def test_what_is_handled_is_never_older_than_before_while_processes_are_killed(tmp_path: Path) -> None:
    soak(tmp_path, events=400, resources=5, seed=23, faults=8, pause=0.3, seconds="0.005", stale="skip")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stale", ["run", "skip"])
def test_a_hundred_thousand_ordered_runs_never_overlap_while_processes_are_killed(tmp_path: Path, stale: str) -> None:
    soak(
        tmp_path,
        events=100_000,
        resources=1000,
        seed=22,
        faults=150,
        pause=0.9,
        seconds="5 if random.random() < 0.0003 else random.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 0.02))",
        stale=stale,
    )


@pytest.fixture
def logged(make_system: Callable[..., System], own_redis: Server, tmp_path: Path) -> tuple[System, Path]:
    """A system whose ordered handler takes long enough to be interrupted."""
    only_the_first = "6 if open(os.environ['SOAK_EFFECTS']).read().count('begin') == 1 else 0"
    plugin = PLUGIN.replace("SECONDS", only_the_first)
    system = make_system(url=own_redis.url, plugin=plugin, more='[store_defaults]\nurl = ""\n')
    return system, tmp_path / "effects.log"


def test_a_run_of_a_suspended_worker_ends_before_another_worker_begins_it(logged: tuple[System, Path]) -> None:
    """Its lease lapses while its child process, which is not suspended, goes on."""
    system, log = logged
    env = {"SOAK_EFFECTS": str(log)}
    first, _ = system.start("worker", "housekeeper", env=env)
    for turn in (0, 1):
        system.inbox.accept([delivery(turn, 7)])
    eventually(lambda: log.exists() and "begin" in log.read_text(), 20)
    system.start("worker", env=env)
    first.send(signal.SIGSTOP)
    try:
        eventually(lambda: len({run.begin for run in read_log(log)}) >= 2, 20, "another worker has begun the run")
    finally:
        first.send(signal.SIGCONT)
    eventually(lambda: system.ledger.counters().total["settled"] == 2, 30)
    runs = read_log(log)
    assert OrderReport(runs, {run.event: float(run.event[4]) for run in runs}).overlaps == []
    assert not [run for run in runs if not run.ended][1:], "only the first was ended early"


def test_a_run_whose_worker_cannot_reach_the_server_ends_and_begins_again_without_an_attempt(
    logged: tuple[System, Path], own_redis: Server
) -> None:
    system, log = logged
    system.start("worker", "housekeeper", env={"SOAK_EFFECTS": str(log)})
    system.inbox.accept([delivery(0, 7)])
    eventually(lambda: log.exists() and "begin" in log.read_text(), 20)
    own_redis.kill()
    eventually(lambda: "child process ended" in system.log("worker"), 10, "the run has ended by itself")
    own_redis.start()
    eventually(lambda: system.ledger.counters().total["settled"] == 1, 40)
    (run,) = system.ledger.event("turn0resource7north").runs
    assert run.attempts == 1
    assert OrderReport(read_log(log), {"turn0resource7north": 1.0}).overlaps == []


def start_two_runs_of_a_key_whose_outcomes_are_not_written(system: System, log: Path) -> Process:
    worker = system.start("worker", env={"SOAK_EFFECTS": str(log)})[0]
    system.inbox.accept([delivery(turn, 1) for turn in range(20)])  # so that the handler is known to be fast
    eventually(lambda: system.ledger.counters().total["settled"] == 20, 20)
    system.administration.pause(handler="shop.watch")
    system.inbox.accept([delivery(8, 7), delivery(9, 7)])
    eventually(lambda: system.client.exists(f"{keys.QUEUED}shop.watch:north:order:7"), 20)
    system.client.set(keys.FAILED, "damaged")  # until the next tick, no outcome can be written
    system.administration.resume(handler="shop.watch")
    eventually(lambda: FIRST in log.read_text(), 20)
    return worker


@pytest.mark.slow
def test_what_a_lost_worker_had_handled_last_is_handled_again_first_and_nothing_older(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    """With `stale="skip"`: the worker had two runs of the key, and both began again, the older one first."""
    plugin = PLUGIN.replace("SECONDS", "0").replace("order_by=", 'stale="skip", order_by=')
    system = make_system(url=own_redis.url, plugin=plugin, more='[store_defaults]\nurl = ""\n')
    log = tmp_path / "effects.log"
    worker = start_two_runs_of_a_key_whose_outcomes_are_not_written(system, log)
    eventually(lambda: "refuses a command" in system.log("worker"), 20, "an outcome could not be written")
    worker.kill()
    system.start("worker", "housekeeper", env={"SOAK_EFFECTS": str(log)})
    eventually(lambda: system.ledger.counters().total["settled"] == 22, 30)
    runs = [run for run in read_log(log) if run.key == "north:7"]
    assert [run.event for run in sorted(runs, key=lambda run: run.begin)] == [FIRST, FIRST, SECOND]


@pytest.mark.slow
def test_a_run_whose_outcome_waits_to_be_written_is_not_repeated_after_the_next_of_its_key(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    """Its lease lapsed while those of the runs behind it were renewed: the older event was handled again, last."""
    plugin = PLUGIN.replace("SECONDS", f"6 * (event.id == {SECOND!r})")
    system = make_system(url=own_redis.url, plugin=plugin, more='[store_defaults]\nurl = ""\n')
    log = tmp_path / "effects.log"
    start_two_runs_of_a_key_whose_outcomes_are_not_written(system, log)
    eventually(lambda: SECOND in log.read_text(), 20)

    def would_lapse() -> bool:
        """The first one's lease has ended, or the second has taken longer than a lease."""
        lease_end, run = system.client.zscore(keys.LEASED, f"{FIRST}|shop.watch"), read_log(log)[-1]
        return lease_end < time.time() * 1000 or run.last - run.begin > 4.5e9

    eventually(would_lapse, 10)
    system.housekeeping.tick()
    eventually(lambda: system.ledger.counters().total["settled"] == 22, 30)
    assert max(read_log(log), key=lambda run: run.begin).event == SECOND
