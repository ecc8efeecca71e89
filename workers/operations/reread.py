"""Reread: reads events again that could not be read when they arrived, by the schemes of the current config.

Signatures are not verified again: they were valid on arrival. A reread can be repeated, and killed at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from receiver.config import Config
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import Event
from receiver.contract.intake import Delivery, read_delivery
from receiver.contract.stores import Store
from receiver.inbox import Administration, EventQueries
from receiver.inbox.administration import RereadResult

PAGE = 50


@dataclass
class Reread:
    """The results of a reread."""

    read: int = 0
    duplicates: int = 0
    """Delivered again and accepted meanwhile; settled."""
    no_body: int = 0
    """Their body was removed by age."""
    not_unreadable: int = 0
    """They are not, or no longer, events that could not be read."""
    still_unreadable: Counter[str] = field(default_factory=Counter)
    """By reason. They stay failures."""

    def add(self, result: RereadResult, reason: str = "") -> None:
        match result:
            case RereadResult.READ:
                self.read += 1
            case RereadResult.DUPLICATE:
                self.duplicates += 1
            case RereadResult.NO_BODY:
                self.no_body += 1
            case RereadResult.NOT_UNREADABLE:
                self.not_unreadable += 1
            case RereadResult.UNREADABLE:
                self.still_unreadable[reason] += 1


class Rereader:
    """Reads events again. With `dry_run` nothing is changed. Without a store, those of all stores."""

    def __init__(self, config: Config, queries: EventQueries, *, store: str | None, dry_run: bool) -> None:
        self._stores = config.known_stores
        self._window = config.receiver.dedupe_window_unidentified
        self._queries = queries
        self._administration = Administration(queries.client)
        self._store = store
        self._dry_run = dry_run
        self.result = Reread()

    def read(self, event_ids: Iterable[str], progress: Callable[[int], object] = lambda _: None) -> None:
        page: list[tuple[str, Delivery]] = []
        for event_id in event_ids:
            progress(1)
            event = self._queries.as_event(event_id)
            if event is None:
                self.result.add(RereadResult.NO_BODY)
            elif self._store in (None, event.store):
                page.append((event_id, _read_again(event, self._stores.get(event.store))))
            if len(page) >= PAGE:
                self._store_page(page)
                page = []
        if page:
            self._store_page(page)

    def _store_page(self, page: list[tuple[str, Delivery]]) -> None:
        if self._dry_run:
            results = [RereadResult.UNREADABLE if one.unreadable else RereadResult.READ for _, one in page]
        else:
            results = self._administration.reread(page, repeat_window=self._window)
        for (_, delivery), result in zip(page, results, strict=True):
            self.result.add(result, delivery.unreadable)


def _read_again(event: Event, store: Store | None) -> Delivery:
    """The delivery as it would be accepted today; with a reason if it cannot be read."""
    if store is None:
        return Delivery(event, theirs="", unreadable="its store is not in the config")
    arrived = event.received_at.timestamp()
    try:
        return read_delivery(event.headers, event.body, store=store, now=arrived, source=event.source)
    except DeliveryRefused as error:
        return Delivery(event, theirs="", unreadable=str(error))
