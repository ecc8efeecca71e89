"""Auditing: a command records what it is about to change, before it does."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Any

from redis import Redis

from receiver.inbox.audit_trail import AuditTrail


def record(client: Redis, action: str, *, count: int | None = None, **selection: Any) -> None:
    """Record an action of the person at this terminal."""
    AuditTrail(client).begin(person(), action, selection, count=count)


def person() -> str:
    """Who is at this terminal."""
    return f"command {_user()}@{socket.gethostname()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under an id without a name
        return str(os.getuid())
