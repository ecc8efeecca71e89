"""Audit trail: who did what to which events, handlers and stores. Written before the action, and once more at its end.

An entry has names, counts and reasons, never a payload.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import orjson

from receiver.inbox import keys
from receiver.inbox.model import from_ms
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser

MAX_ENTRIES = 20_000


@dataclass(frozen=True)
class AuditEntry:
    id: str
    who: str
    action: str
    selection: Mapping[str, Any] = field(default_factory=dict)
    count: int | None = None
    """How many events or runs it was for, as far as that was known before."""
    result: str = ""
    """How it ended, if this is the entry of an end."""
    of: str = ""
    """The entry of its begin, if this is the entry of an end."""
    at: datetime | None = None
    """None for one that is being written: it is recorded with the server's time."""


class AuditTrail(ServerUser):
    def begin(self, who: str, action: str, selection: Mapping[str, Any], *, count: int | None = None) -> AuditEntry:
        """Record an action that is about to be performed."""
        chosen = {name: value for name, value in selection.items() if value not in (None, "", (), [], False)}
        return self._write(who=who, action=action, selection=chosen, count=count)

    def end(self, begun: AuditEntry, result: str, *, bulk: str = "") -> AuditEntry:
        """Record how an action ended; that of a bulk action, only if it is open, which it is then no longer."""
        return self._write(bulk, who=begun.who, action=begun.action, result=result, of=begun.id)

    def newest(self, limit: int = 50) -> list[AuditEntry]:
        """The latest entries, the newest first."""
        found: Any = self.client.zrange(keys.AUDIT, 0, limit - 1, desc=True, withscores=True)
        return [entry for text, at in found if (entry := _read(text, at))]

    def find(self, entry_id: str) -> AuditEntry | None:
        """One of the latest entries."""
        return next((one for one in self.newest() if one.id == entry_id), None)

    def _write(self, bulk: str = "", **fields: Any) -> AuditEntry:
        entry = AuditEntry(secrets.token_hex(6), **fields)
        written = {name: value for name, value in asdict(entry).items() if value}
        script_runner.run_one(self.client, "audit", orjson.dumps(written, default=str), MAX_ENTRIES, bulk)
        return entry


def in_words(selection: Mapping[str, Any]) -> str:
    """What an action was for: `store north`, `events a b`; a flag by its name alone."""
    return ", ".join(f"{name} {_value(value)}".strip() for name, value in selection.items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is True else str(value)


def _read(text: bytes, at: float) -> AuditEntry | None:
    """None if it is damaged."""
    try:
        return AuditEntry(at=from_ms(at), **orjson.loads(text))
    except (ValueError, TypeError):
        return None
