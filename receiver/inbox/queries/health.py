"""Health: live workers, the last event of each store, quarantined items, and memory use. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from receiver.contract.topics import PROBE
from receiver.inbox import keys
from receiver.inbox.leases import LEADS_FOR_MS
from receiver.inbox.model import FIRST_VERSION, from_ms, to_number
from receiver.inbox.queries.damage import as_text, read_numbers
from receiver.inbox.redis.connecting import ServerUser, server_ms
from receiver.inbox.rq_records import CHILD_PROCESSES, OUR_MARK, START_FAULT, WORKER_SECONDS

SAMPLE = 20
"""Number of events whose memory use is measured."""
EXAMPLES = 3
DAY = 86400.0


@dataclass(frozen=True)
class Heartbeat:
    """The last heartbeat of a live worker. Its record expires seconds after that."""

    name: str
    queues: tuple[str, ...]
    at: datetime
    """By the server's clock."""
    plugin_fault: str = ""
    """Why it cannot load a plugin any more."""
    faulty_plugins: tuple[str, ...] = ()
    child_processes: int = 0
    version: str = ""
    """The version of storehooks that it runs."""
    clock_ahead: float = 0.0
    """Seconds by which its clock is ahead of the server's."""
    start_fault: str = ""
    """Why it cannot start child processes now."""

    @property
    def host(self) -> str:
        """Its name is host-pid-random."""
        return self.name.rsplit("-", 2)[0]


@dataclass(frozen=True)
class Footprint:
    """The memory that an event takes in the server, in bytes, and how many arrive."""

    events: int
    lately: Mapping[str, int]
    """By store: the number of events in the last `seconds`."""
    seconds: float
    record: float
    """Its record and its entries in the indexes."""
    body: float
    once: float = 0.0
    """Its once marks."""


class HealthQueries(ServerUser):
    def workers(self) -> list[Heartbeat]:
        """Our workers that are alive. RQ workers of other programs may be in the same list."""
        found: Any = self.client.smembers(keys.rq_workers(keys.DEFAULT_QUEUE))
        names = sorted(map(as_text, found))
        pipeline = self.client.pipeline(transaction=False)
        pipeline.time()
        for name in names:
            pipeline.pttl(name)
            pipeline.hmget(name, "queues", "last_heartbeat", OUR_MARK, CHILD_PROCESSES, START_FAULT)
            pipeline.get(keys.PLUGIN_FAULT + name.removeprefix(keys.RQ_WORKER))
        (seconds, micros), *replies = pipeline.execute()
        now = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=micros)
        return [
            Heartbeat(
                name.removeprefix(keys.RQ_WORKER),
                tuple(map(keys.from_rq_queue, as_text(queues).split(","))),
                at := now - timedelta(seconds=age),
                as_text(fault or b"").partition("\n")[2],
                tuple(as_text(fault or b"").partition("\n")[0].split()),
                to_number(children),
                FIRST_VERSION if ours == b"1" else as_text(ours),
                (own - at).total_seconds(),
                as_text(start_fault or b""),
            )
            for name, ttl_ms, (queues, said, ours, children, start_fault), fault in zip(
                names, replies[::3], replies[1::3], replies[2::3], strict=True
            )
            if (own := _moment(said)) and queues and ours and abs(age := _age(ttl_ms, own, now)) <= WORKER_SECONDS
        ]

    def other_workers(self) -> list[str]:
        """The names of other programs' live RQ workers that listen on our queues."""
        queues: Any = self.client.hvals(keys.LANES)
        pipeline = self.client.pipeline(transaction=False)
        for queue in {keys.DEFAULT_QUEUE, *map(as_text, queues)}:
            pipeline.smembers(keys.rq_workers(queue))
        found = set().union(*pipeline.execute())
        for name in found:
            pipeline.hmget(name, "queues", OUR_MARK)
        replies = zip(found, pipeline.execute(), strict=True)
        others = [as_text(name) for name, (queues, ours) in replies if queues and not ours]
        return sorted(name.removeprefix(keys.RQ_WORKER) for name in others)

    def housekeeper(self) -> str:
        """The housekeeper that leads now; empty if there is none."""
        pipeline = self.client.pipeline(transaction=False)
        pipeline.get(keys.LEADER)
        pipeline.pttl(keys.LEADER)
        found, ttl_ms = pipeline.execute()
        # Longer than it is written for: the clock was set back, and it may be dead.
        return as_text(found) if found and ttl_ms <= LEADS_FOR_MS else ""

    def last_events(self, stores: Iterable[str]) -> dict[str, datetime]:
        """When each store last sent an event. Our own probes do not count."""
        names = list(stores)
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(keys.EVENT_NAMES + name)
        last = {
            name: _last(read_numbers(self.client, keys.EVENT_NAMES + name, fields))
            for name, fields in zip(names, pipeline.execute(), strict=True)
        }
        return {name: from_ms(at) for name, at in last.items() if at}

    def quarantined(self) -> tuple[int, list[str]]:
        """The number of quarantined items, and some of them with the reason."""
        found: Any = self.client.hscan(keys.QUARANTINED, count=EXAMPLES)[1]
        items = [f"{as_text(item)}: {as_text(why)}" for item, why in found.items()]
        return int(self.client.hlen(keys.QUARANTINED)), items[:EXAMPLES]

    def footprint(self, stores: Iterable[str], *, recent: float = DAY) -> Footprint:
        """Measured on some of the events of the last day, or of another time (s), evenly spread."""
        now, names, recent_us = int(server_ms(self.client) * 1000), list(stores), recent * 1e6
        pipeline = self.client.pipeline(transaction=False)
        pipeline.zcard(keys.INDEX)
        pipeline.zrange(keys.INDEX, 0, 0, withscores=True)
        for name in names:
            pipeline.zcount(keys.index_of(name), now - recent_us, "+inf")
        events, oldest, *counts = pipeline.execute()
        ids = self._spread(events, sum(counts))
        span = min(now - oldest[0][1], recent_us) if oldest else 0
        records, bodies, marks = (self._memory_of(prefix, ids) for prefix in (keys.EVENT, keys.BODY, keys.ONCE))
        indexes = ([keys.INDEX], map(keys.index_of, names), [keys.DONE])
        return Footprint(
            events,
            dict(zip(names, counts, strict=True)),
            span / 1e6,
            record=_mean(records) + sum(map(self._entry_size, indexes)),
            body=_mean([size for size in bodies if size]),  # it may have been removed by age
            once=_mean(marks),
        )

    def _spread(self, events: int, lately: int) -> list[bytes]:
        """The ids of some of the last events."""
        pipeline = self.client.pipeline(transaction=False)
        for rank in {events - 1 - at * lately // SAMPLE for at in range(min(SAMPLE, lately))}:
            pipeline.zrange(keys.INDEX, rank, rank)
        return [ids[0] for ids in pipeline.execute() if ids]

    def _memory_of(self, prefix: str, ids: Iterable[bytes]) -> list[int]:
        """The bytes of each of these keys; 0 for one that does not exist."""
        pipeline = self.client.pipeline(transaction=False)
        for event_id in ids:
            pipeline.memory_usage(prefix + event_id.decode())
        return [size or 0 for size in pipeline.execute()]

    def _entry_size(self, indexes: Iterable[str]) -> float:
        """Bytes of one entry in these sorted sets. An empty one is left out."""
        pipeline = self.client.pipeline(transaction=False)
        for name in indexes:
            pipeline.memory_usage(name)
            pipeline.zcard(name)
        found: list[int | None] = pipeline.execute()
        return sum(size or 0 for size in found[::2]) / max(1, sum(count or 0 for count in found[1::2]))


def _mean(sizes: Sequence[int]) -> float:
    return sum(sizes) / max(1, len(sizes))


def _last(fields: Mapping[str, int]) -> int:
    times = (at for name, at in fields.items() if name.startswith("l:") and name != f"l:{PROBE}")
    return max(times, default=0)


def _age(ttl_ms: int, own: datetime, now: datetime) -> float:
    """Seconds since a heartbeat, by the server's clock: it ends the record, and the worker's may be wrong.

    With a longer time to live the server's clock was set back. Then only the worker's says whether it may be dead.
    """
    age = WORKER_SECONDS - ttl_ms / 1000
    return age if age >= 0 else (now - own).total_seconds()


def _moment(text: bytes | None) -> datetime | None:
    """A time as RQ writes it: in UTC, with or without a fraction and a Z. None if it is missing or damaged."""
    try:
        return datetime.fromisoformat(as_text(text or b"")).replace(tzinfo=UTC)
    except ValueError:
        return None
