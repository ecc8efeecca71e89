"""The stable: a worker's child processes. Forks them, feeds them, watches them, and kills what must be killed.

It knows nothing of Redis. It is given runs and gives back how they ended; what to do about that is the
worker's business.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from receiver import logs
from receiver.config import Config
from receiver.inbox import Run
from receiver.inbox.outcomes import Ending, RunResult
from workers.processes import become_a_child, death_words, name_process, wait_for
from workers.runtime.pool import child, messages
from workers.runtime.pool.messages import MessageReader

GRACE = 2.0
"""How long past its timeout a run may go on before its child process is killed."""
LOAD_SECONDS = 60.0
FEED_SECONDS = 1.0
"""How long a child process may take to accept a batch; an idle one reads at once, a stopped one never."""
RUNS_BEFORE_RECYCLING = 5_000
PAUSE_AFTER_BROKEN = 1.0

log = logs.get("stable")


@dataclass
class Child:
    """One child process, as its worker sees it."""

    pid: int
    pidfd: int
    channel: socket.socket
    tickets_in: int
    tickets_out: int
    """Our own end for reading: by it we take tickets back."""
    lines: MessageReader = field(default_factory=MessageReader)
    batch: deque[Run] = field(default_factory=deque)
    """Runs given and not yet ended, in order; the first is under way."""
    number: int = 0
    """Which batch this is, written on its tickets."""
    since: float = 0.0
    """When the first of the batch was begun."""
    born: float = field(default_factory=time.monotonic)
    ready: bool = False
    served: int = 0
    verdict: str = ""
    """Why we killed it, when we did."""

    @property
    def idle(self) -> bool:
        return self.ready and not self.batch and not self.verdict

    @property
    def handler(self) -> str:
        return self.batch[0].handler if self.batch else ""


class ChildPool:
    def __init__(self, config: Config, size: int) -> None:
        self.config = config
        self._size = size
        self._stalls: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._ended: list[tuple[Run, RunResult]] = []
        self._returned: list[Run] = []
        self._stop_flag = mmap.mmap(-1, 1)
        self._not_before = 0.0
        self._old: set[int] = set()

    @property
    def fileno(self) -> int:
        """Readable when a child process has something to say, or has died."""
        return self._selector.fileno()

    @property
    def idle(self) -> int:
        return sum(stall.idle for stall in self._stalls.values())

    @property
    def busy(self) -> bool:
        """Whether runs are under way here, or have ended or come back and were not handed over yet."""
        return bool(self._ended or self._returned) or any(stall.batch for stall in self._stalls.values())

    @property
    def in_batches(self) -> bool:
        """Whether a child process has more of its batch to do after the run under way."""
        return any(len(stall.batch) > 1 for stall in self._stalls.values())

    def holding(self) -> Counter[str]:
        """How many child processes each handler holds."""
        return Counter(stall.handler for stall in self._stalls.values() if stall.batch)

    def runs(self) -> Iterator[Run]:
        """All that is leased to this worker and was not handed over as ended or returned."""
        for stall in self._stalls.values():
            yield from stall.batch
        yield from self._returned

    def fill(self) -> None:
        """Fork what is missing; not at once after one that could not load its plugins."""
        while len(self._stalls) < self._size and time.monotonic() >= self._not_before:
            self._fork()

    def give(self, runs: Sequence[Run]) -> bool:
        """Hand a batch of one handler to an idle child process. False if there is none."""
        stall = next((one for one in self._stalls.values() if one.idle), None)
        if stall is None:
            return False
        stall.batch.extend(runs)
        stall.since = time.monotonic()
        stall.number = (stall.number + 1) % 256
        try:
            os.write(stall.tickets_in, bytes([stall.number]) * len(runs))
            stall.channel.sendall(messages.pack_runs(stall.number, runs))
        except OSError:  # it has just died, or takes nothing; the runs come back when it is buried
            self._kill(stall, Ending.STOPPED)
        return True

    def poll(self) -> tuple[list[tuple[Run, RunResult]], list[Run]]:
        """What has happened: runs that ended, and runs that come back untouched."""
        for key, _ in self._selector.select(0):
            key.data()
        ended, self._ended = self._ended, []
        returned, self._returned = self._returned, []
        return ended, returned

    def take_back_the_rest(self, *, longer_than: float) -> None:
        """Where the run under way has taken so long, give the rest of its batch back."""
        now = time.monotonic()
        for stall in self._stalls.values():
            if len(stall.batch) > 1 and now - stall.since > longer_than:
                self._take_back(stall)

    def kill_overdue(self, timeout_of: Callable[[str], float], memory: int) -> None:
        """Kill the child processes whose run is past its timeout and grace, or which hold too much memory."""
        now = time.monotonic()
        for stall in self._stalls.values():
            if stall.born < now - LOAD_SECONDS and not stall.ready:
                self._kill(stall, f"it had not loaded its plugins after {LOAD_SECONDS:g} s")
            if stall.verdict == "recycled" and now - stall.since > FEED_SECONDS + GRACE:
                self._strike(stall)
            if not stall.batch or stall.verdict:
                continue
            timeout = timeout_of(stall.handler)
            if now - stall.since > timeout + GRACE:
                self._kill(stall, f"killed: still running {GRACE:g} s after its timeout of {timeout:g} s")
            elif (held := _resident_bytes(stall.pid)) > memory:
                self._kill(stall, f"killed: its process held {held >> 20} MB, limit {memory >> 20} MB")

    def kill_runs(self, items: set[str]) -> None:
        """Kill the child processes at work on runs that are no longer ours, and hand none of these back to be begun
        again."""
        self._returned = [run for run in self._returned if run.item not in items]
        for stall in self._stalls.values():
            if stall.batch and stall.batch[0].item in items:
                self._kill(stall, Ending.LOST)

    def kill_all(self) -> None:
        for stall in self._stalls.values():
            self._kill(stall, Ending.STOPPED)

    def stop(self) -> None:
        """Tell handlers that the worker is stopping (`ctx.stopping`), and take back what is not begun."""
        self._stop_flag[0] = 1
        for stall in self._stalls.values():
            self._take_back(stall)

    def renew(self, config: Config) -> None:
        """Replace every child process by one with this config, each when it has nothing to do."""
        self.config = config
        self._old = set(self._stalls)
        for stall in list(self._stalls.values()):
            self._retire_if_due(stall)

    def close(self) -> None:
        """End all child processes and wait for them: idle ones in order, so that their plugins can shut down."""
        deadline = time.monotonic() + GRACE
        idle = [stall for stall in self._stalls.values() if stall.idle]
        for stall in idle:
            self._stop_listening(stall)
            stall.channel.close()
        for stall in idle:
            wait_for(stall.pidfd, max(0.0, deadline - time.monotonic()))
        for stall in list(self._stalls.values()):
            self._kill(stall, Ending.STOPPED)
            os.waitpid(stall.pid, 0)
            self._forget(stall)
        self._selector.close()

    # One child process

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        tickets_out, tickets_in = os.pipe()
        os.set_blocking(tickets_out, False)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_a_horse(theirs, tickets_out, parent)
        theirs.close()
        ours.settimeout(FEED_SECONDS)
        stall = Child(pid, os.pidfd_open(pid), ours, tickets_in, tickets_out)
        self._stalls[pid] = stall
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._hear(stall))
        self._selector.register(stall.pidfd, selectors.EVENT_READ, lambda: self._bury(stall))

    def _become_a_horse(self, channel: socket.socket, tickets: int, parent: int) -> None:
        """In the child. Its own session, so that it can be killed with all it started; nothing else kept open."""
        code = 1
        try:
            become_a_child(parent, keep={channel.fileno(), tickets})
            signal.signal(
                signal.SIGINT, signal.SIG_IGN
            )  # whoever interrupts the worker does not mean its child processes
            name_process("child")
            child.main(self.config, channel, tickets, lambda: self._stop_flag[0] == 1)
            code = 0
        finally:
            os._exit(code)

    def _hear(self, stall: Child) -> None:
        try:
            piece = stall.channel.recv(1 << 16)
        except OSError:
            piece = b""
        if not piece:  # it closed its end; its pidfd tells the rest
            self._stop_listening(stall)
            return
        self._note_all(stall, piece)

    def _note_all(self, stall: Child, piece: bytes) -> None:
        try:
            for message in stall.lines.feed(piece):
                self._note(stall, message)
        except (ValueError, KeyError, TypeError, AttributeError):
            self._kill(stall, "killed: something else than its child process wrote to the worker")

    def _note(self, stall: Child, message: dict[str, Any]) -> None:
        if message.get("ready"):
            stall.ready = True
        elif "broken" in message:
            log.error("a child process could not load the plugins", why=message["broken"])
            self._not_before = time.monotonic() + PAUSE_AFTER_BROKEN
        elif stall.batch and stall.batch[0].item == message["item"]:
            result = messages.read_result(message)
            self._ended.append((stall.batch.popleft(), result))
            stall.since = time.monotonic()
            stall.served += 1
            self._retire_if_due(stall)

    def _retire_if_due(self, stall: Child) -> None:
        """A child process that has served enough, or is of an old config, ends when it has nothing to do."""
        due = stall.served >= RUNS_BEFORE_RECYCLING or stall.pid in self._old
        if due and not stall.batch and not stall.verdict:
            stall.verdict = "recycled"
            stall.since = time.monotonic()
            self._stop_listening(stall)
            stall.channel.close()

    def _take_back(self, stall: Child) -> None:
        """Read the tickets it has not used; those runs, the last of the batch, come back untouched."""
        try:
            unused = len(os.read(stall.tickets_out, 4096))
        except BlockingIOError:
            return
        self._returned += reversed([stall.batch.pop() for _ in range(unused)])

    def _kill(self, stall: Child, verdict: str) -> None:
        """Kill a child process with everything it started. Its death is noticed like any other."""
        if not stall.verdict:
            stall.verdict = verdict
            self._strike(stall)

    @staticmethod
    def _strike(stall: Child) -> None:
        """The group, and the process itself: a newborn one does not lead its group yet."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(stall.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(stall.pidfd, signal.SIGKILL)

    def _bury(self, stall: Child) -> None:
        """A child process is dead: hear its last words, charge the run under way, give the rest back.

        Where its runs were lost, the rest is most likely somebody else's, too: it ends here.
        """
        if stall.channel.fileno() >= 0:
            self._hear_last_words(stall)
        if stall.verdict == Ending.LOST:
            self._ended += [(run, RunResult(Ending.LOST, {})) for run in stall.batch]
            stall.batch.clear()
        else:
            self._take_back(stall)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(stall.pid, signal.SIGKILL)  # what it left running; its number is still its own
        _, status = os.waitpid(stall.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if not stall.ready:  # it died while it loaded its plugins, and so might the next
            self._not_before = time.monotonic() + PAUSE_AFTER_BROKEN
        if stall.batch:
            self._ended.append((stall.batch.popleft(), _how_it_died(stall.verdict, code)))
        self._returned.extend(stall.batch)
        if stall.verdict != "recycled":
            log.info("child process gone", pid=stall.pid, why=stall.verdict or death_words(code))
        self._forget(stall)

    def _hear_last_words(self, stall: Child) -> None:
        stall.channel.setblocking(False)
        with contextlib.suppress(OSError):
            while piece := stall.channel.recv(1 << 16):
                self._note_all(stall, piece)

    def _stop_listening(self, stall: Child) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stall.channel)

    def _forget(self, stall: Child) -> None:
        self._stop_listening(stall)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stall.pidfd)
        stall.channel.close()
        for descriptor in (stall.pidfd, stall.tickets_in, stall.tickets_out):
            os.close(descriptor)
        self._old.discard(stall.pid)
        del self._stalls[stall.pid]


def _how_it_died(verdict: str, code: int) -> RunResult:
    """A kill by the worker because of a lost lease, or to stop, burns no attempt; any other death does."""
    if isinstance(verdict, Ending):
        return RunResult(verdict, {})
    return RunResult(Ending.DIED, {"error": verdict or f"its process {death_words(code)}"})


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return 0
