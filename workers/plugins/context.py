"""Context: the second argument of a handler."""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from receiver.contract.event import Event

if TYPE_CHECKING:
    import typing_extensions

    from workers.plugins.effects import Effects, PluginState
    from workers.storeapi import Client

    M = typing_extensions.TypeVar("M", default=Any)
else:
    M = TypeVar("M")  # a type variable with a default is for type checkers; Python 3.11 has none

T = TypeVar("T")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


def trace_parent(event: Event) -> str:
    """The `traceparent` that an event's delivery came with; empty if it had none, or an invalid one."""
    given = event.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else ""


class Settings(SimpleNamespace):
    """A plugin's settings as attributes. `repr` shows only their names: the values may be secrets."""

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(vars(self)))})"


def make_settings(values: Mapping[str, Any]) -> Settings:
    return Settings(**{name: make_settings(v) if isinstance(v, Mapping) else v for name, v in values.items()})


@dataclass(frozen=True)
class Context(Generic[M]):
    """What a handler has besides the event: settings, the store's API, effects that happen once, state, a log.

    A context belongs to one attempt of one run: to this event, this handler and this store. With
    `Router(..., settings=Model)`, annotate it as `Context[Model]`, and `ctx.settings` is a Model for type checkers too.
    """

    store: str
    """The name of the event's store."""
    settings: M
    """The plugin's settings for this store: `[plugins.NAME]`, overridden by `[stores.STORE.plugins.NAME]`."""
    resource: Any
    """What the plugin's `@router.startup` function returned in this process; None if it has none."""
    attempt: int
    """The number of this attempt; 1 is the first."""
    log: logging.Logger
    """A logger under the handler's name, for the worker's log. Do not log payloads: they are customers' data."""
    replay: bool = False
    """Whether this run is a replay that a person asked for."""
    fence: int = 0
    """With `order_by`, a number that is larger in each later run of the key and in each new attempt: a target that
    refuses a smaller number than it has seen cannot be changed by a run that was replaced. 0 without `order_by`."""
    handler: str = ""
    """The full name of this handler: PLUGIN.FUNCTION."""
    event: Event | None = field(default=None, repr=False)
    """The event that the handler is called with."""
    effects: Effects | None = field(default=None, repr=False)
    connect: Callable[[], Client] | None = field(default=None, repr=False)
    deadline: float = field(default=float("inf"), repr=False)
    stopped: Callable[[], bool] = field(default=lambda: False, repr=False)
    span: str = field(default="", repr=False)
    """The `traceparent` of this run's own span, with the extra `otel`; else empty. `trace` is the one to pass on."""

    def once(
        self,
        key: str,
        call: Callable[..., T],
        /,
        *args: Any,
        scope: Literal["event", "resource", "store"] = "event",
        in_doubt: Literal["run", "fail"] = "run",
        **kwargs: Any,
    ) -> T:
        """Perform an effect once: call, store the result as JSON, and return it as JSON holds it.

        A later attempt, redelivery or replay gets the stored result without the call. A call that raises has not
        happened, and is made again. `scope` says what an effect is done once for: the event, its resource, or the
        store. An `async def` function is awaited: `await ctx.once("mail", send, order)`. If a handler asks for the same
        effect twice at the same time (`asyncio.gather`, threads), the second waits for the result of the first.

        If a process died between the call and storing its result, the effect is in doubt. Then in_doubt="run" calls
        again (send `ctx.key(key)` to the other side as its idempotency key), and in_doubt="fail" fails the run, for a
        person to decide.
        """
        from workers.plugins.effects import Effect

        place, run = self._place(scope)
        mark = f"{self.handler}|{key}"
        if scope != "event":  # such marks grow without end, so each is a key of its own that expires by itself
            place = f"{place}:{mark}"
        effect = Effect(self._effects, place, mark, run, in_doubt, self.deadline)
        if not inspect.iscoroutinefunction(call):
            return effect.once(lambda: self._performed(key, call(*args, **kwargs)))

        async def perform() -> Any:
            return self._performed(key, await call(*args, **kwargs))

        return cast(T, effect.once_awaited(perform))

    def _performed(self, key: str, result: T) -> T:  # noqa: ARG002
        """Called with the result of each call that `once` makes. The test kit records it."""
        return result

    def key(self, key: str, *, scope: Literal["event", "resource", "store"] = "event") -> str:
        """An idempotency key for the other side: the same for every attempt and replay of this run.

        No other run has it, unless `scope` is "resource" or "store": the handler's runs for the same one share it.
        """
        place, _ = self._place(scope)
        return hashlib.sha256(f"{place}\0{self.store}\0{self.handler}\0{key}".encode()).hexdigest()[:32]

    @property
    def api(self) -> Client:
        """The client of the store's API: authorised and rate-limited. Its connections are reused by later runs."""
        if self.connect is None:
            raise RuntimeError("this context has no client of the store's API; pass connect=")
        return self.connect()

    @property
    def state(self) -> PluginState:
        """A small key-value store, shared by all runs of this plugin for this store."""
        from workers.plugins.effects import PluginState

        return PluginState(self._effects, self.handler.partition(".")[0], self.store)

    @property
    def trace(self) -> str:
        """The `traceparent` of the delivery (W3C Trace Context), or of this run with the extra `otel`. Empty if there
        is none."""
        return self.span or (trace_parent(self.event) if self.event else "")

    def remaining(self) -> float:
        """Seconds until this run times out."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def stopping(self) -> bool:
        """Whether the worker was asked to stop. A long-running handler can then raise Retry to end early."""
        return self.stopped()

    @property
    def _effects(self) -> Effects:
        if self.effects is None:
            raise RuntimeError("this context cannot store effects and state; pass effects=LocalEffects()")
        return self.effects

    def _place(self, scope: str) -> tuple[str, str]:
        """The key of a scope's marks, and the run that makes them."""
        event_id = self.event.id if self.event else ""
        if scope == "event":
            place = f"o:{event_id}"
        elif scope == "resource":
            if self.event is None or not self.event.resource_id:
                raise ValueError("this event has no resource id; use scope='event'")
            place = f"o:r:{self.store}:{self.event.topic.partition('.')[0]}:{self.event.resource_id}"
        elif scope == "store":
            place = f"o:s:{self.store}"
        else:
            raise ValueError(f"scope is event, resource or store, not {scope!r}")
        return place, f"{event_id}|{self.handler}"
