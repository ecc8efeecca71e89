"""Local run: one run of a handler in this process, for `storehooks handlers run`. The inbox is not changed."""

from __future__ import annotations

import logging
import math
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from redis import Redis

from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.contract.event import Event
from receiver.inbox import connect_to
from receiver.inbox.effect_store import EffectStore
from receiver.inbox.outcomes import Ending
from workers.plugins import conditions, discovery, plugin_settings
from workers.plugins.context import Context
from workers.plugins.coroutines import CoroutineRunner
from workers.plugins.effects import Effects, EffectUnderWay, LocalEffects
from workers.plugins.exceptions import Busy, Drop, Fail, Retry
from workers.plugins.router import Handler

if TYPE_CHECKING:
    from workers.operations.event_export import EventExport
    from workers.operations.watched_run import RunWatch
    from workers.storeapi import Client
    from workers.testing.local_system import LocalSystem


@dataclass(frozen=True)
class LocalRunResult:
    ending: Ending
    message: str
    error: BaseException | None = None
    traceback: str = ""
    ms: float = 0.0


class LocalRun:
    """With `live`, `ctx.api` is the store's own API; else a sandbox, started when the handler first uses `ctx.api`.
    Through `redis`, the real one shares its token and its rate limit with all processes.

    `record` stores what `ctx.once` and `ctx.state` remember; else it is discarded, or given to `effects`. `watch` has
    the handler's time limit; starting the sandbox does not count.
    """

    def __init__(
        self,
        config: Config,
        handler: str,
        *,
        record: bool,
        live: bool = False,
        redis: Redis | None = None,
        export: EventExport | None = None,
        effects: Effects | None = None,
        watch: RunWatch | None = None,
    ) -> None:
        self._config = config
        self._watch = watch
        self._plugin, self._handler = _find(discovery.load(config), handler)
        self._log = logging.getLogger(self._handler.name)
        self._live = live
        self._redis = redis
        self._exported_settings = export.settings.get(self._plugin.name, {}) if export else {}
        self._coroutines = CoroutineRunner(interrupts=KeyboardInterrupt)
        self._sandbox: LocalSystem | None = None
        self._clients: dict[str, Client] = {}
        self._resource: Any = None
        self._started = False
        self._folder = tempfile.TemporaryDirectory(prefix="storehooks-local-run-", dir=watch.folder if watch else None)
        self._effects: Effects = effects or LocalEffects(_once_results(export))
        if record:
            client = connect_to(config.redis, timeout=5.0)
            self._effects = EffectStore(client, keep=config.retention.once, at_work=60.0)

    def run(self, event: Event) -> LocalRunResult:
        if record_map := self._config.record_map(event.store):
            event = replace(event, record_map=record_map)
        started = time.perf_counter()
        result = self._call(event)
        return replace(result, ms=(time.perf_counter() - started) * 1000)

    def _call(self, event: Event) -> LocalRunResult:
        timeout = float(self._handler.timeout or self._config.workers.timeout)
        try:
            with self._watch.limit(timeout) if self._watch else nullcontext(math.inf) as deadline:
                if failed := conditions.unmet_condition(self._handler.when, event):
                    return LocalRunResult(Ending.DROPPED, f"skipped: {failed}")
                result = self._coroutines.finish(self._handler.function(event, self._context(event, deadline)))
        except KeyboardInterrupt:  # of the person at the terminal
            raise
        except BaseException as error:  # noqa: BLE001  a handler may raise anything, SystemExit too
            return _result_of(error)
        return LocalRunResult(Ending.DONE, "" if result is None else f'"{result}"')

    def close(self) -> None:
        """Call the plugin's shutdown function and stop the sandbox."""
        end = self._plugin.router.shutdown_function
        if self._started and end is not None:
            try:
                self._coroutines.finish(end(self._resource))
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001  plugins raise anything
                self._log.warning("plugin shutdown failed", exc_info=True)
        self._coroutines.close()
        if self._sandbox is not None:
            self._sandbox.stop()
        self._folder.cleanup()

    def _context(self, event: Event, deadline: float) -> Context:
        return Context(
            store=event.store,
            settings=self._settings(event.store),
            resource=self._start(),
            attempt=1,
            log=self._log,
            handler=self._handler.name,
            event=event,
            effects=self._effects,
            connect=lambda: self._client_of(event),
            deadline=deadline,
        )

    def _start(self) -> Any:
        start = self._plugin.router.startup_function
        self._resource = self._coroutines.finish(start(self._settings("")), keep_tasks=True) if start else None
        self._started = True
        return self._resource

    def _settings(self, store: str) -> Any:
        return plugin_settings.build(self._config, self._plugin.router, store, defaults=self._exported_settings)

    def _client_of(self, event: Event) -> Client:
        if event.store not in self._clients:
            self._clients[event.store] = self._new_client(event)
        return self._clients[event.store]

    def _new_client(self, event: Event) -> Client:
        from workers.storeapi import client_for_store

        if self._live:
            return client_for_store(self._config, event.store, self._redis)
        from workers.testing.local_system import STORE

        return client_for_store(self._sandbox_with(event).config, STORE)

    def _sandbox_with(self, event: Event) -> LocalSystem:
        """A sandbox store that holds the event's resource."""
        if self._sandbox is None:
            from workers.testing import SandboxStore
            from workers.testing.local_system import LocalSystem

            with self._watch.paused() if self._watch else nullcontext():
                self._sandbox = LocalSystem(Path(self._folder.name))
                self._sandbox.start("sandbox")
                for kind, record in _records(event):
                    SandboxStore(self._sandbox).place(kind, record)
        return self._sandbox


def _records(event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
    """The event's resource and its customer, where the event contains them."""
    kind, data = event.topic.partition(".")[0], event.data
    if kind not in ("product", "order", "customer") or not isinstance(data, dict):
        return
    defaults: dict[str, Any] = {"customer": {"metadata": {}}, "product": {"stock": 0}, "order": {"lines": []}}
    if isinstance(data.get("id"), int):
        yield kind, {**defaults[kind], **data}
    customer = data.get("customer")
    if kind == "order" and isinstance(customer, dict) and isinstance(customer.get("id"), int):
        yield "customer", {**defaults["customer"], **customer}


def _once_results(export: EventExport | None) -> dict[tuple[str, str], bytes]:
    if export is None:
        return {}
    return {(f"o:{export.event.id}", name): orjson.dumps(result) for name, result in export.once.items()}


def _find(loaded: list[discovery.Plugin], name: str) -> tuple[discovery.Plugin, Handler]:
    for plugin in loaded:
        for handler in plugin.handlers:
            if handler.name == name:
                return plugin, handler
    known = ", ".join(sorted(handler.name for plugin in loaded for handler in plugin.handlers))
    raise ConfigError(f"no handler is named {name}; loaded handlers: {known or 'none'}")


def _result_of(error: BaseException) -> LocalRunResult:
    match error:
        case Drop():
            return LocalRunResult(Ending.DROPPED, error.why)
        case Fail():
            return LocalRunResult(Ending.FAILED, error.why, error)
        case Retry():
            return LocalRunResult(Ending.RETRY, error.why)
        case EffectUnderWay():
            return LocalRunResult(Ending.WAIT, error.why)
        case Busy():
            return LocalRunResult(Ending.BUSY, error.why)
        case _:
            text = "".join(traceback.format_exception(error))
            return LocalRunResult(Ending.RAISED, f"{type(error).__name__}: {error}", error, text)
