"""A trial: one run here and now, for a person at a terminal. Plugin code runs in this process."""

from __future__ import annotations

import logging
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.contract.event import Event
from receiver.inbox import Inbox, connect, server_url
from workers import plugin_settings, plugins
from workers.context import Context
from workers.effects import Effects, KeptEffects, LocalEffects
from workers.routing import Handler
from workers.words import Drop, Fail, Word

if TYPE_CHECKING:
    from workers.storeapi import Client


@dataclass(frozen=True)
class TrialOutcome:
    end: str
    said: str
    ms: float
    error: BaseException | None = None
    traceback: str = ""


class Trial:
    def __init__(self, config: Config, handler: str, *, record: bool) -> None:
        self._config = config
        self._plugin, self._handler = _find(plugins.load(config), handler)
        self._effects: Effects = LocalEffects()
        if record:
            inbox = Inbox(connect(server_url(config.redis.url, config.data_dir), timeout=5.0))
            self._effects = KeptEffects(inbox, keep=config.retention.once, at_work=60.0)

    def run(self, event: Event) -> TrialOutcome:
        started = time.perf_counter()
        try:
            result = self._handler.function(event, self._context(event))
        except Exception as error:  # noqa: BLE001  whatever a handler raises
            took = (time.perf_counter() - started) * 1000
            return _raised(error, took)
        return TrialOutcome("done", "" if result is None else f'"{result}"', (time.perf_counter() - started) * 1000)

    def _context(self, event: Event) -> Context:
        start = self._plugin.router.startup_function
        return Context(
            store=event.store,
            settings=plugin_settings.build(self._config, self._plugin.router, event.store),
            resource=start(plugin_settings.build(self._config, self._plugin.router, "")) if start else None,
            attempt=1,
            log=logging.getLogger(self._handler.name),
            handler=self._handler.name,
            event=event,
            effects=self._effects,
            connect=lambda: self._client_of(event.store),
        )

    def _client_of(self, store: str) -> Client:
        from workers.storeapi import client_of

        return client_of(self._config, store)


def _find(loaded: list[plugins.Plugin], name: str) -> tuple[plugins.Plugin, Handler]:
    for plugin in loaded:
        for handler in plugin.handlers:
            if handler.name == name:
                return plugin, handler
    known = ", ".join(sorted(handler.name for plugin in loaded for handler in plugin.handlers))
    raise ConfigError(f"no handler is called {name}; loaded are: {known or 'none'}")


def _raised(error: Exception, took: float) -> TrialOutcome:
    match error:
        case Drop():
            return TrialOutcome("dropped", error.why, took)
        case Fail():
            return TrialOutcome("failed", error.why, took, error)
        case Word():
            return TrialOutcome(type(error).__name__.lower(), error.why, took)
        case _:
            text = "".join(traceback.format_exception(error))
            return TrialOutcome("raised", f"{type(error).__name__}: {error}", took, error, text)


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
