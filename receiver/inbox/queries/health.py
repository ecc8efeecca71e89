"""Health: live workers, the last event of each store, quarantined items, and memory use. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from redis import Redis

from receiver.contract.topics import PROBE
from receiver.inbox import keys
from receiver.inbox.model import from_ms

SAMPLE = 20
"""Number of the newest events whose memory use is measured."""
EXAMPLES = 3
DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class Heartbeat:
    """The last heartbeat of a live worker. Its record expires seconds after that."""

    name: str
    queues: tuple[str, ...]
    at: datetime


@dataclass(frozen=True)
class Footprint:
    """The memory that events take in the server, measured on the newest ones, and their rate of arrival."""

    events: int
    lately: int
    """Number of events in the last `seconds`."""
    seconds: float
    record: float
    body: float


class HealthQueries:
    def __init__(self, client: Redis) -> None:
        self.client = client

    def workers(self) -> list[Heartbeat]:
        found: Any = self.client.smembers(keys.RQ_WORKERS)
        names = sorted(name.decode() for name in found)
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.hmget(name, "queues", "last_heartbeat")
        return [
            Heartbeat(
                name.removeprefix(keys.RQ_WORKER),
                tuple(map(keys.from_rq_queue, queues.decode().split(","))),
                _moment(at),
            )
            for name, (queues, at) in zip(names, pipeline.execute(), strict=True)
            if at and queues
        ]

    def housekeeper(self) -> str:
        """The housekeeper that leads now; empty if there is none."""
        found: Any = self.client.get(keys.LEADER)
        return found.decode() if found else ""

    def last_events(self, stores: Iterable[str]) -> dict[str, datetime]:
        """When each store last sent an event. Our own probes do not count."""
        names = list(stores)
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(keys.EVENT_NAMES + name)
        last = {name: _last(fields) for name, fields in zip(names, pipeline.execute(), strict=True)}
        return {name: from_ms(str(at)) for name, at in last.items() if at}

    def quarantined(self) -> tuple[int, list[str]]:
        """The number of quarantined items, and some of them with the reason."""
        found: Any = self.client.hscan(keys.QUARANTINED, count=EXAMPLES)[1]
        items = [f"{item.decode('utf-8', 'replace')}: {why.decode('utf-8', 'replace')}" for item, why in found.items()]
        return int(self.client.hlen(keys.QUARANTINED)), items[:EXAMPLES]

    def footprint(self) -> Footprint:
        now = self._now()
        pipeline = self.client.pipeline(transaction=False)
        pipeline.zcard(keys.INDEX)
        pipeline.zcount(keys.INDEX, now - DAY_MS, "+inf")
        pipeline.zrange(keys.INDEX, 0, 0, withscores=True)
        pipeline.zrange(keys.INDEX, 0, SAMPLE - 1, desc=True)
        events, lately, oldest, newest = pipeline.execute()
        span = min(now - oldest[0][1], DAY_MS) if oldest else 0
        records, bodies = self._memory_of(newest)
        measured = max(1, len(newest))
        return Footprint(events, lately, span / 1000, records / measured, bodies / measured)

    def _memory_of(self, ids: Iterable[bytes]) -> tuple[int, int]:
        pipeline = self.client.pipeline(transaction=False)
        for event_id in ids:
            pipeline.memory_usage(keys.EVENT + event_id.decode())
            pipeline.memory_usage(keys.BODY + event_id.decode())
        sizes = [size or 0 for size in pipeline.execute()]
        return sum(sizes[::2]), sum(sizes[1::2])

    def _now(self) -> float:
        seconds, micros = self.client.time()
        return float(seconds * 1000 + micros / 1000)


def _last(fields: Mapping[bytes, bytes]) -> int:
    times = (int(at) for name, at in fields.items() if name.startswith(b"l:") and name != b"l:" + PROBE.encode())
    return max(times, default=0)


def _moment(text: bytes) -> datetime:
    """A time as RQ writes it: in UTC, with or without a fraction and a Z."""
    return datetime.fromisoformat(text.decode()).replace(tzinfo=UTC)
