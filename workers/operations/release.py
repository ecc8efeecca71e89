"""Release: verifies refused deliveries again with the current config, as of their arrival, and accepts the valid ones.

A release can be repeated, and killed at any time: a delivery that was accepted before is found as a duplicate, and
then removed from the refusals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from receiver.config import Config
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import event_id
from receiver.contract.intake import Delivery, NoEvents, read_document, receive
from receiver.contract.stored_headers import require_stored, sealed_headers
from receiver.contract.stores import Store, StoreIndex
from receiver.inbox import Inbox
from receiver.inbox.model import resource_digest
from receiver.spool import TRY_AGAIN, Refusal, Refusals

SOURCE = "released"
MAX_SENT_AGAIN = 1_000
"""Refused deliveries that are looked for among the accepted events."""

_State = tuple[str, datetime | None]
"""The hash of a delivery's content, and when it occurred."""


def stores_with_secrets(config: Config) -> Mapping[str, Store]:
    """Every store with its secrets: those of the config and those learned on this host. Needs no server."""
    key = config.secrets.key.get_secret_value()
    if not key:
        return config.known_stores
    from receiver.inbox.keyring.learned_secrets import with_local_secrets  # the cipher takes a while to load

    return with_local_secrets(config.known_stores, config.data_dir, key)


@dataclass
class Released:
    accepted: int = 0
    duplicates: int = 0
    full: int = 0
    """Valid, but the store has too many open events. They stay stored for the next release."""
    still_refused: Counter[str] = field(default_factory=Counter)
    """By reason. They stay stored until they expire."""


def with_open_headers(config: Config, refusal: Refusal) -> Refusal:
    """A refusal whose sealed headers are opened with `[secrets] key`, if it is the one they were sealed with."""
    key = config.secrets.key.get_secret_value()
    if not key or not sealed_headers(refusal.headers):
        return refusal
    from receiver.inbox.keyring.header_seal import HeaderSeal  # the cipher takes a while to load

    return replace(refusal, headers=HeaderSeal(key).open_all(refusal.headers))


class ReleaseCheck:
    """Verifies refused deliveries with the current config, as of the time they arrived."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stores = stores_with_secrets(config)
        self._index = StoreIndex(self._stores)
        self._window = config.receiver.dedupe_window_unidentified
        self._firsts: dict[tuple[str, str], tuple[Refusal, str]] = {}
        self._newest: dict[str, _State] = {}
        """By the digest of the resource."""

    def store_of(self, refusal: Refusal) -> Store | None:
        """The store it was sent to. A store that was not configured then may be configured now."""
        if name := refusal.named or (refusal.store if refusal.store in self._stores else ""):
            return self._stores.get(name)
        return self._index.find(refusal.headers, refusal.body or b"") or self.unscanned_store(refusal)

    def unscanned_store(self, refusal: Refusal) -> Store | None:
        """The store that a delivery to `POST /webhooks` names where the receiver does not look for names."""
        body = refusal.body or b""
        if refusal.named or self._index.find(refusal.headers, body):
            return None
        return self._index.find_parsed(refusal.headers, read_document(body)[0])

    def verify(self, refusal: Refusal) -> Delivery | None:
        """The delivery as it would have been accepted on arrival, None if it has no events; raises DeliveryRefused."""
        store = self.store_of(refusal)
        if store is None:
            raise DeliveryRefused("unknown-store", "no such store")
        refusal = with_open_headers(self._config, refusal)
        require_stored(refusal.headers, store.scheme)
        try:
            delivery = receive(refusal.headers, refusal.body or b"", store=store, now=refusal.at, source=SOURCE)
        except NoEvents:
            return None
        items = (delivery, *delivery.rest)
        last = {_resource(one): (one.content_hash, one.event.occurred_at) for one in items}
        first, *rest = (self._with_identity(one, refusal, place, last) for place, one in enumerate(items, 1))
        self._newest |= last
        return replace(first, rest=tuple(rest))

    def is_valid(self, refusal: Refusal) -> bool:
        try:
            self.verify(refusal)
        except DeliveryRefused:
            return False
        return True

    def _with_identity(self, delivery: Delivery, refusal: Refusal, place: int, last: Mapping[str, _State]) -> Delivery:
        """Without a delivery id, the refusal's id and the place identify it: a second release finds a duplicate.

        Repeated deliveries are recognised by their time of arrival, not by the time of release: here those of other
        refusals, whose marks the inbox does not keep for hours; by the inbox those of events that were accepted. As in
        the inbox, it is no repeat if the resource has had another state since.
        """
        if delivery.event.delivery_id:
            return delivery
        own = event_id(delivery.event.store, b"refused\0%d\0%d\0%d" % (refusal.id, int(refusal.at * 1000), place))
        key = (delivery.event.store, delivery.content_hash)
        first = self._firsts.get(key)
        is_known = first and delivery.content_hash and not self._has_changed_since(delivery, last[_resource(delivery)])
        if not first or not is_known or not refusal.is_near(first[0], self._window):
            first = self._firsts[key] = (refusal, own)
        known = delivery.content_hash if refusal.waited is not None else ""
        return replace(delivery, content_hash=known, event=replace(delivery.event, id=first[1]))

    def _has_changed_since(self, delivery: Delivery, last: _State) -> bool:
        """The same rule as has_changed_since in lua/accept.lua. `last` is that of the resource in this delivery."""
        newest, occurred = self._newest.get(_resource(delivery), last), delivery.event.occurred_at
        if not delivery.event.resource_id or newest[0] in (delivery.content_hash, last[0]):
            return False
        return not (newest[1] and occurred and newest[1] > occurred)


def _resource(delivery: Delivery) -> str:
    event = delivery.event
    return resource_digest(event.store, event.topic, event.resource_id)


def select_refusals(
    refusals: Refusals,
    check: ReleaseCheck,
    *,
    store: str | None = None,
    ids: Collection[int] = (),
    progress: Callable[[int], object] = lambda _: None,
) -> Iterator[list[Refusal]]:
    """The selected refusals that have a body, in order of arrival, in batches."""
    for batch in refusals.with_body():
        progress(len(batch))
        selected = [one for one in batch if not ids or one.id in ids]
        if store:
            selected = [one for one in selected if (found := check.store_of(one)) and found.name == store]
        if selected:
            yield selected


def count_selected(refusals: Refusals, check: ReleaseCheck, *, store: str | None, ids: Collection[int]) -> int:
    """The number of selected refusals, for the audit trail; only a selection by store needs a look at each."""
    if not store:
        return len(ids) or refusals.count_with_body()
    return sum(map(len, select_refusals(refusals, check, store=store, ids=ids)))


def release(
    config: Config, inbox: Inbox, refusals: Refusals, check: ReleaseCheck, batches: Iterator[list[Refusal]]
) -> Released:
    """Accept the valid deliveries like others, and remove each refusal once its event is stored."""
    result, replicas = Released(), int(config.redis.ack == "replica")
    quotas = {name: store.max_stored for name, store in config.stores.items()}
    for batch in batches:
        valid, empty = [], []
        for refusal, delivery in verified(batch, check, result):
            valid.append((refusal, delivery)) if delivery else empty.append(refusal.id)
        answers = inbox.accept(
            [one for _, one in valid],
            repeat_window=config.receiver.dedupe_window_unidentified,
            quotas=quotas,
            replicas=replicas,
            waited=_waited(valid),
        )
        statuses = Counter(item.status for answer in answers for item in answer.items or (answer,))
        result.accepted += statuses["accepted"]
        result.duplicates += statuses["duplicate"]
        result.full += statuses["full"]
        pairs = zip(valid, answers, strict=True)
        refusals.delete([*empty, *(refusal.id for (refusal, _), answer in pairs if answer.status != "full")])
    return result


def sent_again(refusals: Refusals, check: ReleaseCheck, inbox: Inbox) -> set[int]:
    """Of the latest that were answered 503, the ids of those that are accepted events by now."""
    lines = refusals.newest(status=TRY_AGAIN, limit=MAX_SENT_AGAIN)
    stored = [one for line in lines if (one := refusals.get(line.id)) and one.has_body]
    valid = [(one.id, delivery) for one, delivery in verified(stored, check, Released()) if delivery]
    every = [(number, one) for number, delivery in valid for one in (delivery, *delivery.rest)]
    answers = inbox.are_accepted([one for _, one in every])
    missing = {number for (number, _), is_accepted in zip(every, answers, strict=True) if not is_accepted}
    return {number for number, _ in valid} - missing


def _waited(valid: list[tuple[Refusal, Delivery]]) -> dict[str, float]:
    """How long each event has waited; of equal ids the first counts."""
    return {
        one.event.id: refusal.waited or 0.0
        for refusal, delivery in reversed(valid)
        for one in (delivery, *delivery.rest)
    }


def verified(batch: list[Refusal], check: ReleaseCheck, result: Released) -> Iterator[tuple[Refusal, Delivery | None]]:
    """The valid ones, with None for a batch without events. The others are counted by reason."""
    for refusal in batch:
        try:
            yield refusal, check.verify(refusal)
        except DeliveryRefused as error:
            result.still_refused[error.reason] += 1
