"""Context: what a handler is given beside the event."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from receiver.contract.event import Event

if TYPE_CHECKING:
    import typing_extensions

    from workers.plugins.effects import Effects, PluginState
    from workers.storeapi import Client

    M = typing_extensions.TypeVar("M", default=Any)
else:
    M = TypeVar("M")  # a type variable with a default is for type checkers; Python 3.11 has none

T = TypeVar("T")


class Settings(SimpleNamespace):
    """A plugin's settings, read as attributes. They may hold secrets, so they do not show themselves."""

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(vars(self)))})"


def make_settings(values: Mapping[str, Any]) -> Settings:
    return Settings(**{name: make_settings(v) if isinstance(v, Mapping) else v for name, v in values.items()})


@dataclass(frozen=True)
class Context(Generic[M]):
    """One attempt of one run: everything in it is for this event, this handler and this store.

    `Context[Model]` is one whose settings are of the model the plugin's Router was given.
    """

    store: str
    """The event's store."""
    settings: M
    """What config says to this plugin about this store."""
    resource: Any
    """What the plugin's startup function returned in this process; None without one."""
    attempt: int
    """1 the first time."""
    log: logging.Logger
    """For the worker's log, under the handler's name; never write a payload there."""
    replay: bool = False
    """Whether somebody had this run done again."""
    handler: str = ""
    """This handler's full name: PLUGIN.FUNCTION."""
    event: Event | None = field(default=None, repr=False)
    """The event, as the handler is given it."""
    effects: Effects | None = field(default=None, repr=False)
    connect: Callable[[], Client] | None = field(default=None, repr=False)
    deadline: float = field(default=float("inf"), repr=False)
    stopped: Callable[[], bool] = field(default=lambda: False, repr=False)

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
        """Call and remember the JSON result; a later attempt, redelivery or replay gets the result without the call.

        If an attempt died between the call and its mark, the effect is in doubt: "run" calls again (send `ctx.key(key)`
        as the remote's idempotency key), "fail" makes it a failure for a person.
        """
        from workers.plugins.effects import once

        place, whose = self._place(scope)
        mark = f"{self.handler}|{key}"
        if scope != "event":  # there is no end to such marks, so each has an age of its own
            place = f"{place}:{mark}"
        return once(self._effects, place, mark, whose, lambda: call(*args, **kwargs), in_doubt=in_doubt)

    def key(self, key: str, *, scope: Literal["event", "resource", "store"] = "event") -> str:
        """The same for every attempt and replay of this run, and for nothing else: an idempotency key."""
        place, _ = self._place(scope)
        return hashlib.sha256(f"{place}\0{self.store}\0{self.handler}\0{key}".encode()).hexdigest()[:32]

    @property
    def api(self) -> Client:
        """The API of the event's store: authorised, rate-limited, its connections kept over many runs."""
        if self.connect is None:
            raise RuntimeError("this context has no way to the store's API; give it connect=")
        return self.connect()

    @property
    def state(self) -> PluginState:
        """A small key-value store for this plugin and this store."""
        from workers.plugins.effects import PluginState

        return PluginState(self._effects, self.handler.partition(".")[0], self.store)

    def remaining(self) -> float:
        """Seconds until this run is timed out."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def stopping(self) -> bool:
        """Whether the worker was asked to stop; a long handler may end early with Retry."""
        return self.stopped()

    @property
    def _effects(self) -> Effects:
        if self.effects is None:
            raise RuntimeError("this context has no memory for once() and state; give it effects=LocalEffects()")
        return self.effects

    def _place(self, scope: str) -> tuple[str, str]:
        """Where marks of a scope are kept, and the run that makes them."""
        event_id = self.event.id if self.event else ""
        if scope == "event":
            place = f"o:{event_id}"
        elif scope == "resource":
            if self.event is None or not self.event.resource_id:
                raise ValueError("this event names no resource; use scope='event'")
            place = f"o:r:{self.store}:{self.event.topic.partition('.')[0]}:{self.event.resource_id}"
        elif scope == "store":
            place = f"o:s:{self.store}"
        else:
            raise ValueError(f"scope is event, resource or store, not {scope!r}")
        return place, f"{event_id}|{self.handler}"
