"""Server state: what a server says about itself, and whether it can be used in its present role and with its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import BusyLoadingError

from receiver.inbox.redis.data_format import format_fault
from receiver.inbox.redis.server_faults import ServerFault, fault_of_mode

HIGH_MEMORY = 0.85
"""Above this fraction of maxmemory no delivery goes to the inbox, so that workers can still write how runs ended."""
REPLICA_SECONDS = 5
"""A replica acknowledges each second. One that has not for longer than this hangs, or its network does."""
SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy")


@dataclass(frozen=True, kw_only=True)
class ServerState:
    fault: ServerFault | None = None
    """Why it cannot be used, although it answers."""
    name: str = ""
    version: tuple[int, ...] = ()
    appendonly: str = ""
    appendfsync: str = ""
    maxmemory_policy: str = ""
    used_memory: int = 0
    maxmemory: int = 0
    machine_memory: int = 0
    role: str = "master"
    replicas: int = 0
    """Those that answer."""
    silent_replicas: int = 0
    """Those that are connected and do not answer. The server drops them after its repl-timeout, 60 s by default."""
    write_fault: str = ""
    """Why it refuses writes now: a full disk, a failed snapshot."""


def read_state(client: Redis, *, writes: bool = False) -> ServerState:
    """Ask a server about itself. Raises RedisError.

    With `writes`, a replica is a fault, and the number of the data's format is written where there is none.
    """
    info: Mapping[str, Any] = client.info()
    settings = _settings(client)
    silent = _silent_replicas(info)
    version, valkey = str(info.get("redis_version", "0")), info.get("valkey_version")
    return ServerState(
        fault=_fault(client, info, writes=writes),
        name=f"Valkey {valkey}" if valkey else f"Redis {version}",
        version=tuple(int(part) for part in version.split(".") if part.isdigit()),
        appendonly=settings["appendonly"] or ("yes" if info.get("aof_enabled") else ""),
        appendfsync=settings["appendfsync"],
        maxmemory_policy=settings["maxmemory-policy"] or str(info.get("maxmemory_policy", "")),
        used_memory=int(info.get("used_memory", 0)),
        maxmemory=int(info.get("maxmemory", 0)),
        machine_memory=int(info.get("total_system_memory", 0)),
        role=str(info.get("role", "master")),
        replicas=int(info.get("connected_slaves", 0)) - silent,
        silent_replicas=silent,
        write_fault=_write_fault(info),
    )


def is_nearly_full(used_memory: int, maxmemory: int) -> bool:
    return bool(maxmemory) and used_memory > HIGH_MEMORY * maxmemory


def _fault(client: Redis, info: Mapping[str, Any], *, writes: bool) -> ServerFault | None:
    fault = fault_of_mode(info, client)
    if fault and (writes or not fault.temporary):
        return fault
    try:
        return format_fault(client, write=writes)
    except BusyLoadingError:  # it is usable soon, so that is no reason to refuse it
        return None


def _silent_replicas(info: Mapping[str, Any]) -> int:
    shown = [info.get(f"slave{number}") for number in range(int(info.get("connected_slaves", 0)))]
    return sum(isinstance(one, dict) and int(one.get("lag", 0)) > REPLICA_SECONDS for one in shown)


def _settings(client: Redis) -> dict[str, str]:
    """Settings of the server; empty where the server does not show them, as managed ones do not."""
    pipeline = client.pipeline(transaction=False)
    for name in SETTINGS:
        pipeline.config_get(name)
    replies = pipeline.execute(raise_on_error=False)
    shown = [reply if isinstance(reply, dict) else {} for reply in replies]
    return {name: str(reply.get(name, "")) for name, reply in zip(SETTINGS, shown, strict=True)}


def _write_fault(info: Mapping[str, Any]) -> str:
    if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
        return "it could not write its append-only file"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return "its last snapshot failed, and by default it then refuses writes"
    return "it is still loading its data" if info.get("loading") else ""
