"""The child process: a forked process that serves many runs. The only place where plugin code runs.

It holds no lease and writes nothing to the inbox: it reports to its worker how each run ended. It may be killed at any
time. It begins a run only with a ticket read from a pipe. The worker takes the unread tickets back when another child
process is to do the rest of a batch; the kernel gives each ticket to one reader only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from receiver import logs
from receiver.config import Config
from receiver.contract.event import Event
from receiver.contract.record_map import RecordMap
from receiver.inbox import Run, connect_to
from receiver.inbox.effect_store import EffectStore, EffectStoreAway
from receiver.inbox.outcomes import Ending, OutcomeKind, RunResult, kind_of
from workers.plugins import conditions, discovery, plugin_settings
from workers.plugins.context import Context
from workers.plugins.coroutines import CoroutineRunner
from workers.plugins.effects import UNDER_WAY_DELAY, Effects, EffectUnderWay
from workers.plugins.exceptions import Busy, Drop, Fail, Retry
from workers.plugins.plugin_code import ValidatedCode
from workers.plugins.router import FailedFunction, Handler, Router
from workers.runtime.pool.child_handle import pack_message, pack_result, read_runs
from workers.runtime.pool.echoes import Echoes
from workers.runtime.pool.error_details import describe_error, error_line, exit_code_of, shorten, storable, text_of
from workers.runtime.pool.late_arrivals import LateArrivals
from workers.runtime.pool.lease_guard import LeaseGuard, SharedLease
from workers.runtime.pool.run_limits import RunTimeout, TimeLimit, has_many_descriptors, raise_timeouts
from workers.runtime.pool.spans import configured_spans

if TYPE_CHECKING:
    from workers.storeapi import Client

EFFECT_SECONDS = 5.0
EFFECT_GRACE = 30.0
"""An effect of `ctx.once` may be in progress for the run's timeout and this much longer; then it is in doubt."""
SHUTDOWN_SECONDS = 1.5
LONGEST_AFTER = 30 * 86_400.0
NO_GUARD = contextlib.nullcontext()

log = logs.get("child")


def serve(
    config: Config,
    code: ValidatedCode,
    stopped: Callable[[], bool],
    lease: SharedLease,
    channel: socket.socket,
    tickets: int,
) -> None:
    """Load the plugins, then perform batches of runs until the worker closes the channel. It ends earlier if plugins
    leave files or connections open; the worker takes back what is not begun, and starts another.

    It loads only code that was validated. A plugin that cannot be loaded so is missing here, and the others run.
    """
    logs.setup("child")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a killed child process flushes nothing
    raise_timeouts()
    # A service manager may send SIGTERM to every process. Stopping is the worker's decision; and a handler's own
    # subprocesses must not inherit an ignored signal.
    signal.signal(signal.SIGTERM, lambda *_: None)
    plugins, missing = discovery.load_validated(config, code)
    executor = RunExecutor(config, plugins, stopped, LeaseGuard(lease), modules=code.modules)
    channel.sendall(pack_message({"ready": True, "missing": missing}))
    reader = TicketReader(tickets)
    with channel.makefile("rb") as stream:
        while (received := read_runs(stream)) is not None:
            batch, runs = received
            executor.echoes.examine(runs)
            executor.late_arrivals.begin_batch()
            unfinished = set[str]()
            for run in runs:
                if not reader.take(batch):
                    break
                result = RunResult(Ending.BEHIND, {}) if run.order_key in unfinished else executor.perform(run)
                if run.order_key and not _lets_key_go_on(result, run):
                    unfinished.add(run.order_key)
                if (call := executor.failed_call(run, result)) is not None:
                    channel.sendall(pack_result(run.item, result, failing=True))  # it has the timeout once more
                    call()
                channel.sendall(pack_result(run.item, result))
            if not reader.has_begun_next and has_many_descriptors():  # soon other handlers could open nothing here
                log.warning("many file descriptors are open; the process is replaced", after_runs_of=runs[0].handler)
                break
    executor.shut_down()


def _lets_key_go_on(result: RunResult, run: Run) -> bool:
    """Whether the next run of an order key may begin. Only the worker knows whether a run is retried."""
    return result.ending in (Ending.DONE, Ending.DROPPED) or (result.ending is Ending.FAILED and not run.stops_key)


class TicketReader:
    """Reads the tickets that the worker wrote, one for each run. A ticket of the next batch is saved for that."""

    def __init__(self, tickets: int) -> None:
        self._tickets = tickets
        self._saved: int | None = None

    @property
    def has_begun_next(self) -> bool:
        """Whether it holds a ticket of the next batch: the worker cannot take that run back."""
        return self._saved is not None

    def take(self, batch: int) -> bool:
        """Take a ticket for one run of a batch. False: the worker took the rest of that batch back."""
        if self._saved is None:
            try:
                self._saved = os.read(self._tickets, 1)[0]
            except (BlockingIOError, IndexError):
                return False
        if self._saved != batch:
            return False
        self._saved = None
        return True


@dataclass(frozen=True)
class LoadedHandler:
    """A handler in this child process, with what the config says of it."""

    handler: Handler
    plugin: LoadedPlugin
    timeout: float
    retries: int
    effects: Effects
    log: logging.Logger
    time_limit: TimeLimit


@dataclass
class LoadedPlugin:
    """A plugin in this child process: its router, and what its startup function returned."""

    router: Router
    version: str
    packages: frozenset[str]
    """The top-level packages of its own code."""
    resource: Any = None
    started: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


class RunExecutor:
    """Calls handlers, one run at a time, and turns what they return or raise into results."""

    def __init__(
        self,
        config: Config,
        plugins: list[discovery.Plugin],
        stopped: Callable[[], bool],
        guard: LeaseGuard,
        *,
        modules: Iterable[str],
    ) -> None:
        """`modules` are those beside plugins that are files: own code of the plugins, too."""
        self._config = config
        self._guard = guard
        self._stopped = stopped
        self._redis = connect_to(config.redis, timeout=EFFECT_SECONDS)
        self.echoes = Echoes(config, self._redis, [handler for one in plugins for handler in one.handlers])
        self.late_arrivals = LateArrivals(config, self._redis)
        self._clients: dict[str, Client] = {}
        self._plugins: list[LoadedPlugin] = []
        self._handlers: dict[str, LoadedHandler] = {}
        self._coroutines = CoroutineRunner(interrupts=RunTimeout)
        self._span_of, self._export_spans = configured_spans(self._redis)
        self._error: BaseException | None = None
        """What the last run raised."""
        self._pid = os.getpid()
        for one in plugins:
            packages = frozenset(
                name.partition(".")[0] for name in (*(handler.module for handler in one.handlers), *modules)
            )
            plugin = LoadedPlugin(one.router, one.version, packages)
            self._plugins.append(plugin)
            for handler in one.handlers:
                timeout = float(handler.timeout or config.workers.timeout)
                retries = config.workers.retries if handler.retries is None else handler.retries
                number = retries if isinstance(retries, int) else len(retries)
                logger = logging.getLogger(handler.name)
                self._handlers[handler.name] = LoadedHandler(
                    handler, plugin, timeout, number, self._effects_for(timeout), logger, TimeLimit(timeout)
                )

    def perform(self, run: Run) -> RunResult:
        """Do one run and return how it ended."""
        started = time.perf_counter()
        self._error = None
        logs.describe_work(lambda: _fields_of(run))
        with self._lease_of(run):
            result = self._call(run)
        logs.describe_work(None)
        result.detail["ms"] = round((time.perf_counter() - started) * 1000, 3)
        return result

    def _call(self, run: Run) -> RunResult:
        if run.handler not in self._handlers:
            return RunResult(Ending.ABSENT, {})
        if run.stored.blob is None:
            error = "no-body: its body was deleted; have the store send the event again, then replay it"
            return RunResult(Ending.FAILED, {"error": error, "reason": "no-body"})
        loaded = self._handlers[run.handler]
        handler, plugin = loaded.handler, loaded.plugin
        event = self._event_of(run)
        returned = None
        try:
            with loaded.time_limit:
                until = time.monotonic() + loaded.timeout
                unmet = conditions.unmet_condition(handler.when, event)
                ended = _skipped(unmet) if unmet else self._judge(run, event, handler)
                if ended is None:
                    self._start(plugin)
                    with self._span_of(run, event) as span:
                        context = self._context(run, event, loaded, until, span)
                        returned = self._coroutines.finish(handler.function(event, context))
        except BaseException as error:  # noqa: BLE001  handlers raise anything, CancelledError and SystemExit too
            self._error = error
            result = _result_of_error(error, run, plugin.packages)
        else:
            result = ended or RunResult(Ending.DONE, {"result": storable(returned)})
        self._end_if_copy(run, self._error)
        if handler.stale == "skip":
            self.late_arrivals.note_settled(run, event, result)
        result.detail["version"] = plugin.version
        return result

    def _end_if_copy(self, run: Run, error: BaseException | None) -> None:
        """End this process if a handler forked it and let it return: it would report the run's end, and take others."""
        if os.getpid() != self._pid:
            log.warning("a process that a handler forked came back from it and is ended", handler=run.handler)
            os._exit(exit_code_of(error))

    def _judge(self, run: Run, event: Event, handler: Handler) -> RunResult | None:
        """How a run ends because of other events of its resource; None if the handler is to be called."""
        late = self.late_arrivals.judge(run, event, handler) if handler.stale == "skip" else None
        return late or self.echoes.judge(run, event)

    def failed_call(self, run: Run, result: RunResult) -> Callable[[], None] | None:
        """The call of the plugin's `@router.failed` function, if this result is a failure for good."""
        error, self._error = self._error, None  # its traceback holds what the handler had in memory
        if error is None:
            return None
        loaded = self._handlers.get(run.handler)
        if loaded is None or (function := loaded.plugin.router.failed_function) is None:
            return None
        if kind_of(result.ending, retries_left=run.attempts < loaded.retries) is not OutcomeKind.FAILED:
            return None
        return lambda: self._call_failed(run, loaded, function, error)

    def _call_failed(self, run: Run, loaded: LoadedHandler, function: FailedFunction, error: BaseException) -> None:
        """Once: if this process dies before the outcome is stored, the run begins and fails again."""
        event = self._event_of(run)
        logs.describe_work(lambda: _fields_of(run))
        try:
            with self._lease_of(run), loaded.time_limit:
                context = self._context(run, event, loaded, time.monotonic() + loaded.timeout)
                context.once(
                    f"@router.failed {run.replays}",
                    lambda: self._coroutines.finish(function(event, context, error)) and None,
                )
        except BaseException as raised:  # noqa: BLE001  plugins raise anything
            self._end_if_copy(run, raised)
            name = type(raised).__name__
            log.warning("the function of @router.failed raised", exception=name)
        else:
            self._end_if_copy(run, None)
        finally:
            logs.describe_work(None)

    def _lease_of(self, run: Run) -> contextlib.AbstractContextManager[None]:
        """While an ordered run is under way, this process ends if the lease does."""
        return self._guard if run.order_key else NO_GUARD

    def _event_of(self, run: Run) -> Event:
        """The run's event, with the record map of its store as it is in the config now, and what is merged into it."""
        known = self._config.record_map(run.event.store)
        record_map = RecordMap(unknown_store=run.event.store) if known is None else known
        if not record_map and not run.merged:
            return run.event
        return replace(run.event, record_map=record_map, merged=run.merged)

    def _start(self, plugin: LoadedPlugin) -> None:
        """Call the plugin's startup function before its first run."""
        if plugin.started:
            return
        if plugin.router.startup_function is not None:
            general = plugin_settings.build(self._config, plugin.router, "")
            returned = plugin.router.startup_function(general)
            plugin.resource = self._coroutines.finish(returned, keep_tasks=True)
        plugin.started = True

    def _context(self, run: Run, event: Event, loaded: LoadedHandler, until: float, span: str = "") -> Context:
        store, plugin = event.store, loaded.plugin
        if store not in plugin.settings:
            plugin.settings[store] = plugin_settings.build(self._config, plugin.router, store)
        return Context(
            store=store,
            settings=plugin.settings[store],
            resource=plugin.resource,
            attempt=run.attempts + 1,
            replay=run.replays > 0,
            fence=run.fence,
            handler=run.handler,
            event=event,
            effects=loaded.effects,
            connect=lambda: self._client_of(store),
            log=loaded.log,
            deadline=until,
            stopped=self._stopped,
            span=span,
        )

    def _effects_for(self, timeout: float) -> Effects:
        """Where effects are recorded; the connection is made in this process, when first used."""
        at_work, replicas = timeout + EFFECT_GRACE, int(self._config.redis.ack == "replica")
        return EffectStore(self._redis, keep=self._config.retention.once, at_work=at_work, replicas=replicas)

    def _client_of(self, store: str) -> Client:
        """The client of a store's API, made at its first use and reused as long as this process lives."""
        if store not in self._clients:
            from workers.storeapi import client_for_store

            self._clients[store] = client_for_store(self._config, store, self._redis, watcher=self.echoes)
        return self._clients[store]

    def shut_down(self) -> None:
        """Call the shutdown function of every plugin that was started. An error there is only logged."""
        for plugin in self._plugins:
            if not plugin.started or plugin.router.shutdown_function is None:
                continue
            try:
                with TimeLimit(SHUTDOWN_SECONDS):
                    self._coroutines.finish(plugin.router.shutdown_function(plugin.resource))
            except BaseException as error:  # noqa: BLE001  plugins raise anything
                log.warning("plugin shutdown failed", plugin=plugin.router.name, why=type(error).__name__)
        self._export_spans()


def _fields_of(run: Run) -> dict[str, Any]:
    """What every line of the log has while a run is performed."""
    event = {"event_id": run.stored.id, "store": run.stored.store}
    return {**event, "handler": run.handler, "run": run.item, "attempt": run.attempts + 1}


def _result_of_error(error: BaseException, run: Run, packages: frozenset[str]) -> RunResult:
    """What an exception from a handler means: the handler asked for an ending, or the attempt failed."""

    def described() -> dict[str, Any]:
        event = run.event
        known = (event.store, event.id, event.resource_id, event.delivery_id)
        return describe_error(error, handler=run.handler, packages=packages, known=known, payload=_payload_of(event))

    match error:
        case Drop():
            return RunResult(Ending.DROPPED, {"result": shorten(error.why)})
        case EffectUnderWay() | EffectStoreAway():
            return RunResult(Ending.WAIT, {"error": shorten(str(error))}, UNDER_WAY_DELAY)
        case Busy():
            line = error_line("Busy", text_of(error.why), _payload_of(run.event))
            return RunResult(Ending.BUSY, {"error": line}, _seconds(error.after))
        case Fail():
            return RunResult(Ending.FAILED, described())
        case Retry():
            return RunResult(Ending.RETRY, described(), _seconds(error.after))
        case _:
            return RunResult(Ending.RAISED, described())


def _payload_of(event: Event) -> Any:
    """None where it cannot be read."""
    try:
        return event.payload
    except (ValueError, RecursionError):
        return None


def _skipped(unmet: str) -> RunResult:
    return RunResult(Ending.DROPPED, {"result": shorten(f"skipped: {unmet}"), "reason": "skipped"})


def _seconds(after: Any) -> float | None:
    """What a handler gave as `after=`, within bounds; None where it is not a number."""
    try:
        return None if after is None else max(0.0, min(float(after), LONGEST_AFTER))
    except (TypeError, ValueError, OverflowError):
        return None
