"""Helpers for processes: commands, forks, children that end with their parent, their signs of life, orphans, signals in
a loop, what is due."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, NoReturn

from receiver.process.standard_streams import open_closed_streams

ENDED_BY = (signal.SIGTERM, signal.SIGINT)
"""The signals that end a process of ours, unless it handles them."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_TIME = struct.Struct("d")
_libc = ctypes.CDLL(None, use_errno=True)


def python_command(module: str, *arguments: str, config: Path | None) -> list[str]:
    """The command for one of our Python modules, with a config file.

    With -P and `run_module`, no folder of the user hides a module of ours or of a library.
    """
    given = ["--config", str(config)] if config else []
    return [sys.executable, "-P", "-m", "storehooks.run_module", module, *arguments, *given]


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Call it in a child: the kernel ends it when its parent ends in any way. Linux only; elsewhere it does nothing."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # the parent ended before prctl was called
            os._exit(1)


def begin_start() -> None:
    """Call it first in a program that handles signals later: until it makes `Signals`, HUP waits, and others end it.
    Standard streams that are closed become /dev/null."""
    open_closed_streams()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    for number in ENDED_BY:
        signal.signal(number, lambda *_: os._exit(0))


def reap_orphans_if_first() -> None:
    """Call it first in a program that starts processes. The first process of a container inherits the orphans there,
    and must reap them. It does only that, passes signals on, and ends as the program does, which is its child.
    """
    if os.getpid() != 1:
        return
    passed_on = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)  # PID 1 ignores them until they have a handler
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    for number in passed_on:
        signal.signal(number, lambda got, _: os.kill(child, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def fork(run: Callable[[], NoReturn]) -> tuple[int, int]:
    """Fork a process that calls `run`; returns its pid and its pidfd. Raises OSError at a limit of processes, memory or
    descriptors, and leaves nothing then."""
    pid = os.fork()
    if pid == 0:
        run()
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def isolate_child(parent: int, *, keep_open: Iterable[int] = ()) -> None:
    """Call it first in a forked child: its own session, no inherited signals or descriptors, ends with its parent."""
    os.setsid()
    die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    for number in (*ENDED_BY, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDED_BY)
    signal.signal(signal.SIGHUP, lambda *_: None)  # if it were ignored, a handler's own subprocesses would inherit that
    kept = {0, 1, 2, *keep_open}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def name_process(name: str) -> None:
    """Set the name that `top` and `pgrep` show: at most 15 characters, and never anything of a payload."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_NAME, f"sh-{name}".encode()[:15])


def wait_for_exit(pidfd: int, seconds: float | None) -> bool:
    """Wait for a process to end; whether it has within this time. None waits for as long as it takes."""
    return bool(select.select([pidfd], [], [], seconds)[0])


def describe_exit(code: int) -> str:
    """How a process ended, as text; `code` is as in `subprocess`."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class SignOfLife:
    """When a child process last showed life, in memory that it shares with its parent. Make it before the fork."""

    _own: ClassVar[list[SignOfLife]] = []

    def __init__(self, awaited_since: float | None = None) -> None:
        self._memory = mmap.mmap(-1, _TIME.size)
        self.awaited_since = awaited_since or time.monotonic()
        """Since when a first sign is awaited, of this process or of those before it that ended without one."""

    def adopt(self) -> None:
        """In the child: `show_life` writes here from now on."""
        SignOfLife._own[:] = [self]

    @staticmethod
    def show() -> None:
        """In the child: it responds now. Without a parent that looks at it, this does nothing."""
        for own in SignOfLife._own:
            _TIME.pack_into(own._memory, 0, time.monotonic())

    def silent_for(self, start_seconds: float) -> float:
        """Seconds; a process that has not shown life yet may take some to start."""
        last = float(_TIME.unpack_from(self._memory)[0])
        return time.monotonic() - (last or self.awaited_since + start_seconds)

    @property
    def was_shown(self) -> bool:
        return bool(_TIME.unpack_from(self._memory)[0])


class Signals:
    """Signals as a descriptor that a loop can wait for."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self.seen: list[signal.Signals] = []
        signal.set_wakeup_fd(self._sender.fileno())
        for number in numbers:
            signal.signal(number, lambda got, _: self.seen.append(signal.Signals(got)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def fileno(self) -> int:
        """Readable when a signal has arrived; then call `clear`."""
        return self._receiver.fileno()

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._receiver.recv(64):
                pass

    def wait(self, seconds: float) -> None:
        """Wait until a signal arrives, or this time has passed."""
        if select.select([self], [], [], seconds)[0]:
            self.clear()


class Schedule:
    """Remembers when each periodic task was last due."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def due(self, name: str, every: float) -> bool:
        """Whether a task is due again. If so, it counts as done now."""
        now = time.monotonic()
        if now - self._last.get(name, 0.0) < every:
            return False
        self._last[name] = now
        return True
