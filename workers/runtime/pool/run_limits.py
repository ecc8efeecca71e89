"""Run limits: the time, memory and descriptors that runs may take, in a child process and in a local run."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
from types import FrameType

GRACE = 2.0
"""Seconds that a run may go on past its timeout before its process is killed."""
LOOK_EVERY = 0.02
"""Seconds between two looks at a process that performs one run only."""


class RunTimeout(BaseException):
    """Raised in a handler when its timeout passes. Not an Exception, so that `except Exception` does not catch it."""


class TimeLimit:
    """Raises RunTimeout in what is called within it when its time has passed, if `raise_timeouts` was called."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def raise_timeouts() -> None:
    """Call it in the main thread of a process that performs runs."""
    signal.signal(signal.SIGALRM, _raise_timeout)


def _raise_timeout(_signal: int, _frame: FrameType | None) -> None:
    raise RunTimeout("the handler's timeout has passed")


def over_time(seconds: float, timeout: float) -> str:
    """Why a run that has taken this long is killed; empty if it is not."""
    return f"killed: still running {GRACE:g} s after its timeout of {timeout:g} s" if seconds > timeout + GRACE else ""


def over_memory(pid: int, limit: int) -> str:
    """Why a process is killed for its memory; empty if it is not."""
    used = _resident_bytes(pid)
    return f"killed: its process used {used >> 20} MB of memory, the limit is {limit >> 20} MB" if used > limit else ""


def has_many_descriptors() -> bool:
    """Whether this process has more than half of the file descriptors open that it may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest_free = os.eventfd(0)
    except OSError as error:
        return error.errno == errno.EMFILE
    os.close(lowest_free)
    return lowest_free > limit // 2


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return 0
