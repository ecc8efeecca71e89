"""For integrators: what a plugin's tests need. Calling a handler needs no server, a real pipeline is three lines.

    def test_a_paid_order_earns_points():
        event = make_event("order.paid", {"total": "42.00"})
        assert award_points(event, make_context(event)) == "42 points"

The same are pytest fixtures, with `store` (the sandbox over HTTP) and `system` (the real pipeline); see
docs/how-to/testing.md. Importing this is light: what a test does not use is not loaded.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from receiver.contract.event import Event, event_id
from workers.plugins.context import Context, make_settings

if TYPE_CHECKING:
    from receiver.inbox.queries.events import EventRecord, RunRecord
    from workers.storeapi import Client
    from workers.testing.local_system import LocalSystem

__all__ = [
    "RecordingContext",
    "SandboxStore",
    "SentEvent",
    "SystemUnderTest",
    "make_context",
    "make_event",
    "sample_events",
]

_numbers = itertools.count(1)
SETTLES_WITHIN = 20.0


def make_event(
    topic: str = "order.created",
    data: Mapping[str, Any] | None = None,
    *,
    exact: bool = False,
    store: str = "demo",
    delivery_id: str = "",
    resource_id: str = "",
    occurred_at: datetime | None = None,
    received_at: datetime | None = None,
    headers: Mapping[str, str] | None = None,
) -> Event:
    """An event as a handler is given it: a sample of its topic, with `data` over it; or `data` alone with `exact`.

    Each has an id of its own; two with one `delivery_id` are the same event, delivered twice.
    """
    import orjson

    from workers.storeapi.samples import sample

    whole = dict(data or {}) if exact else {**sample(topic), **(data or {})}
    now = datetime.now(UTC)
    occurred = occurred_at or now
    delivery_id = delivery_id or f"msg_test_{next(_numbers)}"
    return Event(
        id=event_id(store, delivery_id.encode()),
        store=store,
        topic=topic,
        received_at=received_at or now,
        body=orjson.dumps({"type": topic, "timestamp": occurred.isoformat(), "data": whole}, default=str),
        headers=dict(headers or {}),
        delivery_id=delivery_id,
        resource_id=resource_id or str(whole.get("id", "")),
        occurred_at=occurred,
        source="test",
        data_path="data",
    )


def sample_events(store: str = "demo") -> Iterator[Event]:
    """One event of every topic a store is known to send."""
    from workers.storeapi.sandbox.shop import TOPICS

    return (make_event(topic, store=store) for topic in TOPICS)


# A context that needs nothing and remembers everything


@dataclass(frozen=True)
class RecordingContext(Context[Any]):
    """A context without a server. What the handler did with it can be read afterwards."""

    once_calls: list[tuple[str, Any]] = field(default_factory=list, repr=False)
    """The key and the result of each call that `once` really made."""
    logged: list[str] = field(default_factory=list, repr=False)
    """Each line of `ctx.log`, as "LEVEL text"."""
    api_calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list, repr=False)
    """Each call of `ctx.api`: ("orders.get", (1001,), {})."""

    def once(self, key: str, call: Callable[..., Any], /, *args: Any, **how: Any) -> Any:
        """As in a real run; the calls that are made are remembered in `once_calls`."""

        def noted(*given: Any, **named: Any) -> Any:
            result = call(*given, **named)
            self.once_calls.append((key, result))
            return result

        return super().once(key, noted, *args, **how)


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
    """A context to call a handler with. No server is needed, and nothing leaves the test.

    settings  the plugin's model, or a mapping
    api       answers by operation, `{"customers.get": {"id": 7}}`, where a function is called with what the handler
              gave; or a client, such as that of the `store` fixture
    after     an earlier context: what `once` and `state` remember from there is remembered here
    """
    from workers.plugins.effects import LocalEffects

    event = event or make_event()
    effects = after.effects if after is not None else LocalEffects()
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
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
        connect=lambda: _RecordedApi(api, calls),  # type: ignore[arg-type,return-value]
        deadline=time.monotonic() + timeout,
        stopped=lambda: stopping,
        api_calls=calls,
        logged=logged,
    )
    for name, value in (state or {}).items():
        context.state.set(name, value)
    return context


def _recording_logger(name: str, logged: list[str]) -> logging.Logger:
    """Of its own, so that two contexts do not hear each other; it still reaches pytest's caplog."""

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(f"{record.levelname} {record.getMessage()}")

    logger = logging.Logger(name, logging.DEBUG)
    logger.parent = logging.getLogger()
    logger.addHandler(Recorder())
    return logger


class _RecordedApi:
    """Stands for `ctx.api`: writes every call down and gives the answer a test has set, or a real client's."""

    def __init__(self, answers: Any, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> None:
        self._answers = answers if answers is not None else {}
        self._calls = calls

    def __getattr__(self, group: str) -> Any:
        return _RecordedGroup(group, self._answers, self._calls)


class _RecordedGroup:
    def __init__(self, group: str, answers: Any, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> None:
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
            raise AssertionError(f'no answer is set for it: make_context(api={{"{operation}": ...}})')
        answer = self._answers[operation]
        if callable(answer):
            answer = answer(*args, **fields)
        if isinstance(answer, BaseException):
            raise answer
        kind = bundled_catalogue().operations[operation].record
        if isinstance(answer, list):
            return [make(kind, one) if isinstance(one, Mapping) else one for one in answer]
        return make(kind, answer) if isinstance(answer, Mapping) else answer


# The sandbox over HTTP


class SandboxStore:
    """A running sandbox store, on its first day at the start of each test: 40 products, 20 customers."""

    def __init__(self, rig: LocalSystem) -> None:
        self._rig = rig
        self.url = rig.sandbox_url

    @property
    def client(self) -> Client:
        """What `ctx.api` is: `make_context(api=store.client)`."""
        from workers.storeapi import client_for_store
        from workers.testing.local_system import STORE

        return client_for_store(self._rig.config, STORE)

    def misbehave(self, **chances: float | str) -> None:
        """Such as `too_many=0.3, drop=0.1`; see docs/sandbox.md."""
        self._ask("PUT", "/misbehave", chances)

    def reset(self) -> None:
        """Back to the store's first day."""
        self._ask("POST", "/do/reset")

    def records(self, kind: str) -> list[dict[str, Any]]:
        """What the store holds: of "product", "order", "customer", "comment", "address", ..."""
        return self.records_by_kind().get(kind, [])

    def records_by_kind(self) -> dict[str, list[dict[str, Any]]]:
        """Everything the store holds."""
        return dict(self._ask("GET", "/records"))

    def place(self, kind: str, *records: Mapping[str, Any]) -> None:
        """Have these records under the ids they name."""
        self._ask("PUT", "/records", {kind: list(records)})

    def writes(self) -> list[str]:
        """Each request that changed something: "POST /api/v3/app/orders"."""
        log = self._ask("GET", "/log")
        return [f"{method} {path}" for _, method, path, status in log if method != "GET" and status < 300]

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        import httpx2

        answer = httpx2.request(method, f"{self.url}/sandbox{path}", json=body, timeout=30, trust_env=False)
        return answer.raise_for_status().json()


# The real pipeline


class SentEvent:
    """An event that was sent, and what became of it."""

    def __init__(self, record: EventRecord, answer: str) -> None:
        self.record = record
        self.id = record.summary.id
        self.answer = answer
        """accepted or duplicate"""
        self.status = record.summary.status
        """settled or failed; open while a delayed or retried run waits"""

    def run(self, handler: str) -> RunRecord:
        """The run of a handler, by its full name or by that within its plugin."""
        for run in self.record.runs:
            if handler in (run.handler, run.handler.partition(".")[2]):
                return run
        there = ", ".join(run.handler for run in self.record.runs) or f"none ({self.record.reason})"
        raise AssertionError(f"{handler} was not called for this event; runs: {there}")


class SystemUnderTest:
    """Receiver, inbox and workers on the embedded server. `start` it with plugins, `send` it events."""

    def __init__(self, folder: Path, *, api: str = "") -> None:
        self._folder = folder
        self._api = api
        self._rig: LocalSystem | None = None

    @property
    def files(self) -> Path:
        """Where the workers run: what handlers write to relative paths."""
        return self.rig.files

    @property
    def rig(self) -> LocalSystem:
        if self._rig is None:
            self.start()
        assert self._rig is not None
        return self._rig

    def start(
        self, *plugins: str | Path, settings: Mapping[str, Mapping[str, Any]] | None = None, config: str = ""
    ) -> None:
        """Start with these plugins (files or modules); without any, with those that are installed.

        `settings` is what `[plugins]` holds, `config` more lines of TOML.
        """
        from workers.testing.local_system import LocalSystem

        named = [str(Path(one).absolute()) if str(one).endswith(".py") else str(one) for one in plugins]
        self._rig = LocalSystem(
            self._folder, plugins=named, settings=settings, installed=not named, api=self._api, more=config
        )
        self._rig.start("server")
        self._rig.start("web", "workers")

    def send(
        self,
        topic: str,
        data: Mapping[str, Any] | None = None,
        *,
        exact: bool = False,
        delivery_id: str = "",
        wait: Sequence[str] = ("settled", "failed"),
    ) -> SentEvent:
        """Sign an event as the store would, post it to the receiver, and wait until it is settled or has failed.

        With `wait=("open",)` it is given back as soon as its runs are made: some may be delayed.
        """
        import httpx2

        from receiver.contract.compose import compose
        from workers.storeapi.samples import sample
        from workers.testing.local_system import STORE

        whole = dict(data or {}) if exact else {**sample(topic), **(data or {})}
        store = self.rig.config.known_stores[STORE]
        delivery = delivery_id or f"msg_test_{next(_numbers)}"
        request = compose(store, topic=topic, delivery_id=delivery, data=whole, now=time.time())
        answer = httpx2.post(store.url, headers=request.headers, content=request.body, timeout=30, trust_env=False)
        told = answer.raise_for_status().json()

        return SentEvent(self._wait_for(told["id"], wait), told["status"])

    def _wait_for(self, event: str, wait: Sequence[str]) -> EventRecord:
        from workers.testing.local_system import wait_until

        def ended() -> EventRecord | None:
            record = self.rig.ledger.event(event)
            routed = record is not None and (record.runs or record.summary.status != "open")
            return record if record and routed and record.summary.status in wait else None

        return wait_until(ended, what=f"the event is {' or '.join(wait)}", within=SETTLES_WITHIN)

    def hurry(self, sent: SentEvent) -> SentEvent:
        """Let no time pass between attempts, nor before a delayed one, until the event is settled or has failed."""
        from receiver.inbox import Housekeeping, keys
        from workers.testing.local_system import wait_until

        def closed() -> EventRecord | None:
            record = self.look(sent).record
            if record.summary.status != "open":
                return record
            waiting = [keys.run_item(sent.id, run.handler) for run in record.runs if run.due_at is not None]
            if waiting:
                self.rig.client.zadd(keys.LATER, dict.fromkeys(waiting, 1), xx=True)
                Housekeeping(self.rig.client).tick()
            return None

        ended = wait_until(closed, what="the event is settled or has failed", within=SETTLES_WITHIN)
        return SentEvent(ended, sent.answer)

    def look(self, sent: SentEvent) -> SentEvent:
        """The same event, as it is now."""
        record = self.rig.ledger.event(sent.id)
        assert record is not None
        return SentEvent(record, sent.answer)

    def stop(self) -> None:
        """End its processes; the fixture does this."""
        if self._rig is not None:
            self._rig.stop()
