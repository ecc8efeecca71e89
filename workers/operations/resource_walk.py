"""Resource walk: the events of one resource, such as an order, from the newest to the oldest, in both places."""

from __future__ import annotations

from collections.abc import Iterator

from redis import Redis

from receiver.contract.event import Event
from receiver.inbox.model import to_number
from receiver.inbox.queries.event_pages import EventPages
from workers.history.event_filter import EventFilter
from workers.history.past_events import HistoryDatabase, PastEvent, Position


def kind_of_resource(event: Event) -> str:
    return event.topic.partition(".")[0]


class ResourceWalk:
    """From one event of a resource to the next earlier one, in both places.

    Each record says when the one before was accepted. That is not known once the newest event has left Redis before the
    next one came: then the history is searched.
    """

    def __init__(self, client: Redis, history: HistoryDatabase | None, store: str, kind: str, resource_id: str) -> None:
        self._pages, self._history = EventPages(client, content=True), history
        self._resource = (store, kind, resource_id)

    def begin(self, before: Position, accepted: int | None) -> Iterator[PastEvent]:
        one = self._at(accepted) if accepted else None
        one = one or self._search(before)
        if one is not None:
            yield one
            yield from self.before(one)

    def before(self, one: PastEvent) -> Iterator[PastEvent]:
        accepted = to_number(one.fields.get(b"earlier"))
        yield from self.begin(one.position, accepted if 0 < accepted < one.accepted_at else None)

    def _at(self, accepted: int) -> PastEvent | None:
        if found := self._pages.accepted_at(accepted):
            return self._if_its_own(PastEvent(*found))
        return self._search(Position(accepted + 1, ""), since=accepted)

    def _search(self, before: Position, since: int = 0) -> PastEvent | None:
        if self._history is None:
            return None
        store, kind, resource_id = self._resource
        wanted = EventFilter(store=store, topic=f"{kind}*", resource_id=resource_id, since=since)
        found = self._history.find(wanted, before=before, limit=1, seconds=1.0, content=True).events
        return self._if_its_own(found[0]) if found else None

    def _if_its_own(self, one: PastEvent) -> PastEvent | None:
        """Two resources may have the same digest."""
        event = one.event
        return one if (event.store, kind_of_resource(event), event.resource_id) == self._resource else None
