"""Roster: which handlers workers have now, and what waits for those that none has any more. Reading only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis import Redis

from receiver.inbox import keys
from receiver.inbox.model import DECLARATION_MS, from_ms

SILENT_MS = 20_000
"""Workers say every 5 s what they have. What none has named for so long, none has."""
_PAGE = 1_000


@dataclass(frozen=True)
class Absent:
    """A handler that workers had, and none has now, though some are there."""

    since: datetime | None
    """When a worker last had it; None where it was retired."""
    waiting: int
    """How many of its runs wait, whether ready, delayed, retried or of a paused store."""


class HandlerQueries:
    def __init__(self, client: Redis) -> None:
        self.client = client

    def absent(self) -> dict[str, Absent]:
        """Handlers that no worker has, while work waits for them or still is routed to them.

        None, while no worker at all is there: then it is the workers that are missing.
        """
        newest, known, now = self._look()
        there = _named_since(newest, now - SILENT_MS)
        if not there:
            return {}
        gone = known - there
        waiting = self.waiting(gone)
        routed = _named_since(newest, now - DECLARATION_MS)
        return {
            name: Absent(from_ms(str(newest[name])) if name in newest else None, waiting[name])
            for name in sorted(gone)
            if waiting[name] or name in routed
        }

    def present(self) -> set[str]:
        """Handlers that some worker has now."""
        newest, _, now = self._look()
        return _named_since(newest, now - SILENT_MS) - {""}

    def _look(self) -> tuple[dict[str, int], set[str], int]:
        """When each handler was last named, all that are declared or have a lane, and the server's time in ms: read in
        one moment."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.hgetall(keys.DECLARED_AT)
        pipeline.hkeys(keys.LANES)
        pipeline.hkeys(keys.DECLARATIONS)
        pipeline.time()
        seen, lanes, declared, (seconds, _) = pipeline.execute()
        return _newest(seen), {lane.decode() for lane in lanes} | set(map(_handler, declared)), seconds * 1000

    def waiting(self, handlers: Collection[str]) -> dict[str, int]:
        """How many runs of each handler wait; runs under way do not."""
        found = {name: int(self.client.zcard(keys.READY + name)) for name in handlers}
        sets = [keys.LATER, *(keys.HELD + store for store in held_stores(self.client))] if found else []
        for item in (item for one in sets for item, _ in self.client.zscan_iter(one, count=_PAGE)):
            handler = keys.split_item(bytes(item).decode())[1]
            if handler in found:
                found[handler] += 1
        return found


def held_stores(client: Redis) -> list[str]:
    """Stores of which work may be held: those that are paused, or coming back from a pause."""
    paused: Any = client.smembers(keys.PAUSED)
    resuming: Any = client.smembers(keys.RESUMING)
    stores = {name.decode().removeprefix("store:") for name in paused if name.startswith(b"store:")}
    return sorted(stores | {store.decode() for store in resuming})


def _handler(name: bytes) -> str:
    return name.decode().partition("@")[0]


def _newest(seen: Mapping[bytes, bytes]) -> dict[str, int]:
    """When each handler was last named, in whatever version; the empty name is any worker."""
    newest: dict[str, int] = {}
    for name, at in seen.items():
        handler = _handler(name)
        newest[handler] = max(newest.get(handler, 0), int(at))
    return newest


def _named_since(newest: Mapping[str, int], ms: int) -> set[str]:
    return {name for name, at in newest.items() if at >= ms}
