"""Handlers: which ones workers have now, and how many runs wait for those that no worker has. Only reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis import Redis

from receiver.inbox import keys
from receiver.inbox.model import DECLARATION_MS, from_ms, to_ms

DECLARATION_SILENT_MS = 20_000
"""Workers declare their handlers every 5 s. A handler not declared for this long counts as missing."""
_PAGE = 1_000


@dataclass(frozen=True)
class AbsentHandler:
    """A handler that no worker has now, although workers are running."""

    since: datetime | None
    """When a worker last declared it; None if it was retired."""
    waiting: int
    """The number of its waiting runs: ready, delayed, retried, or held for a paused store."""


class HandlerQueries:
    def __init__(self, client: Redis) -> None:
        self.client = client

    def absent(self) -> dict[str, AbsentHandler]:
        """Handlers that no worker has, although runs wait for them or events are still routed to them.

        Empty while no worker is running: then the workers are missing, not the handlers.
        """
        newest, known, now = self._read()
        present = _declared_since(newest, now - DECLARATION_SILENT_MS)
        if not present:
            return {}
        gone = known - present
        waiting = self.waiting(gone)
        routed = _declared_since(newest, now - DECLARATION_MS)
        return {
            name: AbsentHandler(from_ms(str(newest[name])) if name in newest else None, waiting[name])
            for name in sorted(gone)
            if waiting[name] or name in routed
        }

    def present(self) -> set[str]:
        """Handlers that at least one worker has now."""
        newest, _, now = self._read()
        return _declared_since(newest, now - DECLARATION_SILENT_MS) - {""}

    def running_versions(self) -> dict[str, set[str]]:
        """The versions of each handler that workers have now."""
        seen: Any = self.client.hgetall(keys.DECLARED_AT)
        oldest = int(self.client.time()[0]) * 1000 - DECLARATION_SILENT_MS
        running: dict[str, set[str]] = {}
        for name in (name.decode() for name, at in seen.items() if int(at) >= oldest):
            handler, _, version = name.rpartition("#")[0].partition("@")
            running.setdefault(handler, set()).add(version)
        return running

    def _read(self) -> tuple[dict[str, int], set[str], int]:
        """When each handler was last declared, all that have a declaration or a lane, and the server's time in ms."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.hgetall(keys.DECLARED_AT)
        pipeline.hkeys(keys.LANES)
        pipeline.hkeys(keys.DECLARATIONS)
        pipeline.time()
        seen, lanes, declared, (seconds, _) = pipeline.execute()
        return _newest(seen), {lane.decode() for lane in lanes} | set(map(_handler, declared)), seconds * 1000

    def waiting(self, handlers: Collection[str]) -> dict[str, int]:
        """The number of waiting runs of each handler. Running ones do not count."""
        found = {name: int(self.client.zcard(keys.READY + name)) for name in handlers}
        sets = [keys.LATER, *(keys.HELD + store for store in held_stores(self.client))] if found else []
        for item in (item for one in sets for item, _ in self.client.zscan_iter(one, count=_PAGE)):
            handler = keys.split_item(bytes(item).decode())[1]
            if handler in found:
                found[handler] += 1
        return found


def held_stores(client: Redis) -> list[str]:
    """Stores that may have held work: those that are paused, or being resumed."""
    paused: Any = client.smembers(keys.PAUSED)
    resuming: Any = client.smembers(keys.RESUMING)
    stores = {name.decode().removeprefix("store:") for name in paused if name.startswith(b"store:")}
    return sorted(stores | {store.decode() for store in resuming})


def _handler(name: bytes) -> str:
    return name.decode().partition("@")[0]


def _newest(seen: Mapping[bytes, bytes]) -> dict[str, int]:
    """When each handler was last declared, in any version. The empty name is any worker."""
    newest: dict[str, int] = {}
    for name, at in seen.items():
        handler = _handler(name)
        newest[handler] = max(newest.get(handler, 0), to_ms(at))
    return newest


def _declared_since(newest: Mapping[str, int], ms: int) -> set[str]:
    return {name for name, at in newest.items() if at >= ms}
