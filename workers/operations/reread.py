"""Reread: reads events again that could not be read when they arrived, with the schemes of the current config.

Signatures are not verified again: they were valid on arrival. A reread can be repeated, and killed at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from receiver.config import Config
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import Event
from receiver.contract.intake import Delivery, read_delivery
from receiver.contract.stores import Store
from receiver.inbox import Administration, EventQueries
from receiver.inbox.administration import RereadResult
from receiver.inbox.queries.damage import DamagedRecord

EVENTS_AT_ONCE = 50


class Rereader:
    """Reads events again. With `dry_run` nothing is changed. Without a store, those of all stores."""

    def __init__(self, config: Config, queries: EventQueries, *, store: str | None, dry_run: bool) -> None:
        self._stores = config.known_stores
        self._window = config.receiver.dedupe_window_unidentified
        self._queries = queries
        self._administration = Administration(queries.client)
        self._store = store
        self._dry_run = dry_run
        self.counts: Counter[RereadResult] = Counter()
        self.reasons: Counter[str] = Counter()
        """Why events are still unreadable, and how many of them."""

    def read(self, event_ids: Iterable[str], progress: Callable[[int], object] = lambda _: None) -> None:
        page: list[tuple[str, Delivery]] = []
        for event_id in event_ids:
            progress(1)
            try:
                event = self._queries.as_event(event_id)
            except DamagedRecord:
                self.counts[RereadResult.DAMAGED] += 1
                continue
            if event is None:
                self.counts[RereadResult.NO_BODY] += 1
            elif self._store in (None, event.store):
                page.append((event_id, _read_again(event, self._stores.get(event.store))))
            if len(page) >= EVENTS_AT_ONCE:
                self._store_page(page)
                page = []
        if page:
            self._store_page(page)

    def _store_page(self, page: list[tuple[str, Delivery]]) -> None:
        if self._dry_run:
            results = [RereadResult.UNREADABLE if one.unreadable else RereadResult.READ for _, one in page]
        else:
            results = self._administration.reread(page, repeat_window=self._window)
        self.counts.update(results)
        self.reasons.update(
            one.unreadable for (_, one), result in zip(page, results, strict=True) if result is RereadResult.UNREADABLE
        )


def _read_again(event: Event, store: Store | None) -> Delivery:
    """The delivery as the current config reads it; with a reason if it cannot be read."""
    if store is None:
        return Delivery(event, theirs="", unreadable="its store is not in the config")
    arrived = event.received_at.timestamp()
    try:
        return read_delivery(event.headers, event.body, store=store, now=arrived, source=event.source)
    except DeliveryRefused as error:
        return Delivery(event, theirs="", unreadable=str(error))
