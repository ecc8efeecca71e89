"""Routing: topics -> handlers. Pure; a Router is a list with a decorator, and routing is a filter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from receiver.contract.event import Event
from receiver.contract.topics import PROBE, matches
from workers.plugins.conditions import When
from workers.plugins.context import Context

if TYPE_CHECKING:
    from receiver.inbox import Declaration

HandlerFunction = Callable[[Event, Context[Any]], Any]
F = TypeVar("F", bound=HandlerFunction)
S = TypeVar("S", bound=Callable[[Any], Any])


@dataclass(frozen=True)
class Handler:
    """One function of a plugin, and what it asked for. Config may decide otherwise."""

    name: str
    function: HandlerFunction
    topics: tuple[str, ...]
    stores: tuple[str, ...] = ("*",)
    when: When | None = None
    retries: int | tuple[float, ...] | None = None
    timeout: float | None = None
    limit: str | None = None
    queue: str = "default"
    delay: float | str = 0.0

    @property
    def own_name(self) -> str:
        """Its name within its plugin: what `[plugins.NAME.handlers]` calls it."""
        return self.name.rpartition(".")[2]

    @property
    def file(self) -> str:
        return str(getattr(self._code, "co_filename", "?"))

    @property
    def line(self) -> int:
        return int(getattr(self._code, "co_firstlineno", 0))

    @property
    def _code(self) -> Any:
        """Of the function its author wrote, below any decorators that say what they wrap."""
        return getattr(inspect.unwrap(self.function), "__code__", None)


class Router:
    """A plugin's handlers. `router = Router("loyalty")` in a module is all a plugin needs to be one.

    `settings` is a pydantic model or a dataclass: what config says of the plugin is checked by it when the worker
    starts, and `ctx.settings` is one. A router without a name is a part, for another one to include.
    """

    def __init__(self, name: str = "", *, settings: type[Any] | None = None) -> None:
        self.name = name
        self.settings = settings
        self.included: list[Router] = []
        self.startup_function: Callable[[Any], Any] | None = None
        self.shutdown_function: Callable[[Any], Any] | None = None
        self._own: list[Handler] = []

    @property
    def handlers(self) -> list[Handler]:
        """Its own handlers and those of the routers it includes, all under its name."""
        return [replace(one, name=f"{self.name}.{one.name}") for one in self._all()]

    def on(
        self,
        *topics: str,
        stores: str | Sequence[str] = "*",
        when: When | None = None,
        retries: int | Sequence[float] | None = None,
        timeout: float | None = None,
        limit: str | None = None,
        queue: str = "default",
        delay: float | str = 0.0,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Call the function for events of these topics (`"order.paid"`, `"order.*"`). Gives it back unchanged.

        stores   names of stores, or patterns
        when     a function (event) -> bool, or conditions on the data: `{"total": "> 100"}`; else it is not called
        retries  delays in seconds between attempts, or how many with growing delays; 0 is none
        timeout  seconds one run may take
        limit    the name of a `[limits.NAME]` in config: what the other side can take
        queue    the RQ queue whose workers do it
        delay    how long after its arrival an event is handled: seconds, or "10m", "2h", "1d"
        name     its name, where that should outlive the function's
        """

        def register(function: F) -> F:
            self._own.append(
                Handler(
                    name=name or str(getattr(function, "__name__", type(function).__name__)),
                    function=function,
                    topics=topics,
                    stores=(stores,) if isinstance(stores, str) else tuple(stores),
                    when=when,
                    retries=tuple(retries) if isinstance(retries, list | tuple) else retries,  # type: ignore[arg-type]
                    timeout=timeout,
                    limit=limit,
                    queue=queue,
                    delay=delay,
                )
            )
            return function

        return register

    def startup(self, function: S) -> S:
        """Call the function with the plugin's settings, once in each child process; what it returns is
        `ctx.resource`."""
        self.startup_function = function
        return function

    def shutdown(self, function: S) -> S:
        """Call the function with `ctx.resource` when a child process ends in order. One that is killed calls
        nothing."""
        self.shutdown_function = function
        return function

    def include(self, other: Router) -> None:
        """Take another router's handlers as one's own, also those that are added to it later."""
        if other is self or self in other.included:
            raise ValueError("a router cannot include itself")
        self.included.append(other)

    def _all(self) -> Iterator[Handler]:
        yield from self._own
        for other in self.included:
            yield from other._all()


def wanted_by(declarations: Iterable[Declaration], *, topic: str, store: str) -> dict[str, Declaration]:
    """The handlers that want an event, by name. Two versions of one handler are one handler."""
    if topic == PROBE:
        return {}
    return {
        one.handler: one
        for one in declarations
        if any(matches(pattern, topic) for pattern in one.topics)
        and any(matches(pattern, store) for pattern in one.stores)
    }
