"""Watched run: a local run in a child process, which has the limits of a worker's child process and is watched so."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from workers.processes import describe_exit, die_with_parent
from workers.runtime.pool.run_limits import LOOK_EVERY, TimeLimit, over_memory, over_time, raise_timeouts

NO_RUN = (0.0, math.inf)
_TIMES = struct.Struct("dd")


class WatchEnd(NamedTuple):
    """How the child process ended."""

    code: int
    why: str
    """Why it ended before the command did; empty if it did not."""


class RunWatch:
    """Two processes have it, the child process that performs the run and the one that watches it. They share when the
    run began, and its timeout."""

    def __init__(self, memory: int, *, has_timeout: bool) -> None:
        self.folder = tempfile.mkdtemp(prefix="storehooks-local-run-")
        """Removed when the child process has ended."""
        self._memory = memory
        self._has_timeout = has_timeout
        self._times = mmap.mmap(-1, _TIMES.size)
        self._shared = NO_RUN

    def go_on_in_child(self) -> WatchEnd | None:
        """None in a new child process, which goes on with the command. In this process, how that one ended."""
        parent = os.getpid()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            die_with_parent(parent)
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a killed process flushes nothing
            raise_timeouts()
            return None
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to both, and the child process decides
        try:
            return self._watch(child)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _watch(self, child: int) -> WatchEnd:
        why = ""
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            began, timeout = self._shared
            if not why and (why := over_memory(child, self._memory) or over_time(time.monotonic() - began, timeout)):
                os.kill(child, signal.SIGKILL)
            time.sleep(LOOK_EVERY)
        code = os.waitstatus_to_exitcode(ended[1])
        if not why and (code < 0 or self._shared != NO_RUN):
            why = f"its process {describe_exit(code)}"
        return WatchEnd(1 if why else code, why)

    @contextmanager
    def limit(self, timeout: float) -> Iterator[float]:
        """In the child process: the context of a run, with its deadline."""
        timeout = timeout if self._has_timeout else math.inf
        began = time.monotonic()
        self._shared = began, timeout
        try:
            with TimeLimit(timeout if self._has_timeout else 0.0):
                yield began + timeout
        finally:
            self._shared = NO_RUN

    @contextmanager
    def paused(self) -> Iterator[None]:
        """In the child process: time that does not count."""
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        paused, (began, timeout) = time.monotonic(), self._shared
        self._shared = began, math.inf
        try:
            yield
        finally:
            self._shared = began + time.monotonic() - paused, timeout
            signal.setitimer(signal.ITIMER_REAL, left)

    @property
    def _shared(self) -> tuple[float, float]:
        """When the run under way began, and its timeout; NO_RUN if none is."""
        began, timeout = _TIMES.unpack_from(self._times)
        return began, timeout

    @_shared.setter
    def _shared(self, times: tuple[float, float]) -> None:
        _TIMES.pack_into(self._times, 0, *times)
