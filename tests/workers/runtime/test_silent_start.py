"""A process that hangs or ends before its first sign of life is noticed, and one that only starts slowly is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.harness import eventually
from workers.processes import SignOfLife
from workers.runtime import supervisor as supervisor_module
from workers.runtime.supervisor import Program, Supervisor

START = 1.0
SILENT = 0.5


def hang() -> int:
    time.sleep(60)
    return 0


def work() -> int:
    while True:
        SignOfLife.show()
        time.sleep(0.02)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setattr(supervisor_module, "LOAD_SECONDS", START)
    found = Supervisor(report=lambda _: None, stop_seconds=0.1)
    yield found
    found.stop_children()


@pytest.mark.parametrize("call", [hang, lambda: 2], ids=["hangs at its start", "ends at each start"])
def test_a_process_without_a_first_sign_of_life_is_silent_after_its_time_to_start(
    supervisor: Supervisor, call: Callable[[], int]
) -> None:
    started = time.monotonic()
    supervisor.start(Program("worker", call=call))

    def silent() -> list[str]:
        supervisor.poll(0.01)
        return supervisor.silent(SILENT)

    assert eventually(silent, 30) == ["worker"]
    assert time.monotonic() - started >= START + SILENT


def test_a_process_that_shows_life_at_last_is_not_silent(supervisor: Supervisor) -> None:
    attempts = SignOfLife()  # shared memory: a process of the second start sees that there was a first

    def second_try() -> int:
        if attempts.was_shown:
            return work()
        attempts.adopt()
        SignOfLife.show()
        return 1

    supervisor.start(Program("worker", call=second_try))

    def has_shown_life() -> bool:
        supervisor.poll(0.01)
        return supervisor.has_shown_life("worker")

    eventually(has_shown_life, 30)
    assert supervisor.silent(SILENT) == []
