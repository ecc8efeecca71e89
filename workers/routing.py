"""Routing: topics -> handlers. Pure; a Router is a list with a decorator, and routing is a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from receiver.contract.event import Event
from receiver.contract.topics import PROBE, matches

if TYPE_CHECKING:
    from receiver.inbox import Declaration
    from workers.context import Context

HandlerFunction = Callable[[Event, "Context"], Any]
F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=Callable[..., Any])


@dataclass(frozen=True)
class Handler:
    """One function of a plugin, and what it asked for. Config may decide otherwise."""

    name: str
    function: HandlerFunction
    topics: tuple[str, ...]
    stores: tuple[str, ...] = ("*",)
    retries: int | tuple[float, ...] | None = None
    timeout: float | None = None
    limit: str | None = None
    queue: str = "default"

    @property
    def file(self) -> str:
        return self.function.__code__.co_filename

    @property
    def line(self) -> int:
        return self.function.__code__.co_firstlineno


class Router:
    """A plugin's handlers. `Router("loyalty")` in a module is all a plugin needs to be one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.handlers: list[Handler] = []
        self.startup_function: Callable[..., Any] | None = None

    def on(
        self,
        *topics: str,
        stores: str | Sequence[str] = "*",
        retries: int | Sequence[float] | None = None,
        timeout: float | None = None,
        limit: str | None = None,
        queue: str = "default",
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Call the function for events of these topics (`"order.paid"`, `"order.*"`). Gives it back unchanged."""

        def register(function: F) -> F:
            self.handlers.append(
                Handler(
                    name=f"{self.name}.{name or function.__name__}",
                    function=function,
                    topics=topics,
                    stores=(stores,) if isinstance(stores, str) else tuple(stores),
                    retries=retries if retries is None or isinstance(retries, int) else tuple(retries),
                    timeout=timeout,
                    limit=limit,
                    queue=queue,
                )
            )
            return function

        return register

    def startup(self, function: S) -> S:
        """Call the function once in each horse; what it returns is `ctx.resource`."""
        self.startup_function = function
        return function


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
