"""Reread: reads events again that could not be read when they arrived, with the schemes of the current config.

Signatures are not verified again: they were valid on arrival. A reread can be repeated, and killed at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from redis import Redis

from receiver.config import Config
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import REDACTED, UNREADABLE, Event, event_id
from receiver.contract.intake import Delivery, NoEvents, read_again
from receiver.contract.stored_headers import ITEM
from receiver.contract.stores import Store
from receiver.inbox import Administration, EventQueries, Inbox, keys
from receiver.inbox.administration import RereadResult
from receiver.inbox.queries.damage import DamagedRecord
from workers.operations.all_events import AllEvents

EVENTS_AT_ONCE = 50


class Rereader:
    """Reads events again. With `dry_run` nothing is changed. Without a store, those of all stores.

    One that was dropped may be in the history by now. It is brought back.
    """

    def __init__(self, config: Config, client: Redis, events: AllEvents, *, store: str | None, dry_run: bool) -> None:
        self._stores = config.known_stores
        self._window = config.receiver.dedupe_window_unidentified
        self._events, self._queries = events, EventQueries(client)
        self._administration = Administration(client)
        self._store = store
        self._dry_run = dry_run
        self.counts: Counter[RereadResult] = Counter()
        self.reasons: Counter[str] = Counter()
        """Why events are still unreadable, and how many of them."""

    def read(self, event_ids: Iterable[str], progress: Callable[[int], object] = lambda _: None) -> None:
        page: list[tuple[str, Delivery]] = []
        for stored_id in event_ids:
            progress(1)
            try:
                event = self._events.as_event(stored_id)
                record = None if event else self._events.event(stored_id)
            except DamagedRecord:
                self.counts[RereadResult.DAMAGED] += 1
                continue
            if event is None:
                self.counts[RereadResult.ERASED if record and record.erased_at else RereadResult.NO_BODY] += 1
            elif self._store not in (None, event.store):
                continue
            elif event.topic != UNREADABLE:
                self.counts[RereadResult.NOT_UNREADABLE] += 1
            else:
                read = _read_again(event, self._stores.get(event.store))
                if ITEM in read.event.headers and ITEM not in event.headers:
                    self._accept_items(event, read)
                else:
                    page.append((stored_id, read))
            if len(page) >= EVENTS_AT_ONCE:
                self._store_page(page)
                page = []
        if page:
            self._store_page(page)

    def _accept_items(self, event: Event, batch: Delivery) -> None:
        """A whole delivery that could not be read is a batch now: accept its events, and settle it."""
        self.counts[RereadResult.READ] += 1
        if self._dry_run:
            return
        with self._events.brought_back([event.id]):
            found = [_with_identity(one, event, place) for place, one in enumerate((batch, *batch.rest))]
            waited = dict.fromkeys((one.event.id for one in found), self._queries.seconds_stored(event.id))
            whole = replace(found[0], rest=tuple(found[1:]))
            (result,) = Inbox(self._queries.client).accept([whole], repeat_window=self._window, waited=waited)
            reason = f"read as a batch of events: {len(found):,}, the first is {result.id}"
            self._administration.drop([keys.run_item(event.id, keys.INTAKE)], reason=reason)

    def _store_page(self, page: list[tuple[str, Delivery]]) -> None:
        if self._dry_run:
            results = [RereadResult.UNREADABLE if one.unreadable else RereadResult.READ for _, one in page]
        else:
            with self._events.brought_back(stored_id for stored_id, _ in page):
                results = self._administration.reread(page, repeat_window=self._window)
        self.counts.update(results)
        self.reasons.update(
            one.unreadable for (_, one), result in zip(page, results, strict=True) if result is RereadResult.UNREADABLE
        )


def _read_again(event: Event, store: Store | None) -> Delivery:
    """The delivery as the current config reads it; with a reason if it cannot be read."""
    if store is None:
        return Delivery(event, theirs="", unreadable="its store is not in the config")
    try:
        read = read_again(event, store)
        return _with_redaction(read, event) if event.redacted else read
    except DeliveryRefused as error:
        return Delivery(event, theirs="", unreadable=str(error))
    except NoEvents:
        return Delivery(event, theirs="", unreadable="the list of events is empty")


def _with_redaction(read: Delivery, event: Event) -> Delivery:
    """What is left of a redacted event, with the identity that it has: any other would be that of a body which was not
    signed, and a redelivery would be another event."""
    is_batch = ITEM in read.event.headers and ITEM not in event.headers
    if is_batch or read.event.delivery_id != event.delivery_id:
        removed = f"[redact] paths removed {', '.join(event.redacted)}"
        why = f"{removed}, and it has another id now; drop it, and have the store send it again"
        return Delivery(event, theirs="", unreadable=why)
    mark = " ".join((event.headers[REDACTED], *(one for one in read.event.redacted if one not in event.redacted)))
    own = replace(read.event, id=event.id, headers={**read.event.headers, REDACTED: mark})
    return replace(read, event=own, first_id="", content_hash="")


def _with_identity(item: Delivery, event: Event, place: int) -> Delivery:
    """Without a delivery id, the stored event and the place identify an item, so that a second reread adds none."""
    if item.event.delivery_id:
        return item
    own = event_id(event.store, b"reread\0%b\0%d" % (event.id.encode(), place))
    return replace(item, event=replace(item.event, id=own))
