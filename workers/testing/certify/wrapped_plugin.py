"""The plugin as the workers of a certification load it: each handler measured, and killed where the scenario says so.

The config names this module in `[workers] plugins`. The environment variable CERTIFY_CONTROL names the control file,
which each child process reads when it starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from receiver.config import load
from receiver.contract.event import Event
from workers.plugins import discovery
from workers.plugins.context import Context
from workers.plugins.exceptions import Busy, Retry
from workers.plugins.router import Handler, Router
from workers.testing.certify.scenarios import kill_after

CONTROL = "CERTIFY_CONTROL"
MEASUREMENTS = "measurements"
KILLED_MARK = "killed-"
RETRY_SECONDS = 0.05


class Control:
    """The control file: what the scenario wants of this process."""

    def __init__(self, path: Path) -> None:
        values = json.loads(path.read_text())
        self.config = values["config"]
        self.plugin: str = values["plugin"]
        self.folder = Path(values["folder"])
        self.files = Path(values["files"])
        self.seed: int = values["seed"]
        self.kill: str = values["kill"]
        self.restarts: list[str] = values["restarts"]
        self.retries: tuple[float, ...] = tuple(values["retries"])
        self.alone: str = values["alone"]
        self.with_options: bool = values["with_options"]

    def record(self, **measurement: Any) -> None:
        """Append one line to the measurements. Short appends of several processes do not mix."""
        descriptor = os.open(self.folder / MEASUREMENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, json.dumps(measurement).encode() + b"\n")
        os.close(descriptor)


class KillSwitch:
    """Counts the effects of one run and kills the process after the planned one. Each run is killed at most once."""

    def __init__(self, control: Control, event: Event, handler: str) -> None:
        self._control = control
        self._count = 0
        mark = hashlib.sha256(f"{event.id}|{handler}".encode()).hexdigest()[:16]
        self._mark = control.folder / f"{KILLED_MARK}{mark}"
        planned = control.kill == "child process" or (
            control.kill == "worker" and event.delivery_id in control.restarts
        )
        self._enabled = planned and not self._mark.exists()
        self._after = kill_after(control.seed, f"{event.delivery_id}|{handler}")

    def effect(self) -> None:
        self._count += 1
        if self._count == self._after:
            self.kill()

    def kill(self) -> None:
        if not self._enabled:
            return
        self._mark.touch()
        os.kill(os.getpid() if self._control.kill == "child process" else os.getppid(), signal.SIGKILL)
        signal.pause()  # until this process is killed together with the worker


class EffectProxy:
    """Wraps an object whose methods have effects, and reports each effect to the kill switch."""

    def __init__(
        self, target: Any, is_effect: Callable[[str], bool], kill_switch: KillSwitch, nested: bool = False
    ) -> None:
        self._target, self._is_effect, self._kill_switch, self._nested = target, is_effect, kill_switch, nested

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if self._nested and not callable(attribute):
            return EffectProxy(attribute, self._is_effect, self._kill_switch)
        if not callable(attribute) or not self._is_effect(name):
            return attribute

        @functools.wraps(attribute)
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = attribute(*args, **kwargs)
            self._kill_switch.effect()
            return result

        return counted


class ObservedContext(Context[Any]):
    """A context whose effects are counted. `once` counts two: the call, and the mark after it (`end`)."""

    kill_switch: KillSwitch

    def _performed(self, key: str, result: Any) -> Any:  # noqa: ARG002
        self.kill_switch.effect()
        return result

    @property
    def _effects(self) -> Any:
        return EffectProxy(super()._effects, lambda name: name == "end", self.kill_switch)

    @property
    def api(self) -> Any:
        return EffectProxy(
            super().api, lambda name: not name.startswith(("get", "list")), self.kill_switch, nested=True
        )

    @property
    def state(self) -> Any:
        return EffectProxy(super().state, lambda name: name != "get", self.kill_switch)


def observe(ctx: Context[Any], kill_switch: KillSwitch) -> ObservedContext:
    fields = {field.name: getattr(ctx, field.name) for field in dataclasses.fields(ctx)}
    observed = ObservedContext(**fields)
    object.__setattr__(observed, "kill_switch", kill_switch)
    return observed


def wrap_handler(handler: Handler, control: Control) -> Callable[[Event, Context[Any]], Any]:
    """The handler's function, measured. The delays of Retry and Busy are shortened."""

    @contextlib.contextmanager
    def measure(event: Event) -> Iterator[KillSwitch]:
        kill_switch = KillSwitch(control, event, handler.name)
        started = time.perf_counter()
        try:
            yield kill_switch
        except (Retry, Busy) as error:
            raise type(error)(error.why, after=RETRY_SECONDS if not control.retries else control.retries[0]) from None
        finally:
            took = (time.perf_counter() - started) * 1000
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            control.record(handler=handler.name, delivery=event.delivery_id, ms=round(took, 3), kb=memory)
        kill_switch.kill()

    @functools.wraps(handler.function)
    def measured(event: Event, ctx: Context[Any]) -> Any:
        with measure(event) as kill_switch:
            return handler.function(event, observe(ctx, kill_switch))

    @functools.wraps(handler.function)
    async def measured_async(event: Event, ctx: Context[Any]) -> Any:
        with measure(event) as kill_switch:
            return await handler.function(event, observe(ctx, kill_switch))

    return measured_async if inspect.iscoroutinefunction(inspect.unwrap(handler.function)) else measured


def _do_nothing(event: Event, ctx: Context[Any]) -> None:
    """In place of a handler, while another one is examined alone."""


def wrap_plugin(control: Control) -> Router:
    """The plugin under its own name, with its settings and startup, but without limits, delays and `stores`."""
    config = load(Path(control.config) if control.config else None, os.environ)
    plugin = discovery.load_one(config, control.plugin)
    router = Router(plugin.name, settings=plugin.router.settings)
    for name in ("startup_function", "shutdown_function", "failed_function"):
        setattr(router, name, getattr(plugin.router, name))
    for handler in plugin.handlers:
        is_off = control.alone not in ("", handler.name)
        is_ordered = handler.coalesce or control.with_options
        router.on(
            *handler.topics,
            when=handler.when,
            retries=control.retries or 0,
            timeout=handler.timeout,
            order_by=handler.order_by or ("resource" if is_ordered else None),
            on_failure=handler.on_failure,
            stale="skip" if control.with_options else handler.stale,
            name=handler.own_name,
        )(_do_nothing if is_off else wrap_handler(handler, control))
    os.chdir(control.files)
    return router


if CONTROL in os.environ:
    router = wrap_plugin(Control(Path(os.environ[CONTROL])))
