"""The supervisor: keeps processes alive. Used by `storehooks dev` and by `python -m workers`.

A child that ends is started again, at once the first time and then with growing pauses. SIGTERM and
SIGINT stop the children stage by stage; however the supervisor itself ends, they end with it.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from receiver.config import Config
from workers.processes import Signals, death_words, die_with_parent

STEADY = 5.0
"""A child that lived this long starts again without a pause."""
LONGEST_PAUSE = 5.0


@dataclass(frozen=True)
class Program:
    """A process to keep alive. Programs of a higher stage are stopped first."""

    name: str
    command: list[str]
    stage: int = 1
    environ: dict[str, str] = field(default_factory=dict)
    output: Path | None = None


@dataclass
class _Child:
    program: Program
    process: subprocess.Popen[bytes]
    pidfd: int
    started: float
    falls: int


def behind_the_queue(
    config: Config, output: Path | None = None, environ: dict[str, str] | None = None
) -> list[Program]:
    """The programs of `python -m workers`: the worker processes and a housekeeper."""
    many = config.workers.processes
    modules = [(f"worker {n}" if many > 1 else "worker", "workers.worker") for n in range(1, many + 1)]
    return [
        python(name, module, config, output=output, environ=environ)
        for name, module in [*modules, ("housekeeper", "workers.housekeeper")]
    ]


def python(
    name: str,
    module: str,
    config: Config,
    *,
    stage: int = 1,
    output: Path | None = None,
    environ: dict[str, str] | None = None,
) -> Program:
    """A Python module of ours as a program, with the config this process was given."""
    command = [sys.executable, "-m", module, *(["--config", str(config.path)] if config.path else [])]
    return Program(name, command, stage, environ or {}, output)


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
        with open(program.output or os.devnull, "ab") as log:
            output = log if program.output else None
            parent = os.getpid()
            process = subprocess.Popen(
                program.command,
                env={**os.environ, **program.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us; we stop the children in order
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509  we have one thread
            )
        child = _Child(program, process, os.pidfd_open(process.pid), time.monotonic(), falls)
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
                child.process.send_signal(number)

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
        words = death_words(self._reap(child))
        falls = 0 if time.monotonic() - child.started > STEADY else child.falls + 1
        pause = min(LONGEST_PAUSE, 0.1 * 2**falls) if falls else 0.0
        log = f"; see {child.program.output}" if child.program.output and falls > 1 else ""
        self._say(f"{child.program.name} {words}; starting it again{f' in {pause:g} s' if pause else ''}{log}")
        self._due.append((time.monotonic() + pause, child.program, falls))

    def _reap(self, child: _Child) -> int:
        code = child.process.wait()
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.program.name]
        return code

    def stop_children(self) -> None:
        """Stage by stage: ask, wait as long as we have patience, then kill."""
        deadline = time.monotonic() + self._patience
        for stage in sorted({child.program.stage for child in self._children.values()}, reverse=True):
            asked = [child for child in self._children.values() if child.program.stage == stage]
            for child in asked:
                child.process.terminate()
            for child in asked:
                try:
                    child.process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.process.kill()
                self._reap(child)
        self._selector.close()
