"""The supervisor: keeps processes alive. Used by `storehooks dev` and by `python -m workers`.

A child that ends is started again, at once the first times and then with growing pauses. SIGTERM and
SIGINT stop the children stage by stage; however the supervisor itself ends, they end with it. Our own
programs are forked and not executed: what they import is there already, so a fall costs milliseconds.
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
from workers.processes import Signals, become_a_child, describe_exit, name_process, wait_for

STEADY = 5.0
"""A child that lived this long starts again without a pause."""
FREE_FALLS = 3
LONGEST_PAUSE = 1.0


@dataclass(frozen=True)
class Program:
    """A process to keep alive: a command to execute, or a function to call. Higher stages are stopped first."""

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
    falls: int


def behind_the_queue(
    config: Config, *, output: Path | None = None, environ: dict[str, str] | None = None
) -> list[Program]:
    """The programs of `python -m workers`: the worker processes and a housekeeper."""
    from workers.runtime import housekeeper
    from workers.runtime.worker import worker

    many, path = config.workers.processes, str(config.path) if config.path else None
    names = [f"worker {n}" for n in range(1, many + 1)] if many > 1 else ["worker"]
    calls = [(name, lambda: worker.run(path)) for name in names] + [("housekeeper", lambda: housekeeper.run(path))]
    return [Program(name, call=call, output=output, environ=environ or {}) for name, call in calls]


def python(module: str, config: Config, *arguments: str) -> list[str]:
    """The command for a Python module of ours, with the config this process was given."""
    given = ["--config", str(config.path)] if config.path else []
    return [sys.executable, "-m", module, *arguments, *given]


class Supervisor:
    def __init__(self, *, say: Callable[[str], Any], patience: float) -> None:
        self._say = say
        self._patience = patience
        self._children: dict[str, _Child] = {}
        self._due: list[tuple[float, Program, int]] = []
        self._selector = selectors.DefaultSelector()
        self._signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._selector.register(self._signals, selectors.EVENT_READ, self._signals.clear)
        self._stopping = False

    def start(self, program: Program, falls: int = 0) -> None:
        sys.stdout.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(program, parent)
        child = _Child(program, pid, os.pidfd_open(pid), time.monotonic(), falls)
        self._children[program.name] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._fell(child))

    def watch(self, descriptor: Any, call: Callable[[], None]) -> None:
        """Call something when a descriptor is readable, in the same loop."""
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def unwatch(self, descriptor: Any) -> None:
        self._selector.unregister(descriptor)

    def stop(self) -> None:
        self._stopping = True

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the children whose name begins so."""
        for child in self._children.values():
            if child.program.name.startswith(name):
                os.kill(child.pid, number)

    def run(self, *, every: Callable[[], None] = lambda: None) -> None:
        """Until asked to stop; calls `every` a few times a second. `stop_children` is the caller's last word."""
        while not self._stopping:
            self.turn(0.2)
            every()

    def turn(self, seconds: float) -> None:
        """Wait for what happens, at most so long, and see to it."""
        for key, _ in self._selector.select(seconds):
            key.data()
        seen, self._signals.seen = self._signals.seen, []
        if signal.SIGHUP in seen:
            self.signal("", signal.SIGHUP)
        if signal.SIGTERM in seen or signal.SIGINT in seen:
            self._stopping = True
        now = time.monotonic()
        due, self._due = (
            [one for one in self._due if one[0] <= now],
            [one for one in self._due if one[0] > now],
        )
        for _, program, falls in due:
            self.start(program, falls)

    def _fell(self, child: _Child) -> None:
        words = describe_exit(self._reap(child))
        falls = 0 if time.monotonic() - child.started > STEADY else child.falls + 1
        pause = min(LONGEST_PAUSE, 0.1 * 2 ** (falls - FREE_FALLS)) if falls >= FREE_FALLS else 0.0
        log = f"; see {child.program.output}" if child.program.output and falls > 1 else ""
        self._say(f"{child.program.name} {words}; starting it again{f' in {pause:g} s' if pause else ''}{log}")
        self._due.append((time.monotonic() + pause, child.program, falls))

    def _reap(self, child: _Child) -> int:
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.program.name]
        return os.waitstatus_to_exitcode(status)

    def stop_children(self, *, above: int = -1) -> None:
        """Stage by stage: ask, wait as long as we have patience, then kill; with `above`, only the stages above it."""
        deadline = time.monotonic() + self._patience
        stages = {child.program.stage for child in self._children.values()}
        for stage in sorted((one for one in stages if one > above), reverse=True):
            asked = [child for child in self._children.values() if child.program.stage == stage]
            for child in asked:
                os.kill(child.pid, signal.SIGTERM)
            for child in asked:
                if not wait_for(child.pidfd, max(0.1, deadline - time.monotonic())):
                    os.kill(child.pid, signal.SIGKILL)
                self._reap(child)
        if not self._children:
            self._selector.close()


def _become(program: Program, parent: int) -> NoReturn:
    """In the child: a session of its own (Ctrl-C is for the supervisor), its own output, then the program."""
    code = 1
    try:
        become_a_child(parent)
        name_process(program.name)
        _redirect(program.output)
        os.environ.update(program.environ)
        if program.call is None:
            os.execvp(program.command[0], program.command)
        code = program.call()
    except Exception as error:  # noqa: BLE001  nothing may climb back into the supervisor's code
        print(f"storehooks {program.name}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(output: Path | None) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if output is not None:
        log = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
