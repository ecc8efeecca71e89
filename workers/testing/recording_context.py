"""A context that needs no server and records what the handler did with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from receiver.contract.event import Event
from workers.plugins.context import Context, make_settings
from workers.testing.events import make_event

if TYPE_CHECKING:
    from workers.storeapi import Client

ApiCall = tuple[str, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class RecordingContext(Context[Any]):
    """A context that needs no server. A test can read afterwards what the handler did with it."""

    once_calls: list[tuple[str, Any]] = field(default_factory=list, repr=False)
    """The key and the result of each call that `once` made. Remembered results are not listed."""
    logged: list[str] = field(default_factory=list, repr=False)
    """Each line of `ctx.log`, as "LEVEL text"."""
    api_calls: list[ApiCall] = field(default_factory=list, repr=False)
    """Each call of `ctx.api`: ("orders.get", (1001,), {})."""

    def _performed(self, key: str, result: Any) -> Any:
        self.once_calls.append((key, result))
        return result


def make_context(
    event: Event | None = None,
    *,
    settings: Any = None,
    resource: Any = None,
    api: Client | Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    after: Context[Any] | None = None,
    attempt: int = 1,
    replay: bool = False,
    handler: str = "test.handler",
    timeout: float = 60.0,
    stopping: bool = False,
) -> RecordingContext:
    """Make a context to call a handler with. It needs no server and sends nothing over the network.

    settings  the plugin's model, or a mapping
    api       answers by operation, `{"customers.get": {"id": 7}}`; a function is called with the handler's arguments,
              an exception is raised; or a client, such as the `store` fixture's
    after     an earlier context, whose `once` results and `state` this one continues with
    """
    from workers.plugins.effects import LocalEffects

    event = event or make_event()
    effects = after.effects if after is not None else LocalEffects()
    calls: list[ApiCall] = []
    logged: list[str] = []
    context = RecordingContext(
        store=event.store,
        settings=make_settings(settings or {}) if settings is None or isinstance(settings, Mapping) else settings,
        resource=resource,
        attempt=attempt,
        log=_recording_logger(handler, logged),
        replay=replay,
        handler=handler,
        event=event,
        effects=effects,
        connect=lambda: RecordedApi(api, calls),  # type: ignore[arg-type,return-value]
        deadline=time.monotonic() + timeout,
        stopped=lambda: stopping,
        api_calls=calls,
        logged=logged,
    )
    for name, value in (state or {}).items():
        context.state.set(name, value)
    return context


def _recording_logger(name: str, logged: list[str]) -> logging.Logger:
    """A logger for this context alone, outside the global registry. Its records still reach pytest's caplog."""

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(f"{record.levelname} {record.getMessage()}")

    logger = logging.Logger(name, logging.DEBUG)
    logger.parent = logging.getLogger()
    logger.addHandler(Recorder())
    return logger


class RecordedApi:
    """A stand-in for `ctx.api`. It records every call and returns the test's answer, or a real client's."""

    def __init__(self, answers: Any, calls: list[ApiCall]) -> None:
        self._answers = answers if answers is not None else {}
        self._calls = calls

    def __getattr__(self, group: str) -> Any:
        return _RecordedGroup(group, self._answers, self._calls)


class _RecordedGroup:
    def __init__(self, group: str, answers: Any, calls: list[ApiCall]) -> None:
        self._group, self._answers, self._calls = group, answers, calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        from workers.storeapi.catalogue import bundled_catalogue

        operation = f"{self._group}.{name}"
        if operation not in bundled_catalogue().operations and isinstance(self._answers, Mapping):
            raise AttributeError(f"the store's API has no operation {operation}; `storehooks api --list` shows them")

        def call(*args: Any, **fields: Any) -> Any:
            self._calls.append((operation, args, fields))
            if not isinstance(self._answers, Mapping):
                return getattr(getattr(self._answers, self._group), name)(*args, **fields)
            return self._answer(operation, args, fields)

        return call

    def _answer(self, operation: str, args: tuple[Any, ...], fields: dict[str, Any]) -> Any:
        from receiver.contract.records import make
        from workers.storeapi.catalogue import bundled_catalogue

        if operation not in self._answers:
            raise AssertionError(f'{operation} has no answer; set one: make_context(api={{"{operation}": ...}})')
        answer = self._answers[operation]
        if callable(answer):
            answer = answer(*args, **fields)
        if isinstance(answer, BaseException):
            raise answer
        kind = bundled_catalogue().operations[operation].record
        if isinstance(answer, list):
            return [make(kind, item) if isinstance(item, Mapping) else item for item in answer]
        return make(kind, answer) if isinstance(answer, Mapping) else answer
