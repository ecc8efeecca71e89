"""One child process, as its worker sees it: start it, give it batches, read its results, recycle, kill and reap it.

The messages between the two are at the end of this file. Both processes are always forked from the same code, so the
format needs no compatibility. A child process runs other people's code, so the worker only reads JSON from it.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import selectors
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, BinaryIO, NoReturn

import orjson

from receiver import logs
from receiver.inbox import Run, StoredEvent
from receiver.inbox.outcomes import Ending, RunResult
from workers.plugins.validation_process import LOAD_SECONDS
from workers.processes import describe_exit, fork, isolate_child, name_process
from workers.runtime.pool.run_limits import GRACE, over_memory, over_time

SEND_SECONDS = 1.0
"""Seconds that a child process may take to accept a batch. An idle one reads at once, a stopped one never."""
RECYCLED = "recycled"

EndedRun = tuple[Run, RunResult]

_LENGTH = struct.Struct("!I")
_ORDER = ("replays", "order_key", "fence", "stops_key", "merged")
_FIELDS = attrgetter("item", "handler", "attempts", "losses", "stored.id", "stored.values", "stored.blob", *_ORDER)
_ENDINGS = {str(one): one for one in Ending}

log = logs.get("pool")


class ChildHandle:
    """While it lives, its channel and its pidfd are in the selector of the pool, with this object as their data."""

    def __init__(
        self, pid: int, pidfd: int, channel: socket.socket, tickets: tuple[int, int], selector: selectors.BaseSelector
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.batch: deque[Run] = deque()
        """Runs given and not yet ended, in order; the first is under way."""
        self.ready = False
        self.missing: dict[str, str] = {}
        """The plugins that it could not load, and why. None of their runs is given to it."""
        self.served = 0
        """The number of runs that it has ended."""
        self.outdated = False
        """Whether it loaded an old config or old plugins. It is replaced when it is idle."""
        self._channel = channel
        self._tickets_out, self._tickets_in = tickets
        self._selector = selector
        self._unread = b""
        """The beginning of a message whose rest has not come yet."""
        self._batch_number = 0
        """Which batch this is, written on its tickets."""
        self._started = time.monotonic()
        self._run_began = 0.0
        self._failure: RunResult | None = None
        """How the run under way ends, while the plugin's function for failures is called."""
        self._end_reason = ""
        """Why the worker ended it, where it did: an Ending, RECYCLED, or a sentence."""
        selector.register(channel, selectors.EVENT_READ, self)
        selector.register(self.pidfd, selectors.EVENT_READ, self)

    @classmethod
    def start(cls, serve: Callable[[socket.socket, int], None], selector: selectors.BaseSelector) -> ChildHandle:
        """Fork a process that calls `serve` with its end of the channel and the pipe it reads tickets from. Raises
        OSError if it cannot be started, and leaves nothing then."""
        parent = os.getpid()
        with contextlib.ExitStack() as ends:
            ours, theirs = socket.socketpair()
            ends.enter_context(ours)
            with theirs:
                tickets = os.pipe()
                for descriptor in tickets:
                    ends.callback(os.close, descriptor)
                os.set_blocking(tickets[0], False)
                pid, pidfd = fork(lambda: _serve_and_exit(serve, theirs, tickets[0], parent))
            ends.pop_all()
        ours.settimeout(SEND_SECONDS)
        return cls(pid, pidfd, ours, tickets, selector)

    @property
    def idle(self) -> bool:
        return self.ready and not self.batch and not self._end_reason

    @property
    def recycled(self) -> bool:
        """It is ending because it has served enough runs or loaded an old config."""
        return self._end_reason == RECYCLED

    @property
    def handler(self) -> str:
        """The handler whose run is under way; empty if none is."""
        return self.batch[0].handler if self.batch else ""

    def give(self, runs: Sequence[Run]) -> None:
        """Send a batch of runs of one handler, with a ticket for each run. It must be idle."""
        self.batch.extend(runs)
        self._run_began = time.monotonic()
        self._batch_number = (self._batch_number + 1) % 256
        try:
            os.write(self._tickets_in, bytes([self._batch_number]) * len(runs))
            self._channel.sendall(pack_runs(self._batch_number, runs))
        except OSError:  # it has just died, or reads nothing; its runs are returned when it is reaped
            self.kill(Ending.STOPPED)

    def read_results(self) -> list[EndedRun]:
        """The runs that ended since the last call."""
        try:
            piece = self._channel.recv(1 << 16)
        except OSError:
            piece = b""
        if not piece:  # it closed its end; its pidfd reports its death
            self._stop_listening()
            return []
        return self._results_in(piece)

    def take_back(self) -> list[Run]:
        """Read the tickets that it has not used; those runs, the last of the batch, were not begun and are returned."""
        try:
            unused = len(os.read(self._tickets_out, 4096))
        except BlockingIOError:
            return []
        return [self.batch.pop() for _ in range(unused)][::-1]

    def take_back_if_slow(self, seconds: float) -> list[Run]:
        """Take back the rest of the batch, if the run under way has taken longer than this."""
        slow = len(self.batch) > 1 and time.monotonic() - self._run_began > seconds
        return self.take_back() if slow else []

    def recycle_if_idle(self) -> None:
        """Let it end, if no run is under way."""
        if not self.batch and not self._end_reason:
            self._end_reason = RECYCLED
            self._run_began = time.monotonic()
            self.hang_up()

    def hang_up(self) -> None:
        """Close the channel. An idle child process then shuts its plugins down and exits."""
        self._stop_listening()
        self._channel.close()

    def kill_if_overdue(self, timeout_of: Callable[[str], float], memory: int) -> None:
        """Kill it if its run is past its timeout and grace, if it uses too much memory, or if it does not load or
        end in time."""
        now = time.monotonic()
        if not self.ready and self._started < now - LOAD_SECONDS:
            self.kill(f"it had not loaded its plugins after {LOAD_SECONDS:g} s")
        if self.recycled and now - self._run_began > SEND_SECONDS + GRACE:
            self.kill("killed: it was recycled and did not end")
        if not self.batch or self._end_reason:
            return
        over = over_time(now - self._run_began, timeout_of(self.handler)) or over_memory(self.pid, memory)
        if over:
            self.kill(over)

    def kill(self, reason: str) -> None:
        """Kill it with everything it started. Its death is noticed like any other, and `reap` then reports it."""
        if self._end_reason in ("", RECYCLED):
            self._end_reason = reason
            self._send_kill()

    def reap(self, *, lease_ended: bool = False) -> tuple[list[EndedRun], list[Run]]:
        """It is dead: read its last messages, end the run under way, and return the results and the runs not begun.

        Where the worker lost a run's lease, it has most likely lost the leases of the whole batch: all of it ends. A
        child process with an ordered run ends by itself when the worker's leases have ended.
        """
        ended, returned = self._last_results(), []
        if lease_ended and self.batch and self.batch[0].order_key:
            self._end_reason = self._end_reason or Ending.LOST
        if self._end_reason == Ending.LOST:
            ended += [(run, RunResult(Ending.LOST, {})) for run in self.batch]
            self.batch.clear()
        else:
            returned = self.take_back()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # what it left running; its pid is not reused before waitpid
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if self.batch:
            run = self.batch.popleft()
            ended.append((run, _result_of_death(run.handler, self._end_reason, code, self._failure)))
        if self._end_reason != RECYCLED:
            log.info("child process ended", pid=self.pid, why=self._end_reason or describe_exit(code))
        returned.extend(self.batch)
        self.close()
        return ended, returned

    def close(self) -> None:
        """Close its descriptors. It was reaped."""
        self.hang_up()
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self.pidfd)
        for descriptor in (self.pidfd, self._tickets_in, self._tickets_out):
            os.close(descriptor)

    def _last_results(self) -> list[EndedRun]:
        ended: list[EndedRun] = []
        with contextlib.suppress(OSError):
            self._channel.setblocking(False)
            while piece := self._channel.recv(1 << 16):
                ended += self._results_in(piece)
        return ended

    def _results_in(self, piece: bytes) -> list[EndedRun]:
        ended: list[EndedRun] = []
        try:
            *lines, self._unread = (self._unread + piece).split(b"\n")
            for line in lines:
                self._read_message(orjson.loads(line), ended)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.kill("killed: something else than its child process wrote to the worker")
        return ended

    def _read_message(self, message: dict[str, Any], ended: list[EndedRun]) -> None:
        if message.get("ready"):
            self.ready = True
            self.missing = dict(message["missing"])
        elif self.batch and self.batch[0].item == message["item"]:
            result = RunResult(_ENDINGS[message["ending"]], message["detail"], message["after"])
            self._run_began = time.monotonic()  # of the next run, or of the function for failures
            self._failure = result if message["failing"] else None
            if not message["failing"]:
                ended.append((self.batch.popleft(), result))
                self.served += 1

    def _send_kill(self) -> None:
        """To the process group, and to the process itself: a new one does not lead its group yet."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def _stop_listening(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._channel)


def _serve_and_exit(
    serve: Callable[[socket.socket, int], None], channel: socket.socket, tickets: int, parent: int
) -> NoReturn:
    """In the child. It leads a session of its own, so that it can be killed with all it started."""
    code = 1
    try:
        isolate_child(parent, keep_open={channel.fileno(), tickets})
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which then stops its child processes
        name_process("child")
        serve(channel, tickets)
        code = 0
    finally:
        os._exit(code)


def _result_of_death(handler: str, reason: str, code: int, failure: RunResult | None) -> RunResult:
    """A kill by the worker because of a lost lease, or to stop, burns no attempt; any other death does. A death in the
    plugin's function for failures is not the handler's: its run has failed already."""
    why = reason or f"its process {describe_exit(code)}"
    if failure is not None and reason != Ending.LOST:
        log.warning("the function of @router.failed did not return", handler=handler, why=why)
        return failure
    return RunResult(reason, {}) if isinstance(reason, Ending) else RunResult(Ending.DIED, {"error": why})


# The messages


def pack_runs(batch: int, runs: Sequence[Run]) -> bytes:
    """A batch for the child process: 4 bytes with the length, then its number and its runs by `marshal`.

    An event stays as the server sent it. Only the child process that needs it reads it.
    """
    content = marshal.dumps((batch, [*map(_FIELDS, runs)]))
    return _LENGTH.pack(len(content)) + content


def read_runs(stream: BinaryIO) -> tuple[int, list[Run]] | None:
    """In the child process: the next batch with its number, or None when the worker has closed its end."""
    prefix = stream.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    batch, fields = marshal.loads(stream.read(_LENGTH.unpack(prefix)[0]))  # noqa: S302  the worker wrote it
    return batch, [
        Run(item, handler, "", attempts, losses, StoredEvent(event_id, values, blob), *order)
        for item, handler, attempts, losses, event_id, values, blob, *order in fields
    ]


def pack_message(message: Mapping[str, Any]) -> bytes:
    """A line of JSON for the worker: {"ready": true} with the plugins that it could not load, or a result."""
    return orjson.dumps(message) + b"\n"


def pack_result(item: str, result: RunResult, *, failing: bool = False) -> bytes:
    """A line of JSON for the worker: how a run ended, or will end once the function for failures was called."""
    ending, detail, after = result
    return pack_message({"item": item, "ending": ending, "detail": detail, "after": after, "failing": failing})
