"""Release: verifies refused deliveries again with the current config, as of their arrival, and accepts the valid ones.

A release can be repeated, and killed at any time: a delivery that was accepted before is found as a duplicate, and
then removed from the refusals. What was released is noted, so that several releases give the ids that one would give.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from receiver.config import Config
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import Event, event_id
from receiver.contract.intake import Delivery, NoEvents, read_document, receive
from receiver.contract.stored_headers import require_stored, sealed_headers
from receiver.contract.stores import Store, StoreIndex
from receiver.inbox import Inbox
from receiver.inbox.model import resource_digest
from receiver.spool import TRY_AGAIN, Refusal, Refusals, ReleasedEvent

SOURCE = "released"
MAX_SENT_AGAIN = 1_000
"""Refused deliveries that are looked for among the accepted events."""

_State = tuple[str, float | None]
"""The hash of a delivery's content, and when it occurred."""
LOOKS_BACK = 10
"""Windows before a selected delivery in which the others are looked at, too: what it repeats may itself be a repeat."""


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
        self.looks_back = LOOKS_BACK * self._window
        self._earlier: deque[ReleasedEvent] = deque()
        self._firsts: dict[tuple[str, str], ReleasedEvent] = {}
        """By store and hash: the last one that was no repeat."""
        self._newest: dict[str, _State] = {}
        """By the digest of the resource."""

    def recall(self, released: Iterable[ReleasedEvent]) -> None:
        """Judge the next deliveries as if these, which were released before, were still among them."""
        self._earlier.extend(released)

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
        while self._earlier and self._earlier[0].order < (refusal.at, refusal.id):
            self._note(self._earlier.popleft())
        items = released_events(refusal, delivery)
        last = {one.resource: (one.hash, one.occurred) for one in items}
        first, *rest = (
            replace(one, event=replace(one.event, id=self._identity(one.event, item, last[item.resource])))
            for one, item in zip((delivery, *delivery.rest), items, strict=True)
        )
        found = replace(first, rest=tuple(rest))
        for item in released_events(refusal, found):
            self._note(item)
        return found

    def is_valid(self, refusal: Refusal) -> bool:
        try:
            self.verify(refusal)
        except DeliveryRefused:
            return False
        return True

    def _identity(self, event: Event, item: ReleasedEvent, last: _State) -> str:
        """The id of an event. Without a delivery id, the refusal's id and the place identify it: a second release finds
        a duplicate. `last` is the state of its resource in this delivery.

        Repeated deliveries are recognised by their time of arrival, not by the time of release: here those of other
        refusals, whose marks the inbox does not keep for hours; by the inbox those of events that were accepted. As in
        the inbox, it is no repeat if the resource has had another state since.
        """
        if event.delivery_id:
            return event.id
        first = self._firsts.get((item.store, item.hash))
        has_changed = event.resource_id and self._has_changed_since(item, last)
        is_repeat = first and item.hash and not has_changed and item.is_near(first, self._window)
        return first.event if first and is_repeat else _own_id(item)

    def _has_changed_since(self, item: ReleasedEvent, last: _State) -> bool:
        """The same rule as has_changed_since in lua/accept.lua."""
        state, occurred = self._newest.get(item.resource, last)
        if state in (item.hash, last[0]):
            return False
        return occurred is None or item.occurred is None or occurred <= item.occurred

    def _note(self, item: ReleasedEvent) -> None:
        if item.event == _own_id(item):
            self._firsts[item.store, item.hash] = item
        self._newest[item.resource] = (item.hash, item.occurred)


def _own_id(item: ReleasedEvent) -> str:
    return event_id(item.store, b"refused\0%d\0%d\0%d" % (item.id, int(item.at * 1000), item.place))


def released_events(refusal: Refusal, delivery: Delivery) -> list[ReleasedEvent]:
    """What is known of each event of a refused delivery."""
    found = []
    for place, one in enumerate((delivery, *delivery.rest), 1):
        event, (at, number, boot, uptime) = one.event, (refusal.at, refusal.id, refusal.boot, refusal.uptime)
        resource = resource_digest(event.store, event.topic, event.resource_id)
        occurred = event.occurred_at.timestamp() if event.occurred_at else None
        found.append(
            ReleasedEvent(at, number, place, boot, uptime, event.store, one.content_hash, resource, occurred, event.id)
        )
    return found


def select_refusals(
    refusals: Refusals,
    check: ReleaseCheck,
    *,
    store: str | None = None,
    ids: Collection[int] = (),
    progress: Callable[[int], object] = lambda _: None,
) -> Iterator[list[Refusal]]:
    """The selected refusals that have a body, in order of arrival, in batches. With `ids` also the others of that time:
    whether one repeats another depends on those before it. `verified` leaves them out."""
    times = [one.at for number in ids if (one := refusals.get(number))]
    first, last = (min(times, default=0) - check.looks_back, max(times, default=0)) if ids else (0, math.inf)
    for batch in refusals.with_body(since=first, until=last):
        progress(len(batch))
        selected = [one for one in batch if not store or ((found := check.store_of(one)) and found.name == store)]
        if selected:
            yield selected


def count_selected(refusals: Refusals, check: ReleaseCheck, *, store: str | None, ids: Collection[int]) -> int:
    """The number of selected refusals, for the audit trail; only a selection by store needs a look at each."""
    if not store:
        return len(ids) or refusals.count_with_body()
    batches = select_refusals(refusals, check, store=store, ids=ids)
    return sum(not ids or one.id in ids for batch in batches for one in batch)


def release(
    config: Config,
    inbox: Inbox,
    refusals: Refusals,
    check: ReleaseCheck,
    batches: Iterator[list[Refusal]],
    ids: Collection[int] = (),
) -> Released:
    """Accept the valid deliveries like others, and remove each refusal once its event is stored."""
    result, replicas, judged = Released(), int(config.redis.ack == "replica"), (0.0, 0)
    quotas = {name: store.max_stored for name, store in config.stores.items()}
    for batch in batches:
        # Read after the batch: what another release has removed from it is among these.
        until = (batch[-1].at, batch[-1].id)
        check.recall(refusals.released(judged, until))
        judged, valid, empty = until, [], []
        for refusal, delivery in verified(batch, check, result, ids):
            valid.append((refusal, delivery)) if delivery else empty.append(refusal.id)
        answers = inbox.accept(
            [_for_inbox(refusal, one) for refusal, one in valid],
            repeat_window=config.receiver.dedupe_window_unidentified,
            quotas=quotas,
            replicas=replicas,
            waited=_waited(valid),
        )
        statuses = Counter(item.status for answer in answers for item in answer.items or (answer,))
        result.accepted += statuses["accepted"]
        result.duplicates += statuses["duplicate"]
        result.full += statuses["full"]
        done = [one for one, answer in zip(valid, answers, strict=True) if answer.status != "full"]
        events = [item for refusal, delivery in done for item in released_events(refusal, delivery)]
        refusals.delete([*empty, *(refusal.id for refusal, _ in done)], released=events)
    return result


def _for_inbox(refusal: Refusal, delivery: Delivery) -> Delivery:
    """If it is not known how long it has waited, the inbox must not compare it with what has arrived since."""
    if refusal.waited is not None:
        return delivery
    return replace(delivery, content_hash="", rest=tuple(replace(one, content_hash="") for one in delivery.rest))


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


def verified(
    batch: list[Refusal], check: ReleaseCheck, result: Released, ids: Collection[int] = ()
) -> Iterator[tuple[Refusal, Delivery | None]]:
    """The valid ones, with None for a batch without events. The others are counted by reason. With `ids` only these."""
    for refusal in batch:
        is_selected = not ids or refusal.id in ids
        try:
            delivery = check.verify(refusal)
        except DeliveryRefused as error:
            if is_selected:
                result.still_refused[error.reason] += 1
            continue
        if is_selected:
            yield refusal, delivery
