"""Connections to the server: short explicit timeouts, no hidden retries of writes, and a check of the server.

With sentinels, each new connection asks them for the primary, and they are asked again while connections are in use: a
primary that was replaced accepts writes for some seconds more, and those are lost. A connection to a server that
refuses writes is closed too, and the next one finds the new primary. TLS is `rediss://`, verified by the system's
authorities or by `ca_file`.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import Connection, parse_url
from redis.exceptions import NoPermissionError, RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from receiver.config.settings import RedisSettings
from receiver.contract.errors import ServerUnusable
from receiver.inbox import keys
from receiver.inbox.redis.needed_commands import QUESTION, unknown_commands
from receiver.inbox.redis.server_faults import ServerFault, describe, fault_of_error, fault_of_unknown, user_of
from receiver.inbox.redis.server_state import ServerState, read_state
from receiver.inbox.redis.timed_connections import (
    TimedConnection,
    TimedPrimaryConnection,
    TimedPrimaryTlsConnection,
    TimedTlsConnection,
)

OLDEST_VERSION = (7, 0)
SENTINEL_SECONDS = 0.25
"""Timeout for one sentinel: a delivery may be waiting, and there are other sentinels to ask."""
ASK_EVERY = 0.5
ASK_AT_MOST = 0.1
"""Maximum part of the time that is spent on asking, if sentinels answer slowly."""
_LONGEST_SOCKET_PATH = 100  # the kernel's limit is 108 bytes


class _Needed(NamedTuple):
    """A command that our processes need, in a form that changes nothing."""

    command: tuple[str | float, ...]
    use: str
    right: str
    without: str = ""
    """What workers do without it, if only they need it."""


_NEEDED = (
    _Needed(("TIME",), "run TIME", "+time"),
    _Needed(("EXISTS", keys.RQ_QUEUES), "read keys that begin with rq:", "~rq:*"),
    _Needed(("FCALL", "storehooks", 0), "run FCALL", "+@scripting"),  # Function not found
    _Needed(("FUNCTION", "LOAD", ""), "run FUNCTION LOAD", "+@scripting"),  # Missing library metadata
)
_NEEDED_TO_WRITE = tuple(  # in a way that is an error, or changes nothing
    _Needed(command, f"run {command[0]}", "+@write")
    for command in (
        ("SET", keys.FORMAT, "", "NX", "XX"),
        ("HSET", keys.FORMAT, "", "", ""),
        ("HINCRBY", keys.FORMAT, "", "?"),
        ("ZADD", keys.FORMAT, "?", ""),
        ("ZREM", keys.FORMAT, ""),
        ("HDEL", keys.FORMAT, ""),
    )
)
_LATE, _NO_CALLS = "find new events late", "cannot call the APIs of stores"
_NEEDED_BY_WORKERS = (
    _Needed(("BLMOVE", keys.FORMAT, keys.FORMAT, "LEFT", "LEFT", 0.001), "run BLMOVE", "+blmove", _LATE),  # WRONGTYPE
    _Needed(("LREM", keys.FORMAT, 1, ""), "run LREM", "+lrem", _LATE),  # WRONGTYPE
    _Needed(("EVALSHA", "", 0), "run EVALSHA", "+@scripting", _NO_CALLS),  # No matching script
    _Needed(("SCRIPT", "LOAD", ")"), "run SCRIPT LOAD", "+@scripting", _NO_CALLS),  # Error compiling script
)


class SentinelPool(SentinelConnectionPool):
    """A pool that asks the sentinels for the primary regularly, and closes connections to an old one."""

    def __init__(self, *given: Any, **how: Any) -> None:
        self._ask_at = 0.0
        super().__init__(*given, **how)  # type: ignore[no-untyped-call]

    def get_connection(self, *_: Any, **__: Any) -> Connection:
        self.find_primary()
        found: Connection = super().get_connection()
        return found

    def find_primary(self) -> None:
        """Ask the sentinels, unless that was done lately. Idle connections to an old primary are closed. May block."""
        began = time.monotonic()
        if began < self._ask_at:
            return
        self._ask_at = began + ASK_EVERY
        with suppress(RedisError):  # the known primary may work well while sentinels do not answer
            self.get_master_address()  # type: ignore[no-untyped-call]
        ended = time.monotonic()
        self._ask_at = ended + max(ASK_EVERY, (ended - began) / ASK_AT_MOST)

    def outdated(self, connection: Connection) -> bool:
        """Whether the sentinels have named another primary since the connection was made."""
        return bool(self.master_address != (connection.host, connection.port))


def socket_path(data_dir: Path) -> Path:
    """The socket of the embedded server of a data directory."""
    path = data_dir / "redis.sock"
    if len(str(path)) <= _LONGEST_SOCKET_PATH:
        return path
    name = hashlib.sha256(str(data_dir).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"storehooks-{name}.sock"


def server_url(url: str, data_dir: Path) -> str:
    """The configured server, or the embedded one of the data directory."""
    return url or f"unix://{socket_path(data_dir)}"


def connect(url: str, *, timeout: float, ca_file: str = "") -> Redis:
    """A client that fails after `timeout` seconds and never repeats a write by itself. It connects on first use."""
    timed = {"redis": TimedConnection, "rediss": TimedTlsConnection}.get(url.partition("://")[0])
    given = {"connection_class": timed} if timed else {}
    return Redis.from_url(url, **given, **_timeouts(timeout), **_tls_options(url, ca_file))


def connect_to(given: RedisSettings, *, timeout: float) -> Redis:
    """A client of the configured server: the one of `url`, the one the sentinels name, or the embedded one."""
    if not given.sentinels:
        url = server_url(given.url, Path(given.data_dir).absolute())
        return connect(url, timeout=timeout, ca_file=given.ca_file)
    how = dict(parse_url(given.url or "redis://"))
    for name in ("host", "port"):  # from the sentinels; user, database and TLS are from the URL
        how.pop(name, None)
    client_certificate = {name: how.pop(name) for name in ("ssl_certfile", "ssl_keyfile") if name in how}
    is_tls = how.pop("connection_class", None) is not None
    tls = {"ssl": is_tls, **_tls_options(given.url, given.ca_file), **client_certificate}
    password = given.sentinel_password.get_secret_value()
    to_sentinels = {**_timeouts(min(timeout, SENTINEL_SECONDS)), **tls, "password": password or None}
    named = [_host_and_port(address) for address in given.sentinels]
    sentinel = Sentinel(named, sentinel_kwargs=to_sentinels)
    for one in sentinel.sentinels:
        one.connection_pool.connection_class = TimedTlsConnection if is_tls else TimedConnection
    how["connection_class"] = TimedPrimaryTlsConnection if is_tls else TimedPrimaryConnection
    primary: Redis = sentinel.master_for(
        given.sentinel_name, connection_pool_class=SentinelPool, **how, **_timeouts(timeout), **tls
    )
    return primary


def _timeouts(timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
    }


def _tls_options(url: str, ca_file: str) -> dict[str, str]:
    return {"ssl_ca_certs": ca_file} if ca_file and url.startswith("rediss://") else {}


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def new_connection(client: Redis) -> Connection:
    """One connection outside the pool."""
    pool = client.connection_pool
    connection: Connection = pool.connection_class(**pool.connection_kwargs)
    return connection


def find_primary(client: Redis) -> None:
    """Ask the sentinels, if there are any, for the primary, unless that was done lately. May block."""
    if isinstance(client.connection_pool, SentinelPool):
        client.connection_pool.find_primary()


def outdated(client: Redis, connection: Connection) -> bool:
    """Whether a connection outside the pool leads to an old primary."""
    pool = client.connection_pool
    return isinstance(pool, SentinelPool) and pool.outdated(connection)


def check(client: Redis, *, ack: str = "stored", runs_scripts: bool = True, works: bool = False) -> str:
    """Check that the server answers, is new enough and as durable as `ack` requires, and that its data can be read.
    Returns its name and version.

    Commands may be given a user or a replica that is only read from; processes run scripts, which write.
    With `works` the user must be able to wait for wake-ups and to call stores' APIs, too, as workers do.
    """
    try:
        state = read_state(client, writes=runs_scripts)
    except RedisError as error:
        raise fault_of_error(error, client).error from None
    if state.fault:
        raise state.fault.error
    _refuse_settings(state, ack, describe(client))
    if runs_scripts and (missing := missing_right(client, works=works)):
        raise missing.error
    return state.name


def _refuse_settings(state: ServerState, ack: str, server: str) -> None:
    if state.maxmemory_policy.startswith("allkeys"):
        raise ServerUnusable(
            f"the server's maxmemory-policy is {state.maxmemory_policy}: the server would evict events; "
            "set it to noeviction"
        )
    if state.version[:2] < OLDEST_VERSION:
        raise ServerUnusable(
            f"the Redis server at {server} is {state.name}, and 7.0 or later is needed; "
            "upgrade it, or use Valkey 7.2 or later"
        )
    if ack != "stored" and (state.appendonly, state.appendfsync) != ("yes", "always"):
        raise ServerUnusable(
            f'ack = "{ack}" needs appendonly yes and appendfsync always, and the server has '
            f"appendonly {state.appendonly or '?'} and appendfsync {state.appendfsync or '?'}; set them there, "
            'or ack = "stored"'
        )


def missing_right(client: Redis, *, works: bool) -> ServerFault | None:
    """The fault of a server that lacks a command of ours, or of a user who may not use it. Trying changes nothing.

    A server that is still loading its data does not answer them. It is usable soon, so that is no reason to refuse it.
    """
    needed = (*_NEEDED, *_NEEDED_TO_WRITE, *(_NEEDED_BY_WORKERS if works else ()))
    pipeline = client.pipeline(transaction=False)
    for one in needed:
        pipeline.execute_command(*one.command)
    pipeline.execute_command(*QUESTION)
    try:
        *replies, known = pipeline.execute(raise_on_error=False)
    except RedisError:
        return None
    lacking = []
    for one, reply in zip(needed, replies, strict=True):
        if isinstance(reply, NoPermissionError):
            lacking.append(one)
        elif "unknown command" in str(reply).lower():
            return fault_of_error(reply, client)
    if unknown := unknown_commands(known):
        return fault_of_unknown(unknown, client)
    if not lacking:
        return None
    uses, rights = " or ".join(one.use for one in lacking), " ".join(dict.fromkeys(one.right for one in lacking))
    effects = dict.fromkeys(one.without for one in lacking)
    return ServerFault(
        f"the user {user_of(client)} of the Redis server at {describe(client)} may not {uses}",
        f"give it {rights}, as docs/operating/redis.md says",
        only_workers=" and ".join(effects) if all(effects) else "",
    )


def default_user_denied(client: Redis) -> str:
    """Why the user `default` may not write our keys, in the server's words; empty if it may, or if we may not ask."""
    try:
        answer = client.execute_command("ACL", "DRYRUN", "default", "DEL", keys.FORMAT, keys.RQ_QUEUES)
    except RedisError:
        return ""
    return "" if answer == b"OK" else answer.decode()


class ServerUser:
    """Reads or writes a part of the inbox."""

    def __init__(self, client: Redis) -> None:
        self.client = client


def server_ms(client: Redis) -> float:
    """The server's time in ms."""
    seconds, micros = client.time()
    return float(seconds * 1000 + micros / 1000)
