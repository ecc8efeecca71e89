"""dev: run everything in one terminal, on the embedded server. Ctrl-C stops all of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from redis.exceptions import RedisError

from receiver import __version__
from receiver.config import Config, load_from_environment
from receiver.config.reloading import adopt, redis_variables
from receiver.contract.diagnosis.formatting import waits
from receiver.contract.errors import ConfigError, ServerUnusable
from receiver.inbox import Declaration, EventQueries, connect_to
from receiver.inbox.model import DECLARATION_MS
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.redis import embedded_server
from receiver.inbox.redis.connecting import check, socket_path
from receiver.inbox.redis.server_faults import describe
from receiver.inbox.subscription_checks import SubscriptionChecks
from receiver.process.earlier_data import require_no_earlier_data
from receiver.process.process_files import AlreadyHeld, hold_alone
from receiver.process.start_checks import prepare_data_dir, require_free_port
from workers.cli import output
from workers.cli.dev_stream import RefusalStream, RunStream
from workers.cli.file_watch import FileWatch, config_files, plugin_files
from workers.cli.options import Command, given_config
from workers.cli.send_hint import send_command
from workers.cli.stats import equation
from workers.cli.typed_commands import commands_as_typed
from workers.console.access import has_password, new_link, require_safe
from workers.plugins.validation_process import ValidatedPlugins, ValidationProcess
from workers.processes import python_command, reap_orphans_if_first
from workers.runtime.supervisor import Program, Supervisor, worker_programs

SANDBOX_SECONDS = 5.0
START_SECONDS = 10.0
STOP_SECONDS = 8.0
DRAIN = 4.0
CHECK_FILES_EVERY = 0.5
TIME_WIDTH = 10
SERVER_STAGE = 0
"""The server stops last: the others still write to it when they stop."""


@click.command(cls=Command)
@click.option("--no-sandbox", is_flag=True, help="Do not run the sandbox store.")
@click.option("--events", type=click.IntRange(1), metavar="N", help="Stop with a summary after N handled events.")
def dev(no_sandbox: bool, events: int | None) -> None:
    """Run everything: receiver, workers, console, sandbox store."""
    reap_orphans_if_first()
    started = time.monotonic()
    config = load_from_environment(given_config() or None)
    require_no_earlier_data(config)
    require_free_port(config.receiver.bind, key="[receiver] bind")
    require_safe(config.console)
    require_free_port(config.console.bind, key="[console] bind")
    if config.stores and not no_sandbox:
        require_free_port(config.sandbox.bind, key="[sandbox] bind")
    plugins = ValidationProcess(config).result()
    prepare_data_dir(config.data_dir)
    require_only_dev(config.data_dir)
    Dev(config, plugins, started, events).run(sandbox=not no_sandbox)


def require_only_dev(data_dir: Path) -> None:
    """Allow one `storehooks dev` for a data directory. The kernel frees its lock when the process ends."""
    try:
        hold_alone(data_dir, "dev")
    except AlreadyHeld as other:
        raise ConfigError(
            f"another `storehooks dev` (process {other.pid or '?'}) uses {data_dir}; stop it, or set [redis] data_dir"
        ) from None


class Dev:
    def __init__(self, config: Config, plugins: ValidatedPlugins, started: float, events: int | None) -> None:
        self._config = config
        self._handlers = plugins.handlers
        self._started = started
        self._max_events = events
        self._quiet = bool(events and events > 50)
        """Whether there are too many events for a line each."""
        self._client = connect_to(config.redis, timeout=2.0)
        self._events = EventQueries(self._client)
        self._supervisor = Supervisor(report=self._print_note, stop_seconds=STOP_SECONDS)
        self._logs = config.data_dir / "logs"
        self._workers = _workers(config, plugins, self._logs)
        self._journal: RunStream | None = None
        self._first = True
        self._before: dict[str, int] | None = None
        self._config_files = FileWatch(config_files(config))
        self._supervisor.on_hup(self._config_files.expect_change)  # processes started later need what the others reload
        self._plugin_files = FileWatch(plugin_files(config, plugins.handlers))
        self._config_changed = False
        """The config was saved, and has not been reloaded yet."""
        self._next_file_check = 0.0
        self._refused = RefusalStream(config.data_dir)

    def run(self, *, sandbox: bool) -> None:
        self._logs.mkdir(mode=0o700, exist_ok=True)
        try:
            server = self._start_server()
            self._before = dict(self._events.counters().total)
            declared_before = self._events.declared()
            self._start_others(sandbox)
            self._print_banner(server, sandbox)
            self._report_removed(_routed_to(declared_before), self._handlers)
            self._follow_journal()
            self._supervisor.run(every=self._tick)
        finally:
            self._stop()

    # Starting

    def _start_server(self) -> str:
        if self._config.redis.embedded:
            program = embedded_server.binary()
            embedded_server.version_of(program)
            command = embedded_server.command(program, self._config.data_dir)
            self._supervisor.start(Program("server", command, stage=SERVER_STAGE, output=self._logs / "server.log"))
            if not self._wait_until(self._client.ping, START_SECONDS):
                raise ServerUnusable(f"the embedded server did not start; see {self._logs / 'server.log'}")
        return check(self._client, ack=self._config.redis.ack)

    def _wait_until(self, ask: Callable[[], object], seconds: float) -> bool:
        """Wait until a process that was started answers. False if it does not in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(RedisError, OSError):  # not listening yet, or still reading its file
                ask()
                return True
            self._supervisor.poll(0.02)
        return False

    def _start_others(self, sandbox: bool) -> None:
        config = self._config
        command = python_command("receiver.server.web", config=config.path)
        self._supervisor.start(self._program("receiver", command, stage=2))
        if sandbox and config.stores:
            self._supervisor.start(self._sandbox())
            # The housekeeper's first check calls its API; a failed one is repeated only after a minute.
            self._wait_until(lambda: _connect_to(config.sandbox.bind), SANDBOX_SECONDS)
        if not self._wait_until(lambda: _connect_to(config.receiver.bind), START_SECONDS):
            self._print_note(f"the receiver does not listen; see {self._logs / 'receiver.log'}")
        for program in self._workers:
            self._supervisor.start(program)
        command = python_command("workers.console", "--no-link", config=config.path)
        self._supervisor.start(self._program("console", command, stage=3))

    def _sandbox(self) -> Program:
        arguments = ["--store", next(iter(self._config.stores)), "--every", "0" if self._max_events else "2"]
        if self._max_events:
            arguments += ["--events", str(self._max_events)]
        command = python_command("workers.cli", "sandbox", *arguments, config=self._config.path)
        return self._program("sandbox", command, stage=3)

    def _program(self, name: str, command: list[str], stage: int) -> Program:
        """It uses the server of this start, also if it is started again after a change of [redis]."""
        environ = redis_variables(self._config)
        return Program(name, command, stage=stage, environ=environ, output=self._logs / f"{name}.log")

    def _print_banner(self, server: str, sandbox: bool) -> None:
        where = f"embedded {server}, data in {self._config.redis.data_dir}" if self._config.redis.embedded else server
        output.line(
            output.text(f"storehooks {__version__}", "bold"), f", {where}, config {self._config.path}", indent=2
        )
        output.echo()
        for name in self._config.stores:
            output.field("receiver", self._config.public_url_of(name), indent=2, wide=10)
        opened = self._config.console
        console = opened.address if has_password(opened) else new_link(opened, self._client)
        output.field("console", console, indent=2, wide=10)
        if sandbox and self._config.stores:
            store, where = next(iter(self._config.stores)), self._config.sandbox.bind
            output.field("sandbox", f"http://{where}   store {store}, a shopper buys every 2 s", indent=2, wide=10)
        handlers = "   ".join(f"{one.handler} ({', '.join(one.topics)})" for one in self._handlers)
        output.field("handlers", handlers or "none; see [workers] plugins", indent=2, wide=10)
        output.echo()

    # While it runs

    def _tick(self) -> None:
        self._follow_journal()
        self._reload_if_changed()
        self._print_refused()
        if self._max_events and not self._first:
            with contextlib.suppress(RedisError):
                if sum(self._counted()[name] for name in ("settled", "failed")) >= self._max_events:
                    self._supervisor.stop()

    def _follow_journal(self) -> None:
        """Subscribe to the journal's channel. If the server is restarting, the next tick tries again."""
        if self._journal is None:
            with contextlib.suppress(RedisError, OSError):
                self._journal = RunStream(self._client)
                self._supervisor.watch(self._journal.fileno, self._print_runs)

    def _print_runs(self) -> None:
        assert self._journal is not None
        try:
            for line in self._journal.lines():
                if not self._quiet:
                    output.line(line, indent=TIME_WIDTH)
                if self._first:
                    self._first = False
                    self._print_next_commands()
        except (RedisError, OSError):
            self._supervisor.unwatch(self._journal.fileno)
            self._journal.close()
            self._journal = None

    def _print_refused(self) -> None:
        for line in self._refused.lines():
            if not self._quiet:
                output.line(line, indent=TIME_WIDTH)

    def _print_next_commands(self) -> None:
        output.echo(f"First event handled after {time.monotonic() - self._started:.0f} s.")
        if self._max_events:
            return
        output.echo("In a second terminal:")
        sandboxed = next(iter(self._config.stores), "")
        has_api = bool(sandboxed and self._config.stores[sandboxed].base_url)
        which = f" --store {sandboxed}" if len(self._config.stores) > 1 else ""
        send = send_command(self._config)
        output.next_command(
            *(f"{command}  send your own event" for command in send),
            *(f"{command} --tamper body  send one that is refused" for command in send),
            "storehooks events  list the events",
            *([f"storehooks api orders list{which}  call the sandbox store's API"] if has_api else []),
            *(f"edit {os.path.relpath(file)}  it is reloaded when you save it" for file in self._plugin_files.files),
        )
        output.echo()

    def _reload_if_changed(self) -> None:
        if time.monotonic() < self._next_file_check:
            return
        self._next_file_check = time.monotonic() + CHECK_FILES_EVERY
        config = self._config_files.changed(config_files(self._config))
        self._config_changed = self._config_changed or config
        if self._plugin_files.changed() or config:
            self._reload()

    def _reload(self) -> None:
        """Reload config and plugins in all processes if they are valid. Otherwise the old ones stay in use."""
        try:
            config = load_from_environment(str(self._config.path) if self._config.path else None)
            self._plugin_files = FileWatch([*self._plugin_files.files, *plugin_files(config, ())])
            plugins = ValidationProcess(config).result()
            handlers = plugins.handlers
        except Exception as error:  # noqa: BLE001  with any error, the old one stays in use
            self._print_note(f"not reloaded, the old one stays in use: {error}")
            return
        if config.receiver.public_url != self._config.receiver.public_url:
            with contextlib.suppress(RedisError):  # without it, the check holds the subscriptions back and says why
                SubscriptionChecks(self._client).replace_public_url(self._config.receiver.public_url)
        if _sandbox_settings(config) != _sandbox_settings(self._config):
            self._supervisor.signal("sandbox", signal.SIGTERM)  # it reads these at its start, and the catalogue on HUP
        self._supervisor.signal("" if self._config_changed else "worker", signal.SIGHUP)
        self._print_note(_reloaded(config if self._config_changed else None, self._handlers, handlers))
        for setting in _needs_restart(self._config, config):
            self._print_note(f"{setting} has changed; restart `storehooks dev` to use it")
        config, _ = adopt(self._config, config)
        workers = _workers(config, plugins, self._logs)
        self._supervisor.change(self._workers, workers)
        self._report_removed({one.handler for one in self._handlers}, handlers)
        self._config, self._handlers, self._workers, self._config_changed = config, handlers, workers, False
        self._plugin_files = FileWatch([*self._plugin_files.files, *plugin_files(config, handlers)])

    def _report_removed(self, before: set[str], handlers: list[Declaration]) -> None:
        """Report removed handlers: events are routed to them for some minutes, and their runs wait."""
        removed = before - {one.handler for one in handlers}
        with contextlib.suppress(RedisError):
            for name, waiting in sorted(HandlerQueries(self._client).waiting(removed).items()):
                runs = f"{waits(waiting.runs, 'run')} for it" if waiting.runs else "new runs will wait for it"
                self._print_note(f"handler {name} was removed; {runs}")
                self._print_note(f"if it was removed for good: storehooks handlers retire {name}")

    def _print_note(self, sentence: str) -> None:
        first, *more = commands_as_typed(sentence).splitlines()
        output.line(output.text(f"{datetime.now():%H:%M:%S}  ", "dim"), "-- ", first, indent=TIME_WIDTH + 3)
        for line in more:
            output.line(" " * (TIME_WIDTH + 3), line, indent=TIME_WIDTH + 3)

    # The end

    def _stop(self) -> None:
        asked = time.monotonic()
        if self._journal is not None:
            self._journal.close()
        self._refused.close()
        self._supervisor.stop_children(above=SERVER_STAGE)  # they flush their counters when they stop
        summary = self._summary()
        self._client.close()
        self._supervisor.stop_children()
        if self._config.redis.embedded:
            socket_path(self._config.data_dir).unlink(missing_ok=True)
        if summary:
            took, redis = time.monotonic() - asked, self._config.redis
            where = redis.data_dir if redis.embedded else f"Redis at {describe(self._client)}"
            output.echo(f"\nstopped in {took:.1f} s, all processes ended, events stored in {where}")
            output.line(f"this run: {summary}", indent=2)

    def _summary(self) -> str:
        try:
            return equation(self._counted()) if self._before is not None else ""
        except RedisError:
            return ""

    def _counted(self) -> dict[str, int]:
        """The counters since the start."""
        now, before = self._events.counters().total, self._before or {}
        return {name: number - before.get(name, 0) for name, number in now.items()}


def _workers(config: Config, plugins: ValidatedPlugins, logs: Path) -> list[Program]:
    """With a short drain: in the config that they begin with, and by a variable in those that they read on HUP."""
    config = config.model_copy(update={"workers": config.workers.model_copy(update={"drain": DRAIN})})
    environ = {"STOREHOOKS_WORKERS__DRAIN": f"{DRAIN:g}s"}
    return worker_programs(config, plugins, output=logs / "worker.log", environ=environ)


def _connect_to(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()


def _routed_to(declared: list[tuple[Declaration, datetime]]) -> set[str]:
    """The handlers that events are still routed to: those declared in the last minutes of the last worker."""
    oldest = max((at for _, at in declared), default=datetime.now(UTC)) - timedelta(milliseconds=DECLARATION_MS)
    return {one.handler for one, at in declared if at >= oldest}


def _reloaded(config: Config | None, old: list[Declaration], new: list[Declaration]) -> str:
    what = f"{config.path.name} and plugins" if config and config.path else "plugins"
    added = sorted({one.handler for one in new} - {one.handler for one in old})
    return f"{what} reloaded" + (f"; new: {', '.join(added)}" if added else "")


def _sandbox_settings(config: Config) -> object:
    stores = {name: store.model_dump(exclude={"catalogue", "auth"}) for name, store in config.stores.items()}
    return config.receiver.public_url, stores, config.model_dump(include={"sandbox", "schemes"})


def _needs_restart(before: Config, now: Config) -> list[str]:
    pairs = {
        "[redis]": (before.redis, now.redis),
        "the first store, which the sandbox simulates,": (next(iter(before.stores), ""), next(iter(now.stores), "")),
    }
    return [name for name, (old, new) in pairs.items() if old != new]
