"""Auditing: a command records what it is about to change, before it does."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from receiver.config import Config
from receiver.contract.errors import ServerUnusable
from receiver.inbox.audit_trail import AuditTrail
from workers.cli import output
from workers.cli.options import connect_server


def record(client: Redis, action: str, *, count: int | None = None, **selection: Any) -> None:
    """Record an action of the person at this terminal."""
    AuditTrail(client).begin(person(), action, selection, count=count)


def person() -> str:
    """Who is at this terminal."""
    return f"command {_user()}@{socket.gethostname()}"


def record_if_reachable(config: Config, action: str, *, count: int | None = None, **selection: Any) -> None:
    """The same for a command that also works without Redis. Then it says that the action is not recorded."""
    try:
        record(connect_server(config), action, count=count, **selection)
    except (ServerUnusable, RedisError) as error:
        output.warn(f"not recorded in the audit trail: {str(error).partition(';')[0]}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under an id without a name
        return str(os.getuid())
