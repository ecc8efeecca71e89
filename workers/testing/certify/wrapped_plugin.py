"""The plugin as the rig's workers load it: each handler measured, and its process killed where the plan says so.

It is named in the rig's `[workers] plugins`. What is to happen stands in a file that `$CERTIFY_CONTROL` names; it is
read when a child process is born.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from receiver.config import load
from receiver.contract.event import Event
from workers.plugins import loading
from workers.plugins.context import Context
from workers.plugins.exceptions import Busy, Retry
from workers.plugins.router import Handler, Router
from workers.testing.certify.scenarios import kill_after

CONTROL = "CERTIFY_CONTROL"
SOON = 0.05


class Control:
    """What the trial wants of this process."""

    def __init__(self, path: Path) -> None:
        told = json.loads(path.read_text())
        self.config = told["config"]
        self.plugin: str = told["plugin"]
        self.folder = Path(told["folder"])
        self.files = Path(told["files"])
        self.seed: int = told["seed"]
        self.kill: str = told["kill"]
        self.restarts: list[str] = told["restarts"]
        self.retries: tuple[float, ...] = tuple(told["retries"])

    def note(self, **line: Any) -> None:
        """One line in the journal of measurements; short appends of several processes do not mix."""
        descriptor = os.open(self.folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.close(descriptor)


class Fuse:
    """Counts the effects of one run, and kills after the one that was planned; each run at most once."""

    def __init__(self, control: Control, event: Event, handler: str) -> None:
        self._control = control
        self._count = 0
        mark = hashlib.sha256(f"{event.id}|{handler}".encode()).hexdigest()[:16]
        self._mark = control.folder / f"died-{mark}"
        planned = control.kill == "child process" or (
            control.kill == "worker" and event.delivery_id in control.restarts
        )
        self._armed = planned and not self._mark.exists()
        self._after = kill_after(control.seed, f"{event.delivery_id}|{handler}")

    def effect(self) -> None:
        self._count += 1
        if self._count == self._after:
            self._burn()

    def end(self) -> None:
        self._burn()

    def _burn(self) -> None:
        if not self._armed:
            return
        self._mark.touch()
        os.kill(os.getpid() if self._control.kill == "child process" else os.getppid(), signal.SIGKILL)
        signal.pause()  # until the worker's death reaches us


class ObservedHandler:
    """Stands before something with effects, and tells the fuse when one has happened."""

    def __init__(self, target: Any, is_effect: Callable[[str], bool], fuse: Fuse, deep: bool = False) -> None:
        self._target, self._is_effect, self._fuse, self._deep = target, is_effect, fuse, deep

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if self._deep and not callable(found):
            return ObservedHandler(found, self._is_effect, self._fuse)
        if not callable(found) or not self._is_effect(name):
            return found

        @functools.wraps(found)
        def told(*args: Any, **named: Any) -> Any:
            result = found(*args, **named)
            self._fuse.effect()
            return result

        return told


class ObservedContext(Context[Any]):
    """A context whose effects are counted. `once` has two places to die: after the call, and after its mark."""

    fuse: Fuse

    def once(self, key: str, call: Callable[..., Any], /, *args: Any, **how: Any) -> Any:
        def told(*given: Any, **named: Any) -> Any:
            result = call(*given, **named)
            self.fuse.effect()
            return result

        found = super().once(key, told, *args, **how)
        self.fuse.effect()
        return found

    @property
    def api(self) -> Any:
        return ObservedHandler(super().api, lambda name: not name.startswith(("get", "list")), self.fuse, deep=True)

    @property
    def state(self) -> Any:
        return ObservedHandler(super().state, lambda name: name != "get", self.fuse)


def watched(ctx: Context[Any], fuse: Fuse) -> ObservedContext:
    fields = {field.name: getattr(ctx, field.name) for field in dataclasses.fields(ctx)}
    made = ObservedContext(**fields)
    object.__setattr__(made, "fuse", fuse)
    return made


def wrap(handler: Handler, control: Control) -> Callable[[Event, Context[Any]], Any]:
    """The handler's function, measured; what it wants tried later is tried soon."""

    @functools.wraps(handler.function)
    def measured(event: Event, ctx: Context[Any]) -> Any:
        fuse = Fuse(control, event, handler.name)
        started = time.perf_counter()
        try:
            result = handler.function(event, watched(ctx, fuse))
        except (Retry, Busy) as word:
            raise type(word)(word.why, after=SOON if not control.retries else control.retries[0]) from None
        finally:
            took = (time.perf_counter() - started) * 1000
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            control.note(handler=handler.name, delivery=event.delivery_id, ms=round(took, 3), kb=memory)
        fuse.end()
        return result

    return measured


def wrapped(control: Control) -> Router:
    """The plugin under its own name: same settings and startup; no limits, no delays, every store."""
    config = load(Path(control.config) if control.config else None, os.environ)
    plugin = loading.load_one(config, control.plugin)
    made = Router(plugin.name, settings=plugin.router.settings)
    made.startup_function, made.shutdown_function = plugin.router.startup_function, plugin.router.shutdown_function
    for handler in plugin.handlers:
        made.on(
            *handler.topics,
            when=handler.when,
            retries=control.retries or 0,
            timeout=handler.timeout,
            name=handler.own_name,
        )(wrap(handler, control))
    os.chdir(control.files)
    return made


if CONTROL in os.environ:
    router = wrapped(Control(Path(os.environ[CONTROL])))
