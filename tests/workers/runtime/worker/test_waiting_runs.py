"""Which of the waiting runs a child process is given together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from receiver.inbox import Run, StoredEvent
from receiver.inbox.inbox import LOSSES_ALLOWED
from workers.runtime.worker import waiting_runs as room
from workers.runtime.worker.batch_sizes import KNOWN_AFTER, LARGEST_BATCH, BatchSizes
from workers.runtime.worker.waiting_runs import WaitingRuns


class ChildProcesses:
    """As many idle ones as it says; what each is given is kept."""

    def __init__(self, idle: int) -> None:
        self.idle = idle
        self.busy = False
        self.given: list[list[str]] = []

    def give(self, batch: Sequence[Run]) -> None:
        self.given.append([run.item for run in batch])
        self.idle -= 1
        self.busy = True


def run(item: str, token: str = "t", losses: int = 0) -> Run:
    event_id, handler = item.split("|")
    return Run(item, handler, token, 0, losses, StoredEvent(event_id, [], None))


def waiting(
    child_processes: ChildProcesses, *runs: Run, slotted: Sequence[str] = (), seconds: float = 0.0001
) -> WaitingRuns:
    pace = BatchSizes(4)
    for one in runs:
        for _ in range(KNOWN_AFTER):
            pace.measured(one.handler, seconds)
    found = WaitingRuns(child_processes, pace)  # type: ignore[arg-type]
    found.slotted = slotted
    found.keep(runs)
    return found


def test_fast_runs_of_one_handler_go_together() -> None:
    child_processes = ChildProcesses(4)
    left = waiting(child_processes, run("a|x"), run("b|y"), run("c|x"))
    left.dispatch(unwritten=False)
    assert child_processes.given == [["a|x", "c|x"], ["b|y"]]
    assert len(left) == 0


def test_a_run_that_lost_its_worker_goes_alone() -> None:
    child_processes = ChildProcesses(4)
    waiting(child_processes, run("a|x", losses=1), run("b|x"), run("c|x")).dispatch(unwritten=False)
    assert child_processes.given == [["a|x"], ["b|x", "c|x"]]


def test_no_batch_is_larger_than_the_largest() -> None:
    child_processes = ChildProcesses(1)
    left = waiting(child_processes, *(run(f"e{number}|x") for number in range(LARGEST_BATCH + 3)))
    left.dispatch(unwritten=False)
    assert len(child_processes.given[0]) == LARGEST_BATCH
    assert len(left) == 3


def test_what_holds_one_slot_of_a_limit_goes_to_one_horse_however_slow_it_is() -> None:
    child_processes = ChildProcesses(4)
    runs = [run("a|x", "one"), run("b|x", "two"), run("c|x", "one"), run("d|y", "one"), run("e|x", "two")]
    left = waiting(child_processes, *runs, slotted=["x"], seconds=0.05)
    left.dispatch(unwritten=False)
    assert child_processes.given == [["a|x", "c|x"], ["b|x", "e|x"], ["d|y"]]
    assert len(left) == 0


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(room, "time", watch)
    return watch


def test_a_suspect_waits_for_its_neighbours_but_not_for_long(watch: Watch) -> None:
    child_processes = ChildProcesses(4)
    child_processes.busy = True
    left = waiting(child_processes, run("a|x", losses=2))
    for _ in range(2):
        left.dispatch(unwritten=False)
        assert child_processes.given == []
        watch.now += 2
    left.dispatch(unwritten=False)
    assert child_processes.given == [["a|x"]]


def test_the_last_chance_of_a_run_is_had_alone(watch: Watch) -> None:
    """Beside another that kills the worker it would be given up for what it did not do."""
    child_processes = ChildProcesses(4)
    child_processes.busy = True
    left = waiting(child_processes, run("a|x", losses=LOSSES_ALLOWED))
    for _ in range(10):
        left.dispatch(unwritten=False)
        watch.now += 5
        left.keep(left.take_all())  # given back, and claimed again
    assert child_processes.given == []
    child_processes.busy = False
    left.dispatch(unwritten=False)
    assert child_processes.given == [["a|x"]]
    watch.now += 30
    assert left.guarded, "nothing is claimed beside it"
    left.keep([run("b|x")])
    left.dispatch(unwritten=False)
    assert child_processes.given == [["a|x"]], "nor does anything begin that is here"
    child_processes.busy = False
    assert not left.guarded
    left.dispatch(unwritten=False)
    assert child_processes.given == [["a|x"], ["b|x"]]


def test_where_no_worker_is_ever_alone_a_last_chance_is_had_all_the_same(watch: Watch) -> None:
    child_processes = ChildProcesses(4)
    child_processes.busy = True
    left = waiting(child_processes, run("a|x", losses=LOSSES_ALLOWED))
    left.dispatch(unwritten=False)
    watch.now += room.LAST_PROBATION + 1
    left.dispatch(unwritten=False)
    assert child_processes.given == [["a|x"]]
