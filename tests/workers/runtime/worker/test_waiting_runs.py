"""Which waiting runs begin, and which of them one child process is given together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from receiver.inbox import Run, StoredEvent
from receiver.inbox.leases import LOSSES_ALLOWED
from workers.runtime.pool.lease_guard import SharedLease, lease_clock
from workers.runtime.worker import waiting_runs
from workers.runtime.worker.claim_sizes import LARGEST_BATCH, MEASURED_AFTER, ClaimSizes
from workers.runtime.worker.waiting_runs import WaitingRuns


class FakePool:
    """A pool with this number of idle child processes. It records the batches that they are given.

    None of them has the handlers in `missing`.
    """

    def __init__(self, idle: int, *, missing: Sequence[str] = ()) -> None:
        self.idle = idle
        self.missing = missing
        self.busy = False
        self.given: list[list[str]] = []
        self.under_way: list[Run] = []
        self.lease = SharedLease()
        self.lease.renewed(lease_clock())

    def idle_with(self, handler: str) -> list[FakePool]:
        return [self] if self.idle and handler not in self.missing else []

    def give(self, batch: Sequence[Run]) -> None:
        self.given.append([run.item for run in batch])
        self.under_way += batch
        self.idle -= 1
        self.busy = True

    def runs(self) -> list[Run]:
        return self.under_way


def run(item: str, token: str = "t", losses: int = 0, key: str = "") -> Run:
    event_id, handler = item.split("|")
    return Run(item, handler, token, 0, losses, StoredEvent(event_id, [], None), order_key=key)


def waiting(pool: FakePool, *runs: Run, slotted: Sequence[str] = (), seconds: float = 0.0001) -> WaitingRuns:
    sizes = ClaimSizes(4)
    for one in runs:
        for _ in range(MEASURED_AFTER):
            sizes.note_duration(one.handler, seconds)
    made = WaitingRuns(pool, sizes)  # type: ignore[arg-type]
    made.slotted = slotted
    made.add(runs)
    return made


def test_fast_runs_of_one_handler_go_together() -> None:
    pool = FakePool(4)
    left = waiting(pool, run("a|x"), run("b|y"), run("c|x"))
    left.dispatch(unwritten=False)
    assert pool.given == [["a|x", "c|x"], ["b|y"]]
    assert len(left) == 0


def test_a_run_whose_handler_no_idle_child_process_has_waits_and_delays_no_other() -> None:
    pool = FakePool(2, missing=["y"])
    left = waiting(pool, run("a|y"), run("b|x"), run("c|y"), run("d|z"))
    left.dispatch(unwritten=False)
    assert pool.given == [["b|x"], ["d|z"]]
    assert [one.item for one in left] == ["a|y", "c|y"]


def test_a_run_that_lost_its_worker_goes_alone() -> None:
    pool = FakePool(4)
    waiting(pool, run("a|x", losses=1), run("b|x"), run("c|x")).dispatch(unwritten=False)
    assert pool.given == [["a|x"], ["b|x", "c|x"]]


def test_no_batch_is_larger_than_the_largest() -> None:
    pool = FakePool(1)
    left = waiting(pool, *(run(f"e{number}|x") for number in range(LARGEST_BATCH + 3)))
    left.dispatch(unwritten=False)
    assert len(pool.given[0]) == LARGEST_BATCH
    assert len(left) == 3


def test_runs_on_one_slot_of_a_limit_go_to_one_child_process_even_if_slow() -> None:
    pool = FakePool(4)
    runs = [run("a|x", "one"), run("b|x", "two"), run("c|x", "one"), run("d|y", "one"), run("e|x", "two")]
    left = waiting(pool, *runs, slotted=["x"], seconds=0.05)
    left.dispatch(unwritten=False)
    assert pool.given == [["a|x", "c|x"], ["b|x", "e|x"], ["d|y"]]
    assert len(left) == 0


class FakeClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(waiting_runs, "time", clock)
    return clock


def test_a_run_lost_repeatedly_waits_for_the_other_runs_but_not_for_long(clock: FakeClock) -> None:
    pool = FakePool(4)
    pool.busy = True
    left = waiting(pool, run("a|x", losses=waiting_runs.LOST_REPEATEDLY))
    for _ in range(2):
        left.dispatch(unwritten=False)
        assert pool.given == []
        clock.now += 2
    left.dispatch(unwritten=False)
    assert pool.given == [["a|x"]]


def test_no_run_is_claimed_for_a_moment_while_one_is_under_way_that_lost_its_worker(clock: FakeClock) -> None:
    pool = FakePool(4)
    left = waiting(pool, run("a|x", losses=1), run("b|y"))
    left.dispatch(unwritten=False)
    assert pool.given == [["a|x"], ["b|y"]]
    assert left.guarded
    suspect = pool.under_way.pop(0)
    assert not left.guarded, "it has ended without harm; the other may take long"
    pool.under_way.append(suspect)
    clock.now += waiting_runs.NO_CLAIM_SECONDS
    assert not left.guarded


def test_a_run_on_its_last_chance_runs_alone(clock: FakeClock) -> None:
    """Beside another run that kills the worker, it would fail for what it did not do."""
    pool = FakePool(4)
    pool.busy = True
    left = waiting(pool, run("a|x", losses=LOSSES_ALLOWED))
    for _ in range(10):
        left.dispatch(unwritten=False)
        clock.now += 5
        left.add(left.take_all())  # released, and claimed again
    assert pool.given == []
    pool.busy = False
    left.dispatch(unwritten=False)
    assert pool.given == [["a|x"]]
    clock.now += 30
    assert left.guarded, "no run is claimed meanwhile"
    left.add([run("b|x")])
    left.dispatch(unwritten=False)
    assert pool.given == [["a|x"]], "and no waiting run begins"
    pool.busy = False
    assert not left.guarded
    left.dispatch(unwritten=False)
    assert pool.given == [["a|x"], ["b|x"]]


def test_where_no_worker_is_ever_idle_a_run_on_its_last_chance_begins_all_the_same(clock: FakeClock) -> None:
    pool = FakePool(4)
    pool.busy = True
    left = waiting(pool, run("a|x", losses=LOSSES_ALLOWED))
    left.dispatch(unwritten=False)
    clock.now += waiting_runs.LAST_CHANCE_WAIT + 1
    left.dispatch(unwritten=False)
    assert pool.given == [["a|x"]]


def test_all_runs_of_an_order_key_go_to_one_child_process_in_their_order() -> None:
    pool = FakePool(2)
    first = [run(f"a{n}|x", key="k1") for n in range(3)]
    left = waiting(pool, *first, run("b0|x", key="k2"), run("a3|x", key="k1"), seconds=0.02)
    left.dispatch(unwritten=False)
    assert pool.given == [["a0|x", "a1|x", "a2|x", "a3|x"], ["b0|x"]], "although a slow handler has batches of one run"


def test_a_run_does_not_begin_before_the_first_of_its_order_key(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FakePool(4)
    left = waiting(pool, run("a|x", key="k1"), run("b|x", key="k1"), run("c|x", key="k2"), seconds=0.1)
    monkeypatch.setattr(left, "_may_begin", lambda one, _: one.item != "a|x")
    left.dispatch(unwritten=False)
    assert pool.given == [["c|x"]]


def test_no_ordered_run_begins_when_the_lease_was_not_renewed_in_time() -> None:
    pool = FakePool(4)
    pool.lease.renewed(lease_clock() - 10)
    left = waiting(pool, run("a|x", key="k1"), run("b|y"))
    left.dispatch(unwritten=False)
    assert pool.given == [["b|y"]]


def test_those_behind_a_run_that_lost_its_lease_are_given_back() -> None:
    left = waiting(FakePool(0), run("a|x", key="k1"), run("b|x", key="k1"), run("c|x", key="k2"), run("d|x"))
    assert [one.item for one in left.forget({"a|x", "d|x"})] == ["b|x"]
    assert [one.item for one in left] == ["c|x"]
