"""A trial: one run here and now, for a person at a terminal. Plugin code runs in this process."""

from __future__ import annotations

import logging
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.contract.event import Event
from receiver.inbox import connect_to
from receiver.inbox.effect_store import EffectStore
from receiver.inbox.outcomes import Ending
from workers.plugins import conditions, loading, plugin_settings
from workers.plugins.context import Context
from workers.plugins.effects import AtWork, Effects, LocalEffects
from workers.plugins.exceptions import Busy, Drop, Fail, Retry
from workers.plugins.router import Handler

if TYPE_CHECKING:
    from workers.operations.export import EventExport
    from workers.storeapi import Client
    from workers.testing.local_system import LocalSystem


@dataclass(frozen=True)
class LocalRunResult:
    ending: Ending
    said: str
    ms: float
    error: BaseException | None = None
    traceback: str = ""


class LocalRun:
    """`live` lets `ctx.api` be the store's own; else it is a sandbox, started when the handler first asks for it."""

    def __init__(
        self, config: Config, handler: str, *, record: bool, live: bool = False, capsule: EventExport | None = None
    ) -> None:
        self._config = config
        self._plugin, self._handler = _find(loading.load(config), handler)
        self._live = live
        self._below = capsule.settings.get(self._plugin.name, {}) if capsule else {}
        self._sandbox: LocalSystem | None = None
        self._resource: Any = None
        self._started = False
        self._folder = tempfile.TemporaryDirectory(prefix="storehooks-trial-")
        self._effects: Effects = LocalEffects(_remembered(capsule))
        if record:
            client = connect_to(config.redis, timeout=5.0)
            self._effects = EffectStore(client, keep=config.retention.once, at_work=60.0)

    def run(self, event: Event) -> LocalRunResult:
        started = time.perf_counter()
        try:
            if untrue := conditions.false_part(self._handler.when, event):
                return LocalRunResult(Ending.DROPPED, f"skipped: {untrue}", (time.perf_counter() - started) * 1000)
            result = self._handler.function(event, self._context(event))
        except Exception as error:  # noqa: BLE001  whatever a handler raises
            took = (time.perf_counter() - started) * 1000
            return _raised(error, took)
        return LocalRunResult(
            Ending.DONE, "" if result is None else f'"{result}"', (time.perf_counter() - started) * 1000
        )

    def close(self) -> None:
        """Let the plugin put away what its startup made, and end the sandbox."""
        end = self._plugin.router.shutdown_function
        if self._started and end is not None:
            end(self._resource)
        if self._sandbox is not None:
            self._sandbox.stop()
        self._folder.cleanup()

    def _context(self, event: Event) -> Context:
        return Context(
            store=event.store,
            settings=self._settings(event.store),
            resource=self._start(),
            attempt=1,
            log=logging.getLogger(self._handler.name),
            handler=self._handler.name,
            event=event,
            effects=self._effects,
            connect=lambda: self._client_of(event),
        )

    def _start(self) -> Any:
        start = self._plugin.router.startup_function
        self._resource = start(self._settings("")) if start else None
        self._started = True
        return self._resource

    def _settings(self, store: str) -> Any:
        return plugin_settings.build(self._config, self._plugin.router, store, below=self._below)

    def _client_of(self, event: Event) -> Client:
        from workers.storeapi import client_for_store

        if self._live:
            return client_for_store(self._config, event.store)
        from workers.testing.local_system import STORE

        return client_for_store(self._sandbox_with(event).config, STORE)

    def _sandbox_with(self, event: Event) -> LocalSystem:
        """A sandbox store that holds what the event is about."""
        if self._sandbox is None:
            from workers.testing import SandboxStore
            from workers.testing.local_system import LocalSystem

            self._sandbox = LocalSystem(Path(self._folder.name))
            self._sandbox.start("sandbox")
            for kind, record in _scene(event):
                SandboxStore(self._sandbox).place(kind, record)
        return self._sandbox


def _scene(event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
    """The event's resource and its customer, as far as a store could hold them."""
    kind, data = event.topic.partition(".")[0], event.data
    if kind not in ("product", "order", "customer") or not isinstance(data, dict):
        return
    bare: dict[str, Any] = {"customer": {"metadata": {}}, "product": {"stock": 0}, "order": {"lines": []}}
    if isinstance(data.get("id"), int):
        yield kind, {**bare[kind], **data}
    buyer = data.get("customer")
    if kind == "order" and isinstance(buyer, dict) and isinstance(buyer.get("id"), int):
        yield "customer", {**bare["customer"], **buyer}


def _remembered(capsule: EventExport | None) -> dict[tuple[str, str], bytes]:
    marks = capsule.once if capsule else {}
    return {(f"o:{capsule.event.id}", name): orjson.dumps(result) for name, result in marks.items()} if capsule else {}


def _find(loaded: list[loading.Plugin], name: str) -> tuple[loading.Plugin, Handler]:
    for plugin in loaded:
        for handler in plugin.handlers:
            if handler.name == name:
                return plugin, handler
    known = ", ".join(sorted(handler.name for plugin in loaded for handler in plugin.handlers))
    raise ConfigError(f"no handler is called {name}; loaded are: {known or 'none'}")


def _raised(error: Exception, took: float) -> LocalRunResult:
    match error:
        case Drop():
            return LocalRunResult(Ending.DROPPED, error.why, took)
        case Fail():
            return LocalRunResult(Ending.FAILED, error.why, took, error)
        case Retry():
            return LocalRunResult(Ending.RETRY, error.why, took)
        case AtWork():
            return LocalRunResult(Ending.WAIT, error.why, took)
        case Busy():
            return LocalRunResult(Ending.BUSY, error.why, took)
        case _:
            text = "".join(traceback.format_exception(error))
            return LocalRunResult(Ending.RAISED, f"{type(error).__name__}: {error}", took, error, text)


def event_from_file(config: Config, path: str) -> Event:
    """An event from a JSON file: `{"topic": ..., "data": {...}}`, with what else one wants to say of it."""
    try:
        told: Any = orjson.loads(Path(path).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(told, dict) or "topic" not in told:
        raise ConfigError(f'{path}: an event file looks like {{"topic": "order.created", "data": {{"id": 1}}}}')
    payload = told.get("payload", {"data": told.get("data", {})})
    return Event(
        id=str(told.get("id", "trial")),
        store=str(told.get("store") or next(iter(config.stores), "demo")),
        topic=str(told["topic"]),
        received_at=datetime.now(UTC),
        body=orjson.dumps(payload),
        headers=told.get("headers", {}),
        delivery_id=str(told.get("delivery_id", "")),
        resource_id=str(told.get("resource_id") or (told.get("data") or {}).get("id", "")),
        data_path=str(told.get("data_path", "" if "payload" in told else "data")),
        source="file",
    )
