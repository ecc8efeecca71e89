"""The lines that a test logs in this process, without those of threads that an earlier test has left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.typing import EventDict, WrappedLogger


@contextmanager
def capture_logs() -> Iterator[list[EventDict]]:
    """Lines of the thread of the test, and of threads that begin in this block."""
    earlier = set(threading.enumerate()) - {threading.current_thread()}

    def leave_out_earlier_threads(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
        if threading.current_thread() in earlier:
            raise structlog.DropEvent
        return line

    with structlog.testing.capture_logs([leave_out_earlier_threads]) as lines:
        yield lines
