"""Event pages: events with their whole records, in order of acceptance, a page at a time. Only reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from redis import Redis

from receiver.inbox import keys
from receiver.inbox.queries.damage import DAMAGED, as_text, read_each

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


class EventPages:
    """Events of one store, or of all. Each page begins after the last event of the one before, so that none is missed
    or returned twice, whatever is accepted or removed meanwhile."""

    def __init__(self, client: Redis, *, store: str = "", content: bool = False) -> None:
        self._client, self._content = client, content
        self._index = keys.index_of(store) if store else keys.INDEX

    def newest(self, *, before: int, since: int) -> EventPage:
        """The newest events accepted before one time, and not before another (us)."""
        return self._page(f"({before}", since, desc=True)

    def oldest(self, *, since: int, until: int) -> EventPage:
        """The oldest events accepted since one time, and until another."""
        return self._page(since, until, desc=False)

    def of(self, accepted: Mapping[str, int]) -> dict[str, WholeEvent]:
        """Those of the events, given by id and time of acceptance, that Redis has."""
        pipeline = self._client.pipeline(transaction=False)
        for event_id in accepted:
            pipeline.zscore(keys.INDEX, event_id)
        scores = zip(accepted.items(), pipeline.execute(), strict=True)
        return {one.id: one for one in self._read([pair for pair, score in scores if score == pair[1]])}

    def _page(self, start: int | str, end: int, *, desc: bool) -> EventPage:
        found: Any = self._client.zrange(
            self._index, start, end, desc=desc, byscore=True, offset=0, num=PAGE, withscores=True
        )
        page = [(as_text(event_id), int(accepted_at)) for event_id, accepted_at in found]
        return EventPage(self._read(page), page[-1][1] if len(page) == PAGE else None)

    def _read(self, page: Sequence[tuple[str, int]]) -> list[WholeEvent]:
        """Marks of past events are left out, and events that are removed meanwhile."""
        pipeline = self._client.pipeline(transaction=False)
        for event_id, _ in page:
            pipeline.hgetall(keys.EVENT + event_id)
            if self._content:
                pipeline.get(keys.BODY + event_id)
        replies = read_each(pipeline)
        records: Iterable[Any] = replies[::2] if self._content else replies
        contents: Iterable[Any] = replies[1::2] if self._content else [None] * len(page)
        return [
            WholeEvent(*one, 0, {b"state": DAMAGED.encode()} if fields is None else fields, content, {})
            for one, fields, content in zip(page, records, contents, strict=True)
            if fields is None or (fields and b"moved" not in fields)
        ]
