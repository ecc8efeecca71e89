"""Event pages: events with their whole records, in order of acceptance, a page at a time. Only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from redis import Redis

from receiver.inbox import keys
from receiver.inbox.model import resource_digest, to_number
from receiver.inbox.outcomes import EventStatus
from receiver.inbox.queries.cursors import MAX_SCANNED_BYTES
from receiver.inbox.queries.damage import DAMAGED, as_text, read_each
from receiver.inbox.redis.connecting import server_ms

PAGE = 200


class WholeEvent(NamedTuple):
    """All that Redis has of an event; see `keys`."""

    id: str
    accepted_at: int
    """Its score in `ix` (us): the order of all events."""
    settled_at: int
    """Its score in `done` (ms); 0 if it was not read."""
    fields: Mapping[bytes, bytes]
    content: bytes | None
    """Headers and body. None if they were removed by age, or not read."""
    once: Mapping[bytes, bytes]


class EventPage(NamedTuple):
    events: list[WholeEvent]
    last: int | None
    """The time of acceptance of its last event, after which the next page begins. None at the end."""
    examined: int
    """The number of events with those that were left out."""
    size: int
    """Bytes of headers and bodies."""


def open_since(client: Redis) -> int:
    """A time (us) before which no open event was accepted; the housekeeper moves it on every second."""
    pipeline = client.pipeline(transaction=False)
    pipeline.get(keys.OPEN_SINCE)
    return to_number(read_each(pipeline)[0])


def oldest_open_age(client: Redis) -> float:
    """The age (s) of the oldest open event; 0 if none is open. Too high if no housekeeper works."""
    found: Any = client.zrange(
        keys.INDEX, open_since(client), "+inf", byscore=True, offset=0, num=PAGE, withscores=True
    )
    pipeline = client.pipeline(transaction=False)
    for event_id, _ in found:
        pipeline.hget(keys.EVENT + as_text(event_id), "state")
    states = read_each(pipeline)
    accepted = next((at for (_, at), state in zip(found, states, strict=True) if state == EventStatus.OPEN.encode()), 0)
    if not accepted and len(found) == PAGE:
        accepted = found[-1][1]  # no open event is older
    return max(0.0, server_ms(client) / 1000 - accepted / 1e6) if accepted else 0.0


def newest_of_resource(client: Redis, *, store: str, kind: str, resource_id: str) -> int | None:
    """When the newest event of a resource was accepted (us). The event may have been removed since."""
    pipeline = client.pipeline(transaction=False)
    pipeline.hget(keys.RESOURCES, resource_digest(store, kind, resource_id))
    return to_number(read_each(pipeline)[0]) or None


class EventPages:
    """Events of one store, or of all. Each page begins after the last event of the one before, so that none is missed
    or returned twice, whatever is accepted or removed meanwhile."""

    def __init__(self, client: Redis, *, store: str = "", content: bool = False) -> None:
        self._client, self._content = client, content
        self._index = keys.index_of(store) if store else keys.INDEX

    def newest(self, *, before: int, since: int, many: int = PAGE, size: int = MAX_SCANNED_BYTES) -> EventPage:
        """The newest events accepted before one time, and not before another (us). A page ends with the event whose
        body exceeds `size`."""
        return self._page(f"({before}", since, desc=True, many=many, size=size)

    def oldest(self, *, since: int, until: int | str) -> EventPage:
        """The oldest events accepted since one time, and until another."""
        return self._page(since, until, desc=False, many=PAGE, size=MAX_SCANNED_BYTES)

    def accepted_at(self, time: int) -> WholeEvent | None:
        """The event that was accepted at a time (us), if Redis has it."""
        return next(iter(self.at([time])), None)

    def at(self, times: Sequence[int]) -> list[WholeEvent]:
        """The events that were accepted at these times (us), as far as Redis has them."""
        pipeline = self._client.pipeline(transaction=False)
        for time in times:
            pipeline.zrange(self._index, time, time, byscore=True)
        replies = zip(times, read_each(pipeline), strict=True)
        page = [(as_text(event_id), time) for time, found in replies for event_id in found or ()]
        return self._read(page, self._contents(page))

    def of(self, accepted: Mapping[str, int]) -> dict[str, WholeEvent]:
        """Those of the events, given by id and time of acceptance, that Redis has."""
        if not accepted:
            return {}
        pipeline = self._client.pipeline(transaction=False)
        for event_id in accepted:
            pipeline.zscore(keys.INDEX, event_id)
        scores = zip(accepted.items(), pipeline.execute(), strict=True)
        found = [pair for pair, score in scores if score == pair[1]]
        return {one.id: one for one in self._read(found, self._contents(found))}

    def _page(self, start: int | str, end: int | str, *, desc: bool, many: int, size: int) -> EventPage:
        found: Any = self._client.zrange(
            self._index, start, end, desc=desc, byscore=True, offset=0, num=many, withscores=True
        )
        page = [(as_text(event_id), int(accepted_at)) for event_id, accepted_at in found]
        fitting = page[: self._fitting(page, size)] if self._content else page
        contents = self._contents(fitting)
        is_last = len(page) < many and fitting == page
        return EventPage(
            self._read(fitting, contents),
            None if is_last else fitting[-1][1],
            len(fitting),
            sum(len(one or b"") for one in contents),
        )

    def _fitting(self, page: Sequence[tuple[str, int]], size: int) -> int:
        """How many events are read until their headers and bodies exceed a size."""
        pipeline = self._client.pipeline(transaction=False)
        for event_id, _ in page:
            pipeline.strlen(keys.BODY + event_id)
        sums = accumulate(length or 0 for length in read_each(pipeline))
        return next((number for number, total in enumerate(sums, 1) if total > size), len(page))

    def _contents(self, page: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """Headers and body of each event, if they are wanted."""
        if not self._content or not page:
            return [None] * len(page)
        contents: Any = self._client.mget([keys.BODY + event_id for event_id, _ in page])
        return list(contents)

    def _read(self, page: Sequence[tuple[str, int]], contents: Sequence[bytes | None]) -> list[WholeEvent]:
        """Marks of past events are left out, and events that are removed meanwhile."""
        pipeline = self._client.pipeline(transaction=False)
        for event_id, _ in page:
            pipeline.hgetall(keys.EVENT + event_id)
        return [
            WholeEvent(*one, 0, {b"state": DAMAGED.encode()} if fields is None else fields, content, {})
            for one, fields, content in zip(page, read_each(pipeline), contents, strict=True)
            if fields is None or (fields and b"moved" not in fields)
        ]
