"""A child process of the supervisor gets each signal that is sent to it, from its first moment."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from workers.runtime.supervisor import Program, Supervisor

STOP_SECONDS = 2.0
ROUNDS = 40


def hang() -> int:
    time.sleep(60)
    return 0


@pytest.fixture
def same_signals() -> Iterator[None]:
    """A supervisor replaces this process's handlers."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [(number, signal.getsignal(number)) for number in numbers]
    yield
    for number, handler in before:
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)


@pytest.mark.usefixtures("same_signals")
def test_a_child_that_was_just_started_ends_when_it_is_asked_to() -> None:
    """Until it has handlers of its own it has the supervisor's, which would only note the signal."""
    killed = 0
    for _ in range(ROUNDS):
        supervisor = Supervisor(report=lambda _: None, stop_seconds=STOP_SECONDS)
        supervisor.start(Program("hangs", call=hang))
        began = time.monotonic()
        supervisor.stop_children()
        killed += time.monotonic() - began >= STOP_SECONDS
    assert killed == 0
