"""dev: everything in one terminal, on the embedded server. Ctrl-C leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from redis.exceptions import RedisError

from receiver import __version__
from receiver.config import Config, load_from_environment
from receiver.contract.errors import ConfigError, ServerUnusable
from receiver.inbox import Declaration, EventQueries, connect_to
from receiver.inbox.model import DECLARATION_MS
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.redis import embedded_server
from receiver.inbox.redis.connecting import check, socket_path
from receiver.ports import require_free_port
from receiver.process_files import AlreadyHeld, hold_alone
from workers.cli import output
from workers.cli.dev_stream import RefusalStream, RunStream
from workers.cli.file_watch import FileWatch, config_files, plugin_files
from workers.cli.options import load_config, with_config
from workers.cli.stats import equation
from workers.formatting import waits
from workers.plugins.validation_process import validate_plugins
from workers.runtime.supervisor import Program, Supervisor, python_command, worker_programs

START_SECONDS = 10.0
STOP_SECONDS = 8.0
DRAIN = "4s"
LOOK_FOR_CHANGES_EVERY = 0.5
SERVER_STAGE = 0
"""It ends last: the others have something to write when they end."""


@click.command()
@click.option("--no-sandbox", is_flag=True, help="Without the sandbox store.")
@click.option("--events", type=click.IntRange(1), metavar="N", help="Stop with a summary after N events were handled.")
@with_config
def dev(no_sandbox: bool, events: int | None) -> None:
    """Run everything here: server, receiver, workers, and a sandbox store."""
    started = time.monotonic()
    config = load_config()
    require_free_port(config.receiver.bind, key="[receiver] bind")
    if config.stores and not no_sandbox:
        require_free_port(config.sandbox.bind, key="[sandbox] bind")
    handlers = validate_plugins(config)
    refuse_a_second_dev(config.data_dir)
    Dev(config, handlers, started, events).run(sandbox=not no_sandbox)


def refuse_a_second_dev(data_dir: Path) -> None:
    """One `storehooks dev` for a data directory; the kernel frees its lock however this process ends."""
    try:
        hold_alone(data_dir, "dev")
    except AlreadyHeld as other:
        raise ConfigError(
            f"another `storehooks dev` (process {other.pid or '?'}) uses {data_dir}; stop it, or set [redis] data_dir"
        ) from None


class Dev:
    def __init__(self, config: Config, handlers: list[Declaration], started: float, events: int | None) -> None:
        self._config = config
        self._handlers = handlers
        self._started = started
        self._most = events
        self._client = connect_to(config.redis, timeout=2.0)
        self._ledger = EventQueries(self._client)
        self._supervisor = Supervisor(report=self._say, stop_seconds=STOP_SECONDS)
        self._logs = config.data_dir / "logs"
        self._journal: RunStream | None = None
        self._first = True
        self._before: dict[str, int] | None = None
        self._config_files = FileWatch(config_files(config))
        self._plugin_files = FileWatch(plugin_files(config, handlers))
        self._new_config = False
        """The config was saved, and not everybody has read it yet."""
        self._changes_at = 0.0
        self._refused = RefusalStream(config.data_dir)

    def run(self, *, sandbox: bool) -> None:
        self._logs.mkdir(exist_ok=True)
        try:
            server = self._start_server()
            self._before = dict(self._ledger.counters().total)
            declared_before = self._ledger.declared()
            self._start_the_rest(sandbox)
            self._banner(server, sandbox)
            self._say_who_is_gone(_routed_to(declared_before), self._handlers)
            self._listen()
            self._supervisor.run(every=self._every)
        finally:
            self._stop()

    # Starting

    def _start_server(self) -> str:
        if self._config.redis.embedded:
            program = embedded_server.binary()
            embedded_server.version_of(program)
            command = embedded_server.command(program, self._config.data_dir)
            self._supervisor.start(Program("server", command, stage=SERVER_STAGE, output=self._logs / "server.log"))
            self._wait_for_the_server()
        return check(self._client, ack=self._config.redis.ack)

    def _wait_for_the_server(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(RedisError):  # no socket yet, or still reading its file
                self._client.ping()
                return
            self._supervisor.poll(0.02)
        raise ServerUnusable(f"the embedded server did not start; see {self._logs / 'server.log'}")

    def _start_the_rest(self, sandbox: bool) -> None:
        config, environ = self._config, {"STOREHOOKS_WORKERS__DRAIN": DRAIN}
        command = python_command("receiver.server.web", config)
        self._supervisor.start(Program("receiver", command, stage=2, output=self._logs / "receiver.log"))
        for program in worker_programs(config, output=self._logs / "worker.log", environ=environ):
            self._supervisor.start(program)
        if sandbox and config.stores:
            self._supervisor.start(self._sandbox())

    def _sandbox(self) -> Program:
        arguments = ["--store", next(iter(self._config.stores)), "--every", "0" if self._most else "2"]
        if self._most:
            arguments += ["--events", str(self._most)]
        command = python_command("workers.cli", self._config, "sandbox", *arguments)
        return Program("sandbox", command, stage=3, output=self._logs / "sandbox.log")

    def _banner(self, server: str, sandbox: bool) -> None:
        where = f"embedded {server}, data in {self._config.redis.data_dir}" if self._config.redis.embedded else server
        click.echo(f"storehooks {__version__}, {where}, config {self._config.path}\n")
        for name in self._config.stores:
            click.echo(f"  receiver  {self._config.public_url_of(name)}")
        if sandbox and self._config.stores:
            store, where = next(iter(self._config.stores)), self._config.sandbox.bind
            click.echo(f"  sandbox   http://{where}   a pretend {store}, a shopper buys every 2 s")
        told = "   ".join(f"{one.handler} ({', '.join(one.topics)})" for one in self._handlers)
        click.echo(f"  handlers  {told or 'none; see [workers] plugins'}\n")

    # While it runs

    def _every(self) -> None:
        self._listen()
        self._load_what_changed()
        self._show_refused()
        if self._most and not self._first:
            with contextlib.suppress(RedisError):
                if sum(self._counted()[name] for name in ("settled", "failed")) >= self._most:
                    self._supervisor.stop()

    def _listen(self) -> None:
        """Follow the journal; the server may be starting again, and then we come back later."""
        if self._journal is None:
            with contextlib.suppress(RedisError, OSError):
                self._journal = RunStream(self._client)
                self._supervisor.watch(self._journal.fileno, self._hear)

    def _hear(self) -> None:
        assert self._journal is not None
        try:
            for line in self._journal.lines():
                if not self._quiet:
                    click.echo(line)
                if self._first:
                    self._first = False
                    self._say_what_next()
        except (RedisError, OSError):
            self._supervisor.unwatch(self._journal.fileno)
            self._journal.close()
            self._journal = None

    def _show_refused(self) -> None:
        for line in self._refused.lines():
            if not self._quiet:
                click.echo(line)

    @property
    def _quiet(self) -> bool:
        """Many events are to be handled quickly; nobody reads a line for each."""
        return bool(self._most and self._most > 50)

    def _say_what_next(self) -> None:
        click.echo(f"First event handled after {time.monotonic() - self._started:.0f} s.")
        if self._most:
            return
        click.echo("In a second terminal:")
        has_api = any(store.base_url for store in self._config.stores.values())
        output.next_command(
            "storehooks send order.created  your own event",
            "storehooks send order.created --tamper body  see it refused",
            "storehooks events  what has arrived",
            *(["storehooks api orders list  the sandbox store's API"] if has_api else []),
            *(f"edit {os.path.relpath(file)}  loads when saved" for file in self._plugin_files.files),
        )
        click.echo()

    def _load_what_changed(self) -> None:
        if time.monotonic() < self._changes_at:
            return
        self._changes_at = time.monotonic() + LOOK_FOR_CHANGES_EVERY
        config = self._config_files.changed(config_files(self._config))
        self._new_config = self._new_config or config
        if self._plugin_files.changed() or config:
            self._load_again()

    def _load_again(self) -> None:
        """Everybody reads the config again, if it and its plugins are good; else what was there goes on."""
        try:
            config = load_from_environment(str(self._config.path) if self._config.path else None)
            self._plugin_files = FileWatch([*self._plugin_files.files, *plugin_files(config, ())])
            handlers = validate_plugins(config)
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, the old one goes on
            self._say(f"not loaded, the old one stays: {error}")
            return
        self._supervisor.signal("" if self._new_config else "worker", signal.SIGHUP)
        self._say(_what_was_loaded(config if self._new_config else None, self._handlers, handlers))
        for setting in _kept_until_a_restart(self._config, config):
            self._say(f"{setting} has changed; that counts when `storehooks dev` is started again")
        self._say_who_is_gone({one.handler for one in self._handlers}, handlers)
        self._config, self._handlers, self._new_config = config, handlers, False
        self._plugin_files = FileWatch([*self._plugin_files.files, *plugin_files(config, handlers)])

    def _say_who_is_gone(self, before: set[str], handlers: list[Declaration]) -> None:
        """Events are routed to a handler for minutes after it was last there, and their runs wait for it."""
        gone = before - {one.handler for one in handlers}
        with contextlib.suppress(RedisError):
            for name, waiting in sorted(HandlerQueries(self._client).waiting(gone).items()):
                runs = f"and {waits(waiting, 'run of it', 'runs of it')}" if waiting else "what comes for it waits"
                self._say(f"{name} is in no plugin any more, {runs}")
                self._say(f"if it is gone for good: {output.our_name()} handlers retire {name}")

    def _say(self, sentence: str) -> None:
        first, *more = sentence.splitlines()
        output.prose(f"{datetime.now():%H:%M:%S}  -- {first}", indent=13)
        for line in more:
            output.prose(f"{'':13}{line}", indent=13)

    # The end

    def _stop(self) -> None:
        asked = time.monotonic()
        if self._journal is not None:
            self._journal.close()
        self._refused.close()
        self._supervisor.stop_children(above=SERVER_STAGE)  # they write down what they have counted and not told yet
        summary = self._summary()
        self._client.close()
        self._supervisor.stop_children()
        if self._config.redis.embedded:
            socket_path(self._config.data_dir).unlink(missing_ok=True)
        if summary:
            took = time.monotonic() - asked
            click.echo(f"\nstopped in {took:.1f} s, nothing left running, events kept in {self._config.redis.data_dir}")
            click.echo(summary)

    def _summary(self) -> str:
        try:
            return equation(self._counted()) if self._before is not None else ""
        except RedisError:
            return ""

    def _counted(self) -> dict[str, int]:
        """Since the start."""
        now, before = self._ledger.counters().total, self._before or {}
        return {name: many - before.get(name, 0) for name, many in now.items()}


def _routed_to(declared: list[tuple[Declaration, datetime]]) -> set[str]:
    """Handlers that events are routed to again as soon as a worker is there: those of the last one's last minutes."""
    oldest = max((at for _, at in declared), default=datetime.now(UTC)) - timedelta(milliseconds=DECLARATION_MS)
    return {one.handler for one, at in declared if at >= oldest}


def _what_was_loaded(config: Config | None, old: list[Declaration], new: list[Declaration]) -> str:
    what = f"{config.path.name} and plugins" if config and config.path else "plugins"
    added = sorted({one.handler for one in new} - {one.handler for one in old})
    return f"{what} loaded again" + (f"; new: {', '.join(added)}" if added else "")


def _kept_until_a_restart(before: Config, now: Config) -> list[str]:
    """What counts from the start of a process that is not started again."""
    pairs = {
        "[redis]": (before.redis, now.redis),
        "[workers] processes": (before.workers.processes, now.workers.processes),
        "[sandbox]": (before.sandbox, now.sandbox),
    }
    return [name for name, (old, new) in pairs.items() if old != new]
