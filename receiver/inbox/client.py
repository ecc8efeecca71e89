"""Connections to the server: short explicit timeouts, no hidden retries of writes, a version we can use."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from receiver.contract.errors import ServerAway, ServerUnusable

OLDEST = (7, 0)
_LONGEST_SOCKET_PATH = 100  # the kernel's limit is 108 bytes


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


def connect(url: str, *, timeout: float) -> Redis:
    """A client that gives up after `timeout` and never sends a write twice by itself. Connects when first used."""
    return Redis.from_url(
        url,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        decode_responses=False,
    )


def open_connection(client: Redis) -> Connection:
    """One connection outside the pool, for a blocking command that nothing else may wait behind."""
    pool = client.connection_pool
    connection: Connection = pool.connection_class(**pool.connection_kwargs)
    return connection


def check(client: Redis, *, ack: str = "stored") -> str:
    """Make sure the server answers, is new enough and as durable as `ack` says; give its name and version."""
    try:
        info = client.info("server")
        fsync = _setting(client, "appendfsync") if ack != "stored" else ""
        appendonly = _setting(client, "appendonly") if ack != "stored" else ""
    except RedisError as error:
        raise ServerAway(
            f"the Redis server at {describe(client)} does not answer: {error}. "
            "Start it, or set [redis] url (or REDIS_URL); `storehooks dev` starts an embedded one"
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
    if ack != "stored" and (appendonly, fsync) != ("yes", "always"):
        raise ServerUnusable(
            f'ack = "{ack}" needs appendonly yes and appendfsync always, and the server has '
            f'appendonly {appendonly or "?"} and appendfsync {fsync or "?"}; set them there, or ack = "stored"'
        )
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {version}"


def describe(client: Redis) -> str:
    """Where a client connects to, without its password."""
    given = client.connection_pool.connection_kwargs
    return str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")


def _setting(client: Redis, name: str) -> str:
    """A setting of the server; empty where it will not tell, as hosted ones do."""
    try:
        return str(client.config_get(name).get(name, ""))
    except ResponseError:
        return ""
