"""The supervisor: starts processes and restarts those that end. Used by `storehooks dev` and by `python -m workers`.

A process that ends is restarted, at once the first times and then with growing pauses. SIGTERM and SIGINT stop the
processes stage by stage. They also end when the supervisor itself is killed. Our own programs are forked and not
executed: what they import is loaded already, so a restart takes milliseconds.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from receiver.config import Config
from workers.plugins.validation_process import LOAD_SECONDS, ValidatedPlugins
from workers.processes import (
    ENDED_BY,
    Signals,
    SignOfLife,
    describe_exit,
    fork,
    isolate_child,
    name_process,
    wait_for_exit,
)

STEADY_SECONDS = 5.0
"""A process that ran this long is restarted without a pause."""
IMMEDIATE_RESTARTS = 3
LONGEST_PAUSE = 1.0


@dataclass(frozen=True)
class Program:
    """A process to supervise: a command to execute, or a function to call. Higher stages are stopped first."""

    name: str
    command: list[str] = field(default_factory=list)
    call: Callable[[], int] | None = None
    stage: int = 1
    environ: dict[str, str] = field(default_factory=dict)
    output: Path | None = None


@dataclass
class _Child:
    program: Program
    pid: int
    pidfd: int
    started: float
    restarts: int
    sign: SignOfLife
    kill_at: float | None = None
    """It was asked to end and is not restarted; when it is killed if it has not ended."""
    is_replaced: bool = False
    """It was asked to end and is started again."""


def worker_programs(
    config: Config, plugins: ValidatedPlugins, *, output: Path | None = None, environ: dict[str, str] | None = None
) -> list[Program]:
    """The programs of `python -m workers`: the worker processes and a housekeeper.

    However late one is started, it uses this config and these plugins: the files on disk may be invalid since, or
    changed and not reloaded.
    """
    from workers.runtime import housekeeper
    from workers.runtime.worker import worker

    path = str(config.path) if config.path else None
    names = ["worker", *(f"worker {n}" for n in range(2, config.workers.processes + 1))]
    calls = [(name, lambda: worker.run(path, (config, plugins))) for name in names]
    calls.append(("housekeeper", lambda: housekeeper.run(path, config)))
    return [Program(name, call=call, output=output, environ=environ or {}) for name, call in calls]


class Supervisor:
    def __init__(self, *, report: Callable[[str], Any], stop_seconds: float) -> None:
        self.stop_seconds = stop_seconds
        """How long a process may take to end before it is killed."""
        self._report = report
        self._children: dict[str, _Child] = {}
        self._to_restart: list[tuple[float, Program, int]] = []
        self._awaited: dict[str, float] = {}
        """Of processes that ended without a sign of life: since when the first one is awaited."""
        self.selector = selectors.DefaultSelector()
        self._signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self.selector.register(self._signals, selectors.EVENT_READ, self._signals.clear)
        self._stopping = False
        self._on_hup: Callable[[], None] = lambda: None
        self._hup_at = 0.0
        """When HUP was last sent to processes."""

    def start(self, program: Program, restarts: int = 0) -> None:
        """Start a process. At a limit of processes, memory or descriptors it is tried again, and the others go on."""
        sys.stdout.flush()
        parent = os.getpid()
        # A child has our handlers at first, which would keep a signal to themselves; HUP waits until it has its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, *ENDED_BY})
        try:
            sign = SignOfLife(self._awaited.get(program.name))
            pid, pidfd = fork(lambda: _run_and_exit(program, parent, sign))
        except OSError as error:
            self._report(f"{program.name} cannot be started: {error.strerror}; trying again in {LONGEST_PAUSE:g} s")
            self._to_restart.append((time.monotonic() + LONGEST_PAUSE, program, restarts))
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child = _Child(program, pid, pidfd, time.monotonic(), restarts, sign)
        self._children[program.name] = child
        self.selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._restart(child))

    def silent(self, seconds: float) -> list[str]:
        """The processes that have not shown life for this long. For the first sign they have the time in which plugins
        must load in addition, also if they end and are started again meanwhile."""
        return sorted(name for name, one in self._children.items() if one.sign.silent_for(LOAD_SECONDS) > seconds)

    def has_shown_life(self, name: str) -> bool:
        return name in self._children and self._children[name].sign.was_shown

    def watch(self, descriptor: Any, call: Callable[[], None]) -> None:
        """Also call this function when a descriptor is readable."""
        self.selector.register(descriptor, selectors.EVENT_READ, call)

    def unwatch(self, descriptor: Any) -> None:
        self.selector.unregister(descriptor)

    def on_hup(self, call: Callable[[], None]) -> None:
        """Also call this function on HUP, which is then passed on to every process."""
        self._on_hup = call

    def change(self, before: list[Program], after: list[Program]) -> None:
        """After a reload: start the programs that are only in `after`; let those that are only in `before` end, each
        with its drain. The others are started again as in `after`."""
        old, new = {one.name: one for one in before}, {one.name: one for one in after}
        self._to_restart = [(at, new.get(one.name, one), restarts) for at, one, restarts in self._to_restart]
        for name in old.keys() & new.keys() & self._children.keys():
            kept = self._children[name]
            kept.program = new[name]
            if kept.started >= self._hup_at:  # it did not get HUP, and began as in `before`
                os.kill(kept.pid, signal.SIGHUP)
        for name in old.keys() - new.keys():
            self._to_restart = [one for one in self._to_restart if one[1].name != name]
            if child := self._children.get(name):
                child.kill_at = time.monotonic() + self.stop_seconds
                os.kill(child.pid, signal.SIGTERM)
        for name in sorted(new.keys() - old.keys()):
            if child := self._children.get(name):  # it is still ending, and is started again after that
                child.program, child.kill_at = new[name], None
            else:
                self.start(new[name])

    def stop(self) -> None:
        self._stopping = True

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the processes whose name begins with `name`. One that ends by it is started again."""
        if number == signal.SIGHUP:
            self._hup_at = time.monotonic()
        for child in self._children.values():
            if child.program.name.startswith(name):
                child.is_replaced = child.is_replaced or number == signal.SIGTERM
                os.kill(child.pid, number)

    def run(self, *, every: Callable[[], None] = lambda: None) -> None:
        """Supervise until asked to stop; calls `every` a few times a second. The caller then calls `stop_children`."""
        while not self._stopping:
            self.poll(0.2)
            every()

    def poll(self, seconds: float) -> None:
        """Wait at most this time for signals and processes that end, and handle them."""
        for key, _ in self.selector.select(seconds):
            key.data()
        seen, self._signals.seen = self._signals.seen, []
        if signal.SIGHUP in seen:
            self._on_hup()  # first: a process may take the port that this one is about to try
            self.signal("", signal.SIGHUP)
        if signal.SIGTERM in seen or signal.SIGINT in seen:
            self._stopping = True
        now = time.monotonic()
        for child in self._children.values():
            if child.kill_at is not None and child.kill_at < now:
                os.kill(child.pid, signal.SIGKILL)
        due, self._to_restart = (
            [one for one in self._to_restart if one[0] <= now],
            [one for one in self._to_restart if one[0] > now],
        )
        for _, program, restarts in due:
            self.start(program, restarts)

    def _restart(self, child: _Child) -> None:
        """Reap a process that ended, and plan when it is started again, unless it was asked to end."""
        ended = describe_exit(self._reap(child))
        if child.kill_at is not None:
            return
        restarts = 0 if time.monotonic() - child.started > STEADY_SECONDS else child.restarts + 1
        over = restarts - IMMEDIATE_RESTARTS
        pause = min(LONGEST_PAUSE, 0.1 * 2**over) if over >= 0 else 0.0
        log = f"; see {child.program.output}" if child.program.output and restarts > 1 else ""
        if not child.is_replaced:
            self._report(f"{child.program.name} {ended}; restarting it{f' in {pause:g} s' if pause else ''}{log}")
        self._to_restart.append((time.monotonic() + pause, child.program, restarts))

    def _reap(self, child: _Child) -> int:
        _, status = os.waitpid(child.pid, 0)
        self.selector.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.program.name]
        self._awaited.pop(child.program.name, None)
        if not child.sign.was_shown:
            self._awaited[child.program.name] = child.sign.awaited_since
        return os.waitstatus_to_exitcode(status)

    def stop_children(self, *, above: int = -1) -> None:
        """Stop the processes stage by stage: SIGTERM, wait, then SIGKILL. With `above`, only the stages above it."""
        deadline = time.monotonic() + self.stop_seconds
        stages = {child.program.stage for child in self._children.values()}
        for stage in sorted((one for one in stages if one > above), reverse=True):
            stopping = [child for child in self._children.values() if child.program.stage == stage]
            for child in stopping:
                os.kill(child.pid, signal.SIGTERM)
            for child in stopping:
                if not wait_for_exit(child.pidfd, max(0.1, deadline - time.monotonic())):
                    os.kill(child.pid, signal.SIGKILL)
                self._reap(child)
        if not self._children:
            self.selector.close()


def _run_and_exit(program: Program, parent: int, sign: SignOfLife) -> NoReturn:
    """In the child: a session of its own (Ctrl-C is for the supervisor), its own output, then the program."""
    code = 1
    try:
        isolate_child(parent)
        sign.adopt()
        name_process(program.name)
        _redirect(program.output)
        os.environ.update(program.environ)
        if program.call is None:
            os.umask(0o077)  # the embedded server stores payloads
            os.execvp(program.command[0], program.command)
        code = program.call()
    except Exception as error:  # noqa: BLE001  nothing may return into the supervisor's code
        print(f"storehooks {program.name}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(output: Path | None) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if output is not None:
        log = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
