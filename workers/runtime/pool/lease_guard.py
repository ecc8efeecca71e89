"""The lease guard: ends a child process that performs an ordered run whose lease was not renewed in time.

A lease that is not renewed lapses, and then another worker may begin the same run. The worker cannot be relied on to
end its own run before that: it may be suspended, or wait for a server that does not answer. So the worker writes into
shared memory until when its leases are valid, and a thread of the child process ends that process when they have ended.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
import time

from receiver.inbox.leases import LEASE_MS

SAFETY = 0.3
"""Seconds by which a run ends before its lease does."""
_NUMBER = struct.Struct("d")


def lease_clock() -> float:
    """Seconds, the same in all processes of this host. Time in which the host was suspended counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SharedLease:
    """Until when the leases of a worker are valid. Shared with its child processes, which are forked."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _NUMBER.size)

    def renewed(self, asked: float) -> bool:
        """All leases that the worker holds were renewed, or made, by a call that began at this time. Returns whether
        the time before has passed: then child processes may have ended because of it."""
        before = self._valid_until
        _NUMBER.pack_into(self._memory, 0, asked + LEASE_MS / 1000 - SAFETY)
        return before <= lease_clock()

    @property
    def _valid_until(self) -> float:
        return float(_NUMBER.unpack_from(self._memory)[0])

    @property
    def seconds_left(self) -> float:
        return self._valid_until - lease_clock()

    @property
    def has_ended(self) -> bool:
        return self.seconds_left <= 0


class LeaseGuard:
    """In a child process: the context of an ordered run. If the lease ends before the run does, it kills this process
    and what it started."""

    def __init__(self, lease: SharedLease) -> None:
        self._lease = lease
        self._guarded = False
        self._waits = False
        """Whether the thread waits for the next run, because the lease had ended when none was under way."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="lease-guard", daemon=True)
            self._thread.start()
        if self._lease.has_ended:
            _end_process()
        self._guarded = True
        if self._waits:  # an event that is set for each run would take as long as a small handler
            self._wake.set()

    def __exit__(self, *_: object) -> None:
        self._guarded = False

    def _watch(self) -> None:
        while True:
            if (left := self._lease.seconds_left) > 0:
                time.sleep(left)
                continue
            if self._guarded:
                _end_process()
            self._wake.clear()
            self._waits = True
            if not self._guarded:  # else a run has begun in between, which did not see that this thread waits
                self._wake.wait()
            self._waits = False


def _end_process() -> None:
    """The process leads a group of its own. What it reported before is read by the worker."""
    os.killpg(0, signal.SIGKILL)
