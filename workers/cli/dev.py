"""dev: everything in one terminal, on the embedded server. Ctrl-C leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

import click
import orjson
from redis import Redis
from redis.client import PubSub
from redis.exceptions import RedisError

from receiver import __version__
from receiver.config import Config
from receiver.contract.errors import ConfigError, ServerUnusable
from receiver.inbox import Declaration, Ledger, connect_to, embedded, keys
from receiver.inbox.client import check, socket_path
from receiver.ports import refuse_a_taken_port
from workers.cli import show
from workers.cli.look import equation
from workers.cli.options import the_config, with_config
from workers.plugins import judge_elsewhere
from workers.supervisor import Program, Supervisor, behind_the_queue, python

START_SECONDS = 10.0
STOP_SECONDS = 8.0
DRAIN = "4s"
LOOK_FOR_CHANGES_EVERY = 0.5


@click.command()
@click.option("--no-sandbox", is_flag=True, help="Without the pretend store.")
@click.option("--events", type=click.IntRange(1), metavar="N", help="Stop with a summary after N events were handled.")
@with_config
def dev(no_sandbox: bool, events: int | None) -> None:
    """Run everything here: server, receiver, workers, and a pretend store."""
    started = time.monotonic()
    config = the_config()
    refuse_a_taken_port(config.receiver.bind, key="[receiver] bind")
    if config.stores and not no_sandbox:
        refuse_a_taken_port(config.sandbox.bind, key="[sandbox] bind")
    handlers = judge_elsewhere(config)
    with only_one(config.data_dir):
        Dev(config, handlers, started, events).run(sandbox=not no_sandbox)


@contextlib.contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """One `storehooks dev` for a data directory; the kernel frees the lock however we end."""
    data_dir.mkdir(parents=True, exist_ok=True)
    path = data_dir / "dev.lock"
    with open(path, "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise ConfigError(
                f"another `storehooks dev` (process {lock.read().strip() or '?'}) uses {data_dir}; "
                "stop it, or set [redis] data_dir"
            ) from None
        _write_pid(lock)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _write_pid(lock: IO[str]) -> None:
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()


class Dev:
    def __init__(self, config: Config, handlers: list[Declaration], started: float, events: int | None) -> None:
        self._config = config
        self._handlers = handlers
        self._started = started
        self._most = events
        self._client = connect_to(config.redis, timeout=2.0)
        self._ledger = Ledger(self._client)
        self._supervisor = Supervisor(say=self._say, patience=STOP_SECONDS)
        self._logs = config.data_dir / "logs"
        self._journal: Journal | None = None
        self._first = True
        self._files = {Path(one.details["file"]): 0.0 for one in handlers}
        self._changes_at = 0.0

    def run(self, *, sandbox: bool) -> None:
        self._logs.mkdir(exist_ok=True)
        try:
            server = self._start_server()
            self._before = dict(self._ledger.counters().total)
            self._start_the_rest(sandbox)
            self._banner(server, sandbox)
            self._listen()
            self._supervisor.run(every=self._every)
        finally:
            self._stop()

    # Starting

    def _start_server(self) -> str:
        if self._config.redis.embedded:
            program = embedded.binary()
            embedded.version_of(program)
            command = embedded.command(program, self._config.data_dir)
            self._supervisor.start(Program("server", command, stage=0, output=self._logs / "server.log"))
            self._wait_for_the_server()
        return check(self._client, ack=self._config.redis.ack)

    def _wait_for_the_server(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(RedisError):  # no socket yet, or still reading its file
                self._client.ping()
                return
            self._supervisor.turn(0.02)
        raise ServerUnusable(f"the embedded server did not start; see {self._logs / 'server.log'}")

    def _start_the_rest(self, sandbox: bool) -> None:
        config, environ = self._config, {"STOREHOOKS_WORKERS__DRAIN": DRAIN}
        command = python("receiver.gunicorn", config)
        self._supervisor.start(Program("receiver", command, stage=2, output=self._logs / "receiver.log"))
        for program in behind_the_queue(config, output=self._logs / "worker.log", environ=environ):
            self._supervisor.start(program)
        if sandbox and config.stores:
            self._supervisor.start(self._sandbox())

    def _sandbox(self) -> Program:
        arguments = ["--store", next(iter(self._config.stores)), "--every", "0" if self._most else "2"]
        if self._most:
            arguments += ["--events", str(self._most)]
        command = python("workers.cli", self._config, "sandbox", *arguments)
        return Program("sandbox", command, stage=3, output=self._logs / "sandbox.log")

    def _banner(self, server: str, sandbox: bool) -> None:
        where = f"embedded {server}, data in {self._config.redis.data_dir}" if self._config.redis.embedded else server
        click.echo(f"storehooks {__version__}, {where}, config {self._config.path}\n")
        for name in self._config.stores:
            click.echo(f"  receiver  {self._config.public_url_of(name)}")
        if sandbox and self._config.stores:
            store, where = next(iter(self._config.stores)), self._config.sandbox.bind
            click.echo(f"  sandbox   http://{where}   a pretend store: {store}'s shopper buys every 2 s")
        told = "   ".join(f"{one.handler} ({', '.join(one.topics)})" for one in self._handlers)
        click.echo(f"  handlers  {told or 'none; see [workers] plugins'}\n")

    # While it runs

    def _every(self) -> None:
        self._listen()
        self._reload_changed_plugins()
        if self._most and not self._first:
            with contextlib.suppress(RedisError):
                now = self._ledger.counters().total
                if sum(now[name] - self._before[name] for name in ("settled", "failed")) >= self._most:
                    self._supervisor.stop()

    def _listen(self) -> None:
        """Follow the journal; the server may be starting again, and then we come back later."""
        if self._journal is None:
            with contextlib.suppress(RedisError, OSError):
                self._journal = Journal(self._client)
                self._supervisor.watch(self._journal.fileno, self._hear)

    def _hear(self) -> None:
        assert self._journal is not None
        try:
            for line in self._journal.lines():
                if not (self._most and self._most > 50):
                    click.echo(line)
                if self._first:
                    self._first = False
                    self._say_what_next()
        except (RedisError, OSError):
            self._supervisor.unwatch(self._journal.fileno)
            self._journal.close()
            self._journal = None

    def _say_what_next(self) -> None:
        click.echo(f"First event handled after {time.monotonic() - self._started:.0f} s.")
        if self._most:
            return
        click.echo("In a second terminal:")
        has_api = any(store.base_url for store in self._config.stores.values())
        show.next_command(
            "storehooks send order.created  your own event",
            "storehooks send order.created --tamper body  see it refused",
            "storehooks events  what has arrived",
            *(["storehooks api orders list  the pretend store's API"] if has_api else []),
            *(f"edit {os.path.relpath(file)}  loads when saved" for file in self._files),
        )
        click.echo()

    def _reload_changed_plugins(self) -> None:
        if time.monotonic() < self._changes_at:
            return
        self._changes_at = time.monotonic() + LOOK_FOR_CHANGES_EVERY
        changed = False
        for file, before in self._files.items():
            with contextlib.suppress(OSError):  # an editor may be replacing it just now
                saved = file.stat().st_mtime
                changed = changed or (bool(before) and saved != before)
                self._files[file] = saved
        if changed:
            self._try_the_new_plugins()

    def _try_the_new_plugins(self) -> None:
        try:
            judge_elsewhere(self._config)
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, the old one goes on
            self._say(f"not loaded, the old one stays: {error}")
            return
        self._supervisor.signal("worker", signal.SIGHUP)
        self._say("plugins loaded again")

    def _say(self, sentence: str) -> None:
        click.echo(f"{datetime.now():%H:%M:%S}  -- {sentence}")

    # The end

    def _stop(self) -> None:
        asked = time.monotonic()
        summary = self._summary()
        if self._journal is not None:
            self._journal.close()
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
            now = self._ledger.counters().total
        except RedisError:
            return ""
        return equation({name: now[name] - self._before[name] for name in now})


class Journal:
    """What handlers have done, as it happens."""

    def __init__(self, client: Redis) -> None:
        self._pubsub: PubSub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(keys.JOURNAL)
        self.fileno = int(self._pubsub.connection._sock.fileno())

    def lines(self) -> Iterator[str]:
        """A line for each outcome that has come."""
        while self._pubsub.connection is not None and self._pubsub.connection.can_read(timeout=0):
            message = self._pubsub.get_message(timeout=0)
            if message:
                yield from map(self._line, orjson.loads(message["data"]))

    def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            self._pubsub.close()

    @staticmethod
    def _line(told: list[str]) -> str:
        item, outcome, store, topic, resource, detail = told
        about = orjson.loads(detail)
        handler = keys.split_item(item)[1]
        result = about.get("error") or ("" if about.get("result") is None else f'"{about["result"]}"')
        took = f"{about.get('ms', 0):.0f} ms"
        text = f"{store}  {topic:<16}  {resource:<5} {handler:<13} {outcome:<7} {took:<6} {result}"
        return f"{datetime.now():%H:%M:%S}  {show.harmless(text)}"
