"""Router: a plugin's handlers, and what each of them asks for. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from receiver.contract.event import Event
from receiver.contract.topics import PROBE, matches
from workers.plugins.conditions import When
from workers.plugins.context import Context

if TYPE_CHECKING:
    from receiver.inbox import Declaration

HandlerFunction = Callable[[Event, Context[Any]], Any]
FailedFunction = Callable[[Event, Context[Any], BaseException], Any]
F = TypeVar("F", bound=HandlerFunction)
G = TypeVar("G", bound=FailedFunction)
EraseFunction = Callable[[Any, Context[Any]], Any]
E = TypeVar("E", bound=EraseFunction)
S = TypeVar("S", bound=Callable[[Any], Any])


@dataclass(frozen=True)
class Handler:
    """One function of a plugin, with the options of its `@router.on`. The config may override some of them."""

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
    echo: str = "drop"
    order_by: str | None = None
    on_failure: Literal["continue", "stop"] = "continue"
    stale: Literal["run", "skip"] = "run"
    wait_for_gap: float | str = 0.0
    coalesce: float | str = 0.0
    place: tuple[str, int] | None = None
    """The file and line of a handler that is written in the config."""
    store_limits: str = ""
    """If code and config both limit its stores: what each of them says."""

    @property
    def own_name(self) -> str:
        """Its name within its plugin, as in `[plugins.NAME.handlers]`."""
        return self.name.rpartition(".")[2]

    @property
    def file(self) -> str:
        return self.place[0] if self.place else str(getattr(self._code, "co_filename", "?"))

    @property
    def line(self) -> int:
        return self.place[1] if self.place else int(getattr(self._code, "co_firstlineno", 0))

    @property
    def module(self) -> str:
        return str(getattr(inspect.unwrap(self.function), "__module__", "?"))

    @property
    def _code(self) -> Any:
        """The code of the function as written, below any decorators that use functools.wraps."""
        return getattr(inspect.unwrap(self.function), "__code__", None)


class Router:
    """A plugin's handlers. A module or file with `router = Router("loyalty")` is a plugin.

    The name is the plugin's: handlers are called `loyalty.FUNCTION`, and `[plugins.loyalty]` in the config has its
    settings. `settings=` is a pydantic model or a dataclass. The worker checks the config against it at start, and
    `ctx.settings` is an instance of it; without a model, `ctx.settings` has the values as attributes. A router without
    a name is a part of a plugin, for another router to include.
    """

    def __init__(self, name: str = "", *, settings: type[Any] | None = None) -> None:
        self.name = name
        self.settings = settings
        self.included: list[Router] = []
        self.startup_function: Callable[[Any], Any] | None = None
        self.shutdown_function: Callable[[Any], Any] | None = None
        self.failed_function: FailedFunction | None = None
        self.erase_function: EraseFunction | None = None
        self._own: list[Handler] = []

    @property
    def handlers(self) -> list[Handler]:
        """Its own handlers and those of the routers it includes, with the plugin's name before theirs."""
        return [replace(one, name=f"{self.name}.{one.name}") for one in self._all_handlers()]

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
        echo: Literal["drop", "run"] = "drop",
        order_by: str | None = None,
        on_failure: Literal["continue", "stop"] = "continue",
        stale: Literal["run", "skip"] = "run",
        wait_for_gap: float | str = 0.0,
        coalesce: float | str = 0.0,
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Register a handler: the function is called with (event, ctx) for each event of these topics.

        It may be an `async def` function: each child process has one event loop.

        Topics are names or patterns: `"order.paid"`, `"order.*"`, `"*"`. The function itself is returned unchanged, so
        that a test can call it. The config can override stores, retries, timeout and limit.

        stores   names or patterns of stores
        when     a condition: a function (event) -> bool, or paths into event.data: `{"total": "> 100"}`. If it is
                 false, the handler is not called and the run is dropped, with the reason
        retries  delays in seconds between attempts, or a number of retries with growing delays; 0 is none
        timeout  seconds that one attempt may take
        limit    the name of a `[limits.NAME]` in the config: how many runs the other side can take
        queue    the queue whose workers do the runs
        delay    how long after its arrival an event is handled: seconds, or "10m", "2h", "1d"
        echo     whether the handler is called for the store's event about a write of this plugin itself, by `ctx.api`:
                 "drop" (not called) or "run"
        order_by run events with one key one at a time, in the order of their acceptance: "resource", "store", or a path
                 into the data, such as "data.customer_id". Other keys run in parallel
        on_failure  what an ordered run that has failed for good does to its key: "continue" lets the next one run,
                 "stop" waits until the failure is replayed or dropped
        stale    whether the handler is called for an event that is older than one of the same resource that it has
                 settled: "run", or "skip" (not called)
        wait_for_gap  with stale="skip": how long an event waits for the one with the number before its own if that is
                 missing, by the `sequence` of the store's scheme: seconds, or "30s", "5m"
        coalesce  merge the events of one resource that arrive within this time after the first into one run, with the
                 newest; `event.merged` has the ids of the others: seconds, or "5s", "1m"
        name     the handler's name, if it should not be the function's: it stays the same when the function is renamed
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
                    echo=echo,
                    order_by=order_by,
                    on_failure=on_failure,
                    stale=stale,
                    wait_for_gap=wait_for_gap,
                    coalesce=coalesce,
                )
            )
            return function

        return register

    def startup(self, function: S) -> S:
        """Call the function with the plugin's settings, once in each child process, before the first run.

        What it returns is `ctx.resource`: a connection or a client that the handlers share.
        """
        self.startup_function = function
        return function

    def shutdown(self, function: S) -> S:
        """Call the function with `ctx.resource` when a child process shuts down. A killed process does not call it."""
        self.shutdown_function = function
        return function

    def failed(self, function: G) -> G:
        """Call the function with (event, ctx, error) once when a run of this plugin fails for good.

        That is after its last retry, or after Fail; a replay that fails again calls it again. It runs in the child
        process of the run, with the handler's timeout. What it returns or raises changes nothing: the run is a failure
        and stays in `storehooks failures`. It is not called where the process of the last attempt died.
        """
        self.failed_function = function
        return function

    def erase(self, function: E) -> E:
        """Call the function with (subject, ctx) when `storehooks erase` erases a person's data.

        The subject has `store`, `by` ("customer", "resource" or "match"), `name` (the kind of the resource, or the
        path) and `value` (the id, or the value at the path). It runs in the process of the command, before the receipt
        is written; a number that it returns is in the receipt. It may be called again for the same subject, if the
        command was interrupted. If it raises, the erasure has not ended.
        """
        self.erase_function = function
        return function

    def include(self, other: Router) -> None:
        """Add the handlers of another router, under this router's name; also those that are registered there later."""
        if other is self or self in other.included:
            raise ValueError("a router cannot include itself")
        self.included.append(other)

    def _all_handlers(self) -> Iterator[Handler]:
        yield from self._own
        for other in self.included:
            yield from other._all_handlers()


def wanted_by(declarations: Iterable[Declaration], *, topic: str, store: str) -> dict[str, Declaration]:
    """The handlers that an event is routed to, by name. Two versions of one handler are one handler."""
    if topic == PROBE:
        return {}
    return {
        one.handler: one
        for one in declarations
        if any(matches(pattern, topic) for pattern in one.topics)
        and any(matches(pattern, store) for pattern in one.stores)
    }
