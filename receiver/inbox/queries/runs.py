"""Runs of an event, from which a replay chooses, and members of sorted sets in order. Only reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from redis import Redis

from receiver.inbox import keys
from receiver.inbox.model import from_ms, read_detail
from receiver.inbox.queries.damage import DamagedRecord, as_text, read_each
from receiver.inbox.redis.connecting import ServerUser, server_ms

_PAGE = 200


@dataclass(frozen=True)
class PastRun:
    state: str
    detail: bytes = b"{}"
    """The result of the last attempt, as JSON."""
    in_failure_group: bool = False

    @property
    def version(self) -> str | None:
        """The handler's version at the last attempt."""
        version: str | None = read_detail(self.detail).get("version")
        return version


@dataclass(frozen=True)
class EventRuns:
    """An event's store, topic and runs by handler; "" is the event before routing."""

    id: str
    store: str
    topic: str
    runs: Mapping[str, PastRun]
    accepted: str = ""
    """Its time of acceptance, as in the index. No two events have the same."""

    def item(self, handler: str) -> str:
        return keys.run_item(self.id, handler)

    def failures(self) -> list[str]:
        """The runs whose last attempt failed, retrying or given up."""
        return [self.item(handler) for handler, run in sorted(self.runs.items()) if run.in_failure_group]


@dataclass(frozen=True)
class FailedAttempt:
    """One of the last failed attempts of a run."""

    ended_at: datetime
    ms: float
    version: str
    error: str


class RunQueries(ServerUser):
    def of_event(self, event_id: str) -> EventRuns | None:
        """One event's runs. Raises DamagedRecord."""
        pipeline = self.client.pipeline(transaction=False)
        pipeline.hgetall(keys.EVENT + event_id)
        (fields,) = read_each(pipeline)
        if fields is None:
            raise DamagedRecord(event_id)
        return event_runs(event_id, fields) if fields and b"moved" not in fields else None


def page_after(
    client: Redis, index: str, start: float | str, end: float | str, last: str = "", *, many: int = _PAGE
) -> list[tuple[str, float]]:
    """Members of a sorted set with their times, from `start` on; of those at `start` itself, only those after `last`.

    So the last of a page is the position of the next one, whatever joins or leaves the set meanwhile.
    """
    offset = 0
    while True:
        found: Any = client.zrange(index, start, end, byscore=True, offset=offset, num=many + 1, withscores=True)
        page = [(as_text(member), score) for member, score in found]
        fresh = [one for one in page if one[1] != start or one[0] > last]
        # Beyond the beginning, the page begins with one that is not fresh. Else some have left, and it begins too late.
        if (not offset or page[: len(page) - len(fresh)]) and (fresh or len(page) <= many):
            return fresh[:many]
        offset = _last_read(client, index, start, last)


def _last_read(client: Redis, index: str, start: float | str, last: str) -> int:
    """Where among the members of one millisecond the last one is that is not after `last`. They may be very many."""
    high: Any = client.zcount(index, start, start)
    low = 0
    while low < high:
        middle = (low + high) // 2
        found: Any = client.zrange(index, start, start, byscore=True, offset=middle, num=1)
        if found and as_text(found[0]) <= last:
            low = middle + 1
        else:
            high = middle
    return max(0, low - 1)


def members(client: Redis, index: str, *, until: float | None = None) -> Iterator[str]:
    """The members that a sorted set has now, in order of their times in ms; without those between `until` and now.

    They are read a page at a time; those that join or leave meanwhile shift no others. Times ahead of the server's are
    from before its clock was set back. Their members are read first: a run that fails again gets an earlier time.
    """
    now = server_ms(client)
    ahead: Any = client.zrange(index, f"({now}", "+inf", byscore=True)
    start: float | str = "-inf"
    last = ""
    while page := page_after(client, index, start, now if until is None else min(now, until), last):
        last, start = page[-1]
        yield from (member for member, _ in page)
    yield from map(as_text, ahead)


def event_runs(event_id: str, fields: Mapping[bytes, bytes], accepted: str = "") -> EventRuns:
    """An event's runs from its record."""
    runs = {
        name[2:].decode(): PastRun(
            state=value.decode().split(" ")[0],
            detail=fields.get(b"x:" + name[2:], b"{}"),
            in_failure_group=b"g:" + name[2:] in fields,
        )
        for name, value in fields.items()
        if name.startswith(b"r:")
    }
    store, topic = (fields.get(name, b"").decode("utf-8", "replace") for name in (b"store", b"topic"))
    return EventRuns(event_id, store, topic, runs, accepted)


def failed_attempts(text: bytes) -> Iterator[FailedAttempt]:
    """The failed attempts in a run's field. Those that are damaged are left out."""
    for line in text.decode("utf-8", "replace").splitlines():
        with suppress(ValueError, TypeError):  # damaged
            at, ms, version, error = orjson.loads(line)
            yield FailedAttempt(from_ms(at), ms, version, error)
