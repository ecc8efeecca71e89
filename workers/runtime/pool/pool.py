"""The child processes of a worker: keeps their number, finds an idle one, and collects their results.

It does not know Redis. It takes runs and returns how they ended; the worker decides what that means.
"""

from __future__ import annotations

import mmap
import os
import selectors
import time
from collections.abc import Callable, Iterator
from functools import partial

from receiver import logs
from receiver.config import Config
from receiver.inbox import Run
from receiver.inbox.outcomes import Ending
from workers.plugins.plugin_code import CHANGED, ValidatedCode
from workers.processes import Schedule, wait_for_exit
from workers.runtime.pool import child
from workers.runtime.pool.child_handle import ChildHandle, EndedRun
from workers.runtime.pool.lease_guard import SharedLease
from workers.runtime.pool.run_limits import GRACE

PAUSE_AFTER_LOAD_FAILURE = 1.0
RUNS_BEFORE_RECYCLING = 5_000
COMPARE_EVERY = 1.0
"""Seconds between two comparisons of the plugins on disk with those that were validated, while they differ."""


class ChildPool:
    def __init__(self, config: Config, code: ValidatedCode, size: int) -> None:
        self.config = config
        self._code = code
        self._size = size
        self.children: dict[int, ChildHandle] = {}
        self._selector = selectors.DefaultSelector()
        self.fileno = self._selector.fileno()
        """Readable when a child process has sent a message or has died."""
        self._ended: list[EndedRun] = []
        self._returned: list[Run] = []
        self.lease = SharedLease()
        self._stop_flag = mmap.mmap(-1, 1)
        """Shared with the child processes: `ctx.stopping` reads it."""
        self._start_after = 0.0
        self.start_fault = ""
        """Why a child process that is missing cannot be started."""
        self._outage = logs.OutageLog(
            logs.get("pool"),
            begins="a child process cannot be started; trying again each second",
            ends="child processes can be started again",
        )
        self._schedule = Schedule()
        self._changed: list[str] = []

    @property
    def idle(self) -> int:
        """The number of idle child processes."""
        return sum(process.idle for process in self.children.values())

    @property
    def busy(self) -> bool:
        """Whether runs are under way, or have ended or were returned and `poll` has not handed them over yet."""
        return bool(self._ended or self._returned) or any(process.batch for process in self.children.values())

    @property
    def in_batches(self) -> bool:
        """Whether a child process has more of its batch to do after the run under way."""
        return any(len(process.batch) > 1 for process in self.children.values())

    @property
    def missing(self) -> dict[str, str]:
        """The plugins that new child processes cannot load as they were validated, and why."""
        found = dict.fromkeys(self._changed, CHANGED)
        for process in self.children.values():
            if not process.outdated:
                found.update(process.missing)
        return found

    @property
    def is_complete(self) -> bool:
        """Whether there are as many child processes as there should be, and all of them have loaded all plugins."""
        loaded = [one for one in self.children.values() if one.ready and not (one.missing or one.outdated)]
        return len(loaded) == len(self.children) >= self._size and not self._changed

    def idle_with(self, handler: str) -> list[ChildHandle]:
        """The idle child processes that have loaded the handler's plugin."""
        plugin = handler.partition(".")[0]
        return [process for process in self.children.values() if process.idle and plugin not in process.missing]

    @property
    def under_way(self) -> list[Run]:
        """The run that each busy child process is performing."""
        return [process.batch[0] for process in self.children.values() if process.batch]

    def runs(self) -> Iterator[Run]:
        """All runs whose leases are the worker's and that `poll` has not handed over."""
        for process in self.children.values():
            yield from process.batch
        yield from self._returned

    def fill(self) -> None:
        """Start missing child processes. After one that could not be started or load its plugins, the next waits a
        moment."""
        while len(self.children) < self._size and time.monotonic() >= self._start_after:
            serve = partial(child.serve, self.config, self._code, lambda: self._stop_flag[0] == 1, self.lease)
            try:
                process = ChildHandle.start(serve, self._selector)
            except OSError as error:  # a limit of processes, memory or descriptors; those that are there go on
                self._start_after = time.monotonic() + PAUSE_AFTER_LOAD_FAILURE
                self.start_fault = error.strerror or type(error).__name__
                self._outage.failed(why=self.start_fault)
            else:
                self._outage.worked()
                self.children[process.pid] = process
        if len(self.children) >= self._size:
            self.start_fault = ""

    def poll(self) -> tuple[list[EndedRun], list[Run]]:
        """The runs that have ended since the last call, and the runs that were returned and not begun."""
        for key, _ in self._selector.select(0):
            if key.fd == key.data.pidfd:
                self._reap(key.data)
            else:
                self._ended += key.data.read_results()
                self._recycle_if_due(key.data)
        ended, self._ended = self._ended, []
        returned, self._returned = self._returned, []
        return ended, returned

    def take_back_waiting(self, *, longer_than: float) -> None:
        """Where a run has taken longer than this, take back the runs of its batch that wait behind it."""
        for process in self.children.values():
            self._returned += process.take_back_if_slow(longer_than)

    def kill_overdue(self, timeout_of: Callable[[str], float], memory: int) -> None:
        """Kill the child processes that are past a timeout or use too much memory."""
        for process in self.children.values():
            process.kill_if_overdue(timeout_of, memory)

    def kill_runs(self, items: set[str]) -> None:
        """Kill the child processes whose run has lost its lease, or that would begin an ordered run that has. Such runs
        are not returned, to be begun again."""
        self._returned = [run for run in self._returned if run.item not in items]
        for process in self.children.values():
            if any(run.item in items and (run.order_key or run is process.batch[0]) for run in process.batch):
                process.kill(Ending.LOST)

    def kill_all(self) -> None:
        for process in self.children.values():
            process.kill(Ending.STOPPED)

    def stop(self) -> None:
        """Let `ctx.stopping` be true, and take back the runs that are not begun."""
        self._stop_flag[0] = 1
        for process in self.children.values():
            self._returned += process.take_back()

    def reload(self, config: Config, code: ValidatedCode) -> None:
        """Replace every child process by one with this config and these plugins, each when it is idle; if these are in
        use already, only those that could not load a plugin."""
        is_same = config is self.config and code == self._code
        self.config, self._code, self._changed = config, code, []
        self._size = config.workers.child_processes
        for process in self.children.values():
            process.outdated |= bool(process.missing) or not is_same
            self._recycle_if_due(process)

    def _recycle_if_due(self, process: ChildHandle) -> None:
        """Replace a child process that loaded old plugins, or has served enough runs. While a plugin on disk is not
        as it was validated, one that has served enough stays: another one could not load that plugin."""
        served_enough = process.idle and process.served >= RUNS_BEFORE_RECYCLING
        if served_enough and (not self._changed or self._schedule.due("compare", COMPARE_EVERY)):
            self._changed = [one.name for one in self._code.plugins if not one.is_unchanged]
        if process.outdated or (served_enough and not self.missing):
            process.recycle_if_idle()

    def close(self) -> None:
        """End all child processes and wait for them. Those without a run get time to shut their plugins down."""
        deadline = time.monotonic() + GRACE
        ending = [process for process in self.children.values() if process.idle or process.recycled]
        for process in ending:
            process.hang_up()
        for process in ending:
            wait_for_exit(process.pidfd, max(0.0, deadline - time.monotonic()))
        for process in self.children.values():
            process.kill(Ending.STOPPED)
            os.waitpid(process.pid, 0)
            process.close()
        self.children.clear()
        self._selector.close()

    def _reap(self, process: ChildHandle) -> None:
        ended, returned = process.reap(lease_ended=self.lease.has_ended)
        self._ended += ended
        self._returned += returned
        if not process.ready:  # it died while it loaded its plugins, and so might the next
            self._start_after = time.monotonic() + PAUSE_AFTER_LOAD_FAILURE
        del self.children[process.pid]
