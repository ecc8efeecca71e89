"""Connections to the server: short explicit timeouts, no hidden retries of writes, a version we can use.

With sentinels, each new connection asks them who the primary is, and they are asked again while connections are in use:
one that was replaced takes writes for seconds more, before it is told, and nobody will ever see them. A server that
refuses writes is left, too, and the next connection finds the new one. TLS is `rediss://`, verified by the system's
authorities or by `ca_file`.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import Connection, parse_url
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from receiver.config.settings import RedisSettings
from receiver.contract.errors import ServerUnreachable, ServerUnusable

OLDEST = (7, 0)
SENTINEL_SECONDS = 0.25
"""How long one sentinel may take to answer: a delivery may be waiting, and there are others to ask."""
ASK_EVERY = 0.5
ASK_AT_MOST = 0.1
"""Part of the time that may be spent on asking, when sentinels are slow to answer."""
_LONGEST_SOCKET_PATH = 100  # the kernel's limit is 108 bytes


class FollowingPool(SentinelConnectionPool):
    """Asks the sentinels again now and then, and leaves a primary that is one no longer."""

    def __init__(self, *given: Any, **how: Any) -> None:
        self._ask_at = 0.0
        super().__init__(*given, **how)  # type: ignore[no-untyped-call]

    def get_connection(self, *_: Any, **__: Any) -> Connection:
        self.ask_again()
        found: Connection = super().get_connection()
        return found

    def ask_again(self) -> None:
        """Who the primary is, if nobody has asked lately. Idle connections to another are closed. This may wait."""
        began = time.monotonic()
        if began < self._ask_at:
            return
        self._ask_at = began + ASK_EVERY
        with suppress(RedisError):  # what there is may serve well, whoever else is away
            self.get_master_address()  # type: ignore[no-untyped-call]
        ended = time.monotonic()
        self._ask_at = ended + max(ASK_EVERY, (ended - began) / ASK_AT_MOST)

    def outdated(self, connection: Connection) -> bool:
        """Whether the sentinels have named another primary since it was made."""
        return bool(self.master_address != (connection.host, connection.port))


def socket_path(data_dir: Path) -> Path:
    """Where the embedded server of a data directory listens."""
    path = data_dir / "redis.sock"
    if len(str(path)) <= _LONGEST_SOCKET_PATH:
        return path
    name = hashlib.sha256(str(data_dir).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"storehooks-{name}.sock"


def server_url(url: str, data_dir: Path) -> str:
    """The configured server, or the embedded one of the data directory."""
    return url or f"unix://{socket_path(data_dir)}"


def connect(url: str, *, timeout: float, ca_file: str = "") -> Redis:
    """A client that gives up after `timeout` and never sends a write twice by itself. Connects when first used."""
    return Redis.from_url(url, **_patience(timeout), **_authority(url, ca_file))


def connect_to(given: RedisSettings, *, timeout: float) -> Redis:
    """A client of the configured server: the one of `url`, the one the sentinels name, or the embedded one."""
    if not given.sentinels:
        url = server_url(given.url, Path(given.data_dir).absolute())
        return connect(url, timeout=timeout, ca_file=given.ca_file)
    how = dict(parse_url(given.url or "redis://"))
    for name in ("host", "port"):  # the sentinels say where; the URL says as whom, to which database, and by TLS
        how.pop(name, None)
    tls = {"ssl": how.pop("connection_class", None) is not None, **_authority(given.url, given.ca_file)}
    password = given.sentinel_password.get_secret_value()
    to_sentinels = {**_patience(min(timeout, SENTINEL_SECONDS)), **tls, "password": password or None}
    named = [_host_and_port(address) for address in given.sentinels]
    sentinel = Sentinel(named, sentinel_kwargs=to_sentinels)
    primary: Redis = sentinel.master_for(
        given.sentinel_name, connection_pool_class=FollowingPool, **how, **_patience(timeout), **tls
    )
    return primary


def _patience(timeout: float) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
    }


def _authority(url: str, ca_file: str) -> dict[str, str]:
    return {"ssl_ca_certs": ca_file} if ca_file and url.startswith("rediss://") else {}


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def open_connection(client: Redis) -> Connection:
    """One connection outside the pool, for a blocking command that nothing else may wait behind."""
    pool = client.connection_pool
    connection: Connection = pool.connection_class(**pool.connection_kwargs)
    return connection


def ask_again(client: Redis) -> None:
    """Have the sentinels asked who the primary is, where there are some and it was not done lately. This may wait."""
    if isinstance(client.connection_pool, FollowingPool):
        client.connection_pool.ask_again()


def outdated(client: Redis, connection: Connection) -> bool:
    """Whether a connection outside the pool leads to a server that is known to be replaced."""
    pool = client.connection_pool
    return isinstance(pool, FollowingPool) and pool.outdated(connection)


def check(client: Redis, *, ack: str = "stored") -> str:
    """Make sure the server answers, is new enough and as durable as `ack` says; give its name and version."""
    try:
        info = client.info("server")
        fsync = _setting(client, "appendfsync") if ack != "stored" else ""
        appendonly = _setting(client, "appendonly") if ack != "stored" else ""
    except RedisError as error:
        raise ServerUnreachable(
            f"the Redis server at {describe(client)} does not answer: {str(error).rstrip('.')}. "
            "Start it, or set [redis] url (or REDIS_URL) or sentinels; `storehooks dev` starts an embedded one"
        ) from None
    policy = _setting(client, "maxmemory-policy")
    if policy.startswith("allkeys"):
        raise ServerUnusable(
            f"the server's maxmemory-policy is {policy}: it would throw events away; set it to noeviction"
        )
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ServerUnusable(
            f"the Redis server at {describe(client)} is {version}, and 7.0 or later is needed; "
            "upgrade it, or use Valkey 7.2 or later"
        )
    _refuse_without_functions(client)
    if ack != "stored" and (appendonly, fsync) != ("yes", "always"):
        raise ServerUnusable(
            f'ack = "{ack}" needs appendonly yes and appendfsync always, and the server has '
            f'appendonly {appendonly or "?"} and appendfsync {fsync or "?"}; set them there, or ack = "stored"'
        )
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {version}"


def _refuse_without_functions(client: Redis) -> None:
    """Refuse a server that has no functions, or a user who may not use them. The two commands change nothing."""
    pipeline = client.pipeline(transaction=False)
    pipeline.execute_command("FCALL", "storehooks", 0)  # Function not found
    pipeline.execute_command("FUNCTION", "LOAD", "")  # Missing library metadata
    for reply in pipeline.execute(raise_on_error=False):
        if isinstance(reply, NoPermissionError):
            raise ServerUnusable(
                f"the user at the Redis server {describe(client)} may not run FCALL or FUNCTION LOAD; "
                "give it +@scripting, as docs/operating.md says"
            )
        if "unknown command" in str(reply).lower():
            raise ServerUnusable(
                f"the server at {describe(client)} has no functions (FCALL); use Redis 7.0, Valkey 7.2, or later"
            )


def describe(client: Redis) -> str:
    """Where a client connects to, without its password."""
    pool = client.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        return f"{pool.service_name} (by its sentinels)"
    given = pool.connection_kwargs
    return str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")


def _setting(client: Redis, name: str) -> str:
    """A setting of the server; empty where it will not tell, as hosted ones do."""
    try:
        return str(client.config_get(name).get(name, ""))
    except ResponseError:
        return ""
