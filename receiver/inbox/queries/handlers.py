"""Handlers: which ones workers have now, what closes them, and how many runs wait for those that no worker has. Only
reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import Any, NamedTuple

from redis import Redis

from receiver.inbox import keys
from receiver.inbox.model import DECLARATION_MS, from_ms, to_number
from receiver.inbox.queries.cursors import MAX_SCANNED
from receiver.inbox.queries.damage import as_text, read_each, read_numbers
from receiver.inbox.queries.health import HealthQueries
from receiver.inbox.redis.connecting import ServerUser, server_ms

DECLARATION_SILENT_MS = 20_000
"""Workers declare their handlers every 5 s. A handler not declared for this long counts as missing."""
_PAGE = 1_000


@dataclass(frozen=True)
class AbsentHandler:
    """A handler that no worker has now, although workers are running."""

    since: datetime | None
    """When a worker last declared it; None if it was retired."""
    waiting: int
    """The number of its waiting runs: ready, delayed, retried, queued, or held for a paused store."""
    or_more: bool = False
    """Whether there may be more: of all delayed, retried, queued and held runs only some were looked at."""


class WaitingRunCount(NamedTuple):
    runs: int
    or_more: bool = False
    """As above."""


class HandlerQueries(ServerUser):
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
            name: AbsentHandler(from_ms(newest[name]) if name in newest else None, *waiting[name])
            for name in sorted(gone)
            if waiting[name].runs or name in routed
        }

    def busy_limits(self) -> dict[str, datetime]:
        """Limits, or h:HANDLER, for which a handler raised Busy, and until when."""
        found: Any = self.client.hgetall(keys.BUSY)
        now = server_ms(self.client)
        until = {as_text(name): to_number(value.partition(b" ")[0]) for name, value in found.items()}
        return {name: from_ms(ms) for name, ms in until.items() if ms > now}

    def slots_taken(self, limit: str) -> int:
        return int(self.client.hlen(keys.SLOTS + limit))

    def present(self) -> set[str]:
        """Handlers that at least one worker has now."""
        newest, _, now = self._read()
        return _declared_since(newest, now - DECLARATION_SILENT_MS) - {""}

    def running_versions(self) -> dict[str, Counter[str]]:
        """The versions of each handler that live workers have now, each with the number of workers."""
        alive = {one.name for one in HealthQueries(self.client).workers()}
        found: Any = self.client.hgetall(keys.DECLARED_BY)
        running: dict[str, Counter[str]] = {}
        for worker, text in found.items():
            if as_text(worker).partition("|")[0] in alive:
                for name in as_text(text).splitlines()[1:]:
                    handler, _, version = name.rpartition("#")[0].partition("@")
                    running.setdefault(handler, Counter())[version] += 1
        return running

    def versions(self, handlers: Collection[str], *, since: datetime | None = None) -> dict[str, dict[str, datetime]]:
        """When the last versions of each handler were first declared, the oldest first."""
        start = since.timestamp() * 1000 if since else "-inf"
        pipeline = self.client.pipeline(transaction=False)
        for name in handlers:
            pipeline.zrange(keys.VERSIONS + name, start, "+inf", byscore=True, withscores=True)
        replies = zip(handlers, read_each(pipeline), strict=True)
        return {name: {as_text(version): from_ms(at) for version, at in found or ()} for name, found in replies}

    def _declared_at(self) -> dict[str, int]:
        seen: Any = self.client.hgetall(keys.DECLARED_AT)
        return read_numbers(self.client, keys.DECLARED_AT, seen)

    def _read(self) -> tuple[dict[str, int], set[str], float]:
        """When each handler was last declared, all that have a declaration or a lane, and the server's time in ms."""
        lanes: Any = self.client.hkeys(keys.LANES)
        declared: Any = self.client.hkeys(keys.DECLARATIONS)
        known = {*map(as_text, lanes), *(_handler(as_text(name)) for name in declared)}
        return _newest(self._declared_at()), known, server_ms(self.client)

    def waiting(self, handlers: Collection[str]) -> dict[str, WaitingRunCount]:
        """The number of waiting runs of each handler. Running ones do not count.

        Ready ones are counted exactly. No index tells whose the others are, so at most MAX_SCANNED of them are read.
        """
        found = {name: int(self.client.zcard(keys.READY + name)) for name in handlers}
        sets = [keys.LATER, *(keys.HELD + store for store in held_stores(self.client))] if found else []
        items = chain.from_iterable(self.client.zscan_iter(one, count=_PAGE) for one in sets)
        for item, _ in islice(items, MAX_SCANNED):
            handler = keys.split_item(as_text(item))[1]
            if handler in found:
                found[handler] += 1
        or_more = next(items, None) is not None
        return {name: self._with_queued(name, WaitingRunCount(runs, or_more)) for name, runs in found.items()}

    def _with_queued(self, handler: str, others: WaitingRunCount) -> WaitingRunCount:
        """With the number of ordered runs that wait for others of their key."""
        pipeline = self.client.pipeline(transaction=False)
        order = self.client.hscan_iter(keys.ORDER + handler, count=_PAGE)
        for key, _ in islice(order, MAX_SCANNED):
            pipeline.zcard(keys.QUEUED.encode() + handler.encode() + b":" + key)
        or_more = others.or_more or next(order, None) is not None
        return WaitingRunCount(others.runs + sum(pipeline.execute()), or_more)


def held_stores(client: Redis) -> list[str]:
    """Stores that may have held work: those that are paused, or being resumed."""
    paused: Any = client.smembers(keys.PAUSED)
    resuming: Any = client.smembers(keys.RESUMING)
    stores = {as_text(name).removeprefix("store:") for name in paused if name.startswith(b"store:")}
    return sorted(stores.union(map(as_text, resuming)))


def _handler(name: str) -> str:
    return name.partition("@")[0]


def _newest(seen: Mapping[str, int]) -> dict[str, int]:
    """When each handler was last declared, in any version. The empty name is any worker."""
    newest: dict[str, int] = {}
    for name, at in seen.items():
        handler = _handler(name)
        newest[handler] = max(newest.get(handler, 0), at)
    return newest


def _declared_since(newest: Mapping[str, int], ms: float) -> set[str]:
    return {name for name, at in newest.items() if at >= ms}
