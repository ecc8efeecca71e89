"""Release: refused deliveries judged again under today's config, as of their arrival; what fits is let in.

It may be repeated and it may be killed: whatever was let in is found again as a duplicate, then forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from receiver.config import Config
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import event_id
from receiver.contract.intake import Delivery, receive
from receiver.contract.stores import Store, StoreIndex
from receiver.inbox import Inbox
from receiver.spool import Refusal, Refusals

SOURCE = "released"


@dataclass
class Released:
    """What became of refused deliveries."""

    accepted: int = 0
    duplicates: int = 0
    full: int = 0
    """Fits, but the store has too many open events; kept for the next time."""
    still_refused: Counter[str] = field(default_factory=Counter)
    """By reason; kept until their time is over."""


class ReleaseCheck:
    """Says whether a refused delivery fits today, as of the time it came."""

    def __init__(self, config: Config, stores: Mapping[str, Store] | None = None) -> None:
        self._stores = config.known_stores if stores is None else stores
        self._index = StoreIndex(self._stores)
        self._window = config.receiver.dedupe_window_unidentified
        self._firsts: dict[tuple[str, str], tuple[float, str]] = {}

    def store_of(self, refusal: Refusal) -> Store | None:
        """The store it was sent to. One that nobody had configured then may be there now."""
        if name := refusal.named or (refusal.store if refusal.store in self._stores else ""):
            return self._stores.get(name)
        return self._index.find(refusal.headers, refusal.body or b"")

    def judge(self, refusal: Refusal) -> Delivery:
        """The delivery, as if it had been let in when it came; or DeliveryRefused."""
        store = self.store_of(refusal)
        if store is None:
            raise DeliveryRefused("unknown-store", "no such store")
        delivery = receive(refusal.headers, refusal.body or b"", store=store, now=refusal.at, source=SOURCE)
        return delivery if delivery.event.delivery_id else self._identified(delivery, refusal)

    def _identified(self, delivery: Delivery, refusal: Refusal) -> Delivery:
        """Without a delivery id, its place in the file is its identity, so that a second release finds the first.

        Repetitions are told by when they came, not by when they are released.
        """
        own = event_id(delivery.event.store, b"refused\0%d\0%d\0" % (refusal.id, int(refusal.at * 1000)))
        key = (delivery.event.store, delivery.content_hash)
        first_at, first_id = self._firsts.get(key, (0.0, ""))
        if not delivery.content_hash or refusal.at - first_at > self._window:
            first_id = own
            self._firsts[key] = (refusal.at, own)
        return replace(delivery, content_hash="", event=replace(delivery.event, id=first_id))


def chosen(
    refusals: Refusals,
    judge: ReleaseCheck,
    *,
    store: str | None = None,
    ids: Collection[int] = (),
    looked_at: Callable[[int], object] = lambda _: None,
) -> Iterator[list[Refusal]]:
    """The kept deliveries that are meant, in the order of arrival, a batch at a time."""
    for batch in refusals.with_body():
        looked_at(len(batch))
        wanted = [one for one in batch if not ids or one.id in ids]
        if store:
            wanted = [one for one in wanted if (of := judge.store_of(one)) and of.name == store]
        if wanted:
            yield wanted


def release(inbox: Inbox, refusals: Refusals, judge: ReleaseCheck, batches: Iterator[list[Refusal]]) -> Released:
    """Let in what fits, and forget it once it is stored."""
    told = Released()
    for batch in batches:
        fitting = list(_fitting(batch, judge, told))
        answers = inbox.accept([delivery for _, delivery in fitting]) if fitting else []
        told.accepted += sum(answer.status == "accepted" for answer in answers)
        told.duplicates += sum(answer.status == "duplicate" for answer in answers)
        told.full += sum(answer.status == "full" for answer in answers)
        pairs = zip(fitting, answers, strict=True)
        refusals.delete(refusal.id for (refusal, _), answer in pairs if answer.status != "full")
    return told


def _fitting(batch: list[Refusal], judge: ReleaseCheck, told: Released) -> Iterator[tuple[Refusal, Delivery]]:
    for refusal in batch:
        try:
            yield refusal, judge.judge(refusal)
        except DeliveryRefused as reason:
            told.still_refused[reason.reason] += 1
