"""The child processes of a worker: keeps their number, finds an idle one, and collects their results.

It does not know Redis. It takes runs and returns how they ended; the worker decides what that means.
"""

from __future__ import annotations

import mmap
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

from receiver.config import Config
from receiver.inbox import Run
from receiver.inbox.outcomes import Ending
from workers.processes import wait_for_exit
from workers.runtime.pool import child
from workers.runtime.pool.child_handle import GRACE, ChildHandle, EndedRun

PAUSE_AFTER_LOAD_FAILURE = 1.0


class ChildPool:
    def __init__(self, config: Config, size: int) -> None:
        self.config = config
        self._size = size
        self._children: dict[int, ChildHandle] = {}
        self._selector = selectors.DefaultSelector()
        self._ended: list[EndedRun] = []
        self._returned: list[Run] = []
        self._stop_flag = mmap.mmap(-1, 1)
        """Shared with the child processes: `ctx.stopping` reads it."""
        self._start_after = 0.0

    @property
    def fileno(self) -> int:
        """Readable when a child process has sent a message or has died."""
        return self._selector.fileno()

    @property
    def idle(self) -> int:
        """The number of idle child processes."""
        return sum(process.idle for process in self._children.values())

    @property
    def busy(self) -> bool:
        """Whether runs are under way, or have ended or were returned and `poll` has not handed them over yet."""
        return bool(self._ended or self._returned) or any(process.batch for process in self._children.values())

    @property
    def in_batches(self) -> bool:
        """Whether a child process has more of its batch to do after the run under way."""
        return any(len(process.batch) > 1 for process in self._children.values())

    def by_handler(self) -> Counter[str]:
        """The number of child processes that are busy with each handler."""
        return Counter(process.handler for process in self._children.values() if process.batch)

    def runs(self) -> Iterator[Run]:
        """All runs whose leases are the worker's and that `poll` has not handed over."""
        for process in self._children.values():
            yield from process.batch
        yield from self._returned

    def fill(self) -> None:
        """Start missing child processes. After one that could not load its plugins, the next waits a moment."""
        while len(self._children) < self._size and time.monotonic() >= self._start_after:
            process = ChildHandle.start(self._serve, self._selector)
            self._children[process.pid] = process

    def idle_child(self) -> ChildHandle | None:
        return next((process for process in self._children.values() if process.idle), None)

    def poll(self) -> tuple[list[EndedRun], list[Run]]:
        """The runs that have ended since the last call, and the runs that were returned and not begun."""
        for key, _ in self._selector.select(0):
            if key.fd == key.data.pidfd:
                self._reap(key.data)
            else:
                self._ended += key.data.read_results()
        ended, self._ended = self._ended, []
        returned, self._returned = self._returned, []
        return ended, returned

    def take_back_waiting(self, *, longer_than: float) -> None:
        """Where a run has taken longer than this, take back the runs of its batch that wait behind it."""
        for process in self._children.values():
            self._returned += process.take_back_if_slow(longer_than)

    def kill_overdue(self, timeout_of: Callable[[str], float], memory: int) -> None:
        """Kill the child processes that are past a timeout or use too much memory."""
        for process in self._children.values():
            process.kill_if_overdue(timeout_of, memory)

    def kill_runs(self, items: set[str]) -> None:
        """Kill the child processes whose run has lost its lease. Such runs are not returned, to be begun again."""
        self._returned = [run for run in self._returned if run.item not in items]
        for process in self._children.values():
            if process.batch and process.batch[0].item in items:
                process.kill(Ending.LOST)

    def kill_all(self) -> None:
        for process in self._children.values():
            process.kill(Ending.STOPPED)

    def stop(self) -> None:
        """Let `ctx.stopping` be true, and take back the runs that are not begun."""
        self._stop_flag[0] = 1
        for process in self._children.values():
            self._returned += process.take_back()

    def reload(self, config: Config) -> None:
        """Replace every child process by one with this config, each when it is idle."""
        self.config = config
        for process in self._children.values():
            process.outdated = True
            process.recycle_if_due()

    def close(self) -> None:
        """End all child processes and wait for them. Those without a run get time to shut their plugins down."""
        deadline = time.monotonic() + GRACE
        ending = [process for process in self._children.values() if process.idle or process.recycled]
        for process in ending:
            process.hang_up()
        for process in ending:
            wait_for_exit(process.pidfd, max(0.0, deadline - time.monotonic()))
        for process in self._children.values():
            process.kill(Ending.STOPPED)
            os.waitpid(process.pid, 0)
            process.close()
        self._children.clear()
        self._selector.close()

    def _serve(self, channel: socket.socket, tickets: int) -> None:
        child.serve(self.config, channel, tickets, lambda: self._stop_flag[0] == 1)

    def _reap(self, process: ChildHandle) -> None:
        ended, returned = process.reap()
        self._ended += ended
        self._returned += returned
        if not process.ready:  # it died while it loaded its plugins, and so might the next
            self._start_after = time.monotonic() + PAUSE_AFTER_LOAD_FAILURE
        del self._children[process.pid]
