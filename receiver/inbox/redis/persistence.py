"""Persistence: has the server write its files anew, so that they have nothing of what was removed."""

from __future__ import annotations

import time
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

POLL_SECONDS = 0.1
LONGEST_SECONDS = 3600.0


def rewrite_files(client: Redis) -> tuple[list[str], list[str]]:
    """Rewrite the append-only file and the snapshot, as far as the server has them. Returns what was done, and what is
    left to do. The server goes on working meanwhile."""
    done, left = list[str](), list[str]()
    state: Any = client.info("persistence")
    if state.get("aof_enabled"):
        how = ("append-only file", "aof_rewrite_in_progress", "aof_rewrite_scheduled", "aof_last_bgrewrite_status")
        _rewrite(client, "BGREWRITEAOF", how, done, left)
    if _has_snapshots(client, state):
        how = ("snapshot", "rdb_bgsave_in_progress", "", "rdb_last_bgsave_status")
        _rewrite(client, "BGSAVE SCHEDULE", how, done, left)
    return done, left


def _has_snapshots(client: Redis, state: Any) -> bool:
    try:
        return bool(client.config_get("save").get("save"))
    except ResponseError:  # a managed server does not say
        return not state.get("aof_enabled")


def _rewrite(client: Redis, command: str, how: tuple[str, str, str, str], done: list[str], left: list[str]) -> None:
    """One that was under way has begun before: it is waited for, and then another one is made."""
    name, running, scheduled, status = how
    try:
        _wait(client, running, scheduled)
        client.execute_command(*command.split())
        state = _wait(client, running, scheduled)
    except ResponseError as error:
        run = f"run {command} there as a user who may, or wait for its next rewrite"
        left.append(f"the server's {name} was not rewritten ({error}): {run}")
        return
    if state.get(status) == "ok":
        done.append(f"the server's {name} was rewritten")
    else:
        left.append(f"the server could not rewrite its {name}: see its log")


def _wait(client: Redis, *flags: str) -> Any:
    deadline = time.monotonic() + LONGEST_SECONDS
    while True:
        state: Any = client.info("persistence")
        if not any(state.get(flag) for flag in flags if flag) or time.monotonic() > deadline:
            return state
        time.sleep(POLL_SECONDS)
