"""Scheme preview: which schemes would make a refused delivery valid with the store's own secrets, and what they change.

For each: how many stored refused deliveries of the store would be valid, and how many of the last accepted ones still
would be. Nothing is changed: the result is the TOML to write, and where.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

import tomli_w
from redis import Redis

from receiver.config import Config
from receiver.contract.diagnosis.captures import Capture
from receiver.contract.diagnosis.detect import Detection, changes, detect
from receiver.contract.diagnosis.explain import caveats
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import Event
from receiver.contract.intake import NoEvents, receive
from receiver.contract.signing.grammar import Scheme, Secret, encode_secret
from receiver.contract.signing.scheme_checks import SchemeError
from receiver.contract.stored_headers import ITEM, require_stored
from receiver.contract.stores import Store
from receiver.inbox.model import read_event
from receiver.inbox.queries.event_pages import EventPages
from receiver.spool import Refusal, Refusals
from workers.history.event_filter import EventFilter
from workers.history.past_events import LAST_TIME, HistoryDatabase, Position
from workers.operations.all_events import BODIES_AT_ONCE
from workers.operations.edited_events import SOURCE as EDITED
from workers.operations.release import ReleaseCheck, select_refusals, with_open_headers

MAX_KEPT = 200
MAX_ACCEPTED = 200
MAX_SCHEMES = 5
MAX_BYTES = 8 << 20
"""Bytes of bodies of refused deliveries, and of accepted ones, until no more are read."""
SECONDS = 5.0
"""After this time no other scheme is tried."""
T = TypeVar("T", Event, Refusal)


@dataclass(frozen=True)
class SchemePreview:
    """What a scheme would do for a store."""

    scheme: Scheme
    is_current: bool
    kept_valid: int
    """Of the stored refused deliveries, how many would be valid, as of their arrival."""
    accepted_valid: int
    """Of the accepted deliveries, how many would still be."""
    toml: str = ""
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class SchemePreviews:
    store: Store
    place: str
    """The file and line of the store's table."""
    kept: int
    accepted: int
    schemes: list[SchemePreview]
    """The current one first, then those that would make the delivery valid, those that break the fewest first."""
    is_whole: bool
    """False if the time was over before all were tried."""


class PreviewedStore:
    """Previews for the store of one refused delivery."""

    def __init__(self, config: Config, client: Redis, history: HistoryDatabase | None, store: Store) -> None:
        self._config, self._store = config, store
        self._deadline = time.monotonic() + SECONDS
        self._accepted = _first(_accepted(client, history, store.name), MAX_ACCEPTED)

    def run(self, refusals: Refusals, refusal: Refusal) -> SchemePreviews:
        batches = select_refusals(refusals, ReleaseCheck(self._config), store=self._store.name)
        kept = _first((with_open_headers(self._config, one) for batch in batches for one in batch), MAX_KEPT)
        found = [self._preview(scheme, kept, toml) for scheme, toml in self._candidates(refusal)]
        found.sort(key=lambda one: (-one.accepted_valid, -one.kept_valid))
        current = self._preview(self._store.scheme, kept, "")
        place = str(self._config.place("stores", self._store.name, "scheme") or "")
        schemes = [current, *found[:MAX_SCHEMES]]
        return SchemePreviews(self._store, place, len(kept), len(self._accepted), schemes, not self._is_over)

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def _preview(self, scheme: Scheme, kept: Sequence[Refusal], toml: str) -> SchemePreview:
        store = self._with(scheme) or self._store
        return SchemePreview(
            scheme,
            scheme == self._store.scheme,
            sum(_is_valid(store, one) for one in kept),
            sum(_would_be_accepted(store, one) for one in self._accepted),
            toml,
            caveats(scheme),
        )

    def _candidates(self, refusal: Refusal) -> Iterator[tuple[Scheme, str]]:
        """Every scheme that would make the delivery valid and readable, with its TOML."""
        refusal, known = with_open_headers(self._config, refusal), False
        for name, scheme in self._config.known_schemes.items():
            if self._is_over:
                return
            if scheme != self._store.scheme and self._reads(scheme, refusal):
                known = True
                yield scheme, tomli_w.dumps({"stores": {self._store.name: {"scheme": name}}})
        if not known:
            yield from self._detected(refusal)

    def _detected(self, refusal: Refusal) -> Iterator[tuple[Scheme, str]]:
        capture = Capture(refusal.headers, refusal.body or b"")
        for _, text in self._secrets():
            if self._is_over:
                return
            found = detect([capture], text, url=self._store.url)
            if found.scheme is None or self._reads(self._store.scheme, refusal):
                continue
            if corrected := self._corrected(found, refusal):
                yield corrected
            elif self._reads(found.scheme, refusal):  # its signature fits, but it may have been too old
                yield self._new(found)
            return

    def _corrected(self, found: Detection, refusal: Refusal) -> tuple[Scheme, str] | None:
        """The store's own scheme with another way to sign: its sources of topic and id stay as they are."""
        assert found.scheme is not None
        own, name = self._store.scheme, f"my-{self._store.scheme.name}"
        other = changes(found.scheme, own)
        if {one.lower() for one in found.scheme.headers} <= {one.lower() for one in own.headers}:
            other.pop("headers", None)
        try:
            scheme = replace(own, name=name, **other)
        except SchemeError:
            return None
        if not self._reads(scheme, refusal):
            return None
        table = {"extends": own.name, **{key: value for key, value in other.items() if value is not None}}
        return scheme, tomli_w.dumps({"schemes": {name: table}, "stores": {self._store.name: {"scheme": name}}})

    def _new(self, found: Detection) -> tuple[Scheme, str]:
        assert found.scheme is not None
        name = found.preset or f"my-{self._store.name}"
        store = tomli_w.dumps({"stores": {self._store.name: {"scheme": name}}})
        return found.scheme, f"{found.toml(name)}\n{store}".lstrip("\n")

    def _reads(self, scheme: Scheme, refusal: Refusal) -> bool:
        store = self._with(scheme)
        return store is not None and _is_valid(store, refusal, readable=True)

    def _with(self, scheme: Scheme) -> Store | None:
        """The store with another scheme; None if one of its secrets cannot be used with that."""
        try:
            secrets = [replace(one, key=scheme.key_of(text)) for one, text in self._secrets()]
        except ValueError:
            return None
        return replace(self._store, scheme=scheme, secrets=tuple(secrets))

    def _secrets(self) -> Iterator[tuple[Secret, str]]:
        """The store's secrets, each with its text: another scheme may read another key from it."""
        own = self._store.scheme
        given = [one.value.get_secret_value() for one in self._config.stores[self._store.name].signing_secrets]
        texts = {own.key_of(text): text for text in given}
        for secret in self._store.secrets:
            is_text = own.secret_encoding == "utf8"  # noqa: S105  the name of an encoding
            learned = (
                own.secret_prefix + secret.key.decode("utf-8", "replace") if is_text else encode_secret(own, secret.key)
            )
            yield secret, texts.get(secret.key, learned)


def _is_valid(store: Store, refusal: Refusal, *, readable: bool = False) -> bool:
    try:
        require_stored(refusal.headers, store.scheme)
        delivery = receive(refusal.headers, refusal.body or b"", store=store, now=refusal.at)
    except DeliveryRefused:
        return False
    except NoEvents:
        return True
    return not (readable and delivery.unreadable)


def _would_be_accepted(store: Store, event: Event) -> bool:
    try:
        receive(event.headers, event.body, store=store, now=event.received_at.timestamp())
    except DeliveryRefused:
        return False
    except NoEvents:
        return True
    return True


def _accepted(client: Redis, history: HistoryDatabase | None, store: str) -> Iterator[Event]:
    """The events of a store that were accepted last, with their bodies. Without those that are no whole delivery, or
    were never signed."""
    page = EventPages(client, store=store, content=True).newest(before=LAST_TIME, since=0, many=MAX_ACCEPTED)
    found: Iterable[Event] = [read_event(one.id, one.fields, one.content) for one in page.events if one.content]
    if history is not None and page.last is None:
        until = page.events[-1].accepted_at if page.events else None
        found = chain(found, _past(history, EventFilter(store=store, until=until)))
    yield from (one for one in found if one.body and ITEM not in one.headers and one.source != EDITED)


def _past(history: HistoryDatabase, wanted: EventFilter) -> Iterator[Event]:
    """Past events with their bodies, the newest first. Few at once: the bodies may be large."""
    position: Position | None = None
    for _ in range(MAX_ACCEPTED // BODIES_AT_ONCE):
        past = history.find(wanted, before=position, limit=BODIES_AT_ONCE, seconds=SECONDS, content=True)
        yield from (one.event for one in past.events if one.content)
        position = past.position
        if position is None or past.out_of_time:
            return


def _first(found: Iterable[T], most: int) -> list[T]:
    """The first of the deliveries, until there are enough, or their bodies exceed MAX_BYTES."""
    listed, size = list[T](), 0
    for one in found:
        listed.append(one)
        size += len(one.body or b"")
        if len(listed) == most or size > MAX_BYTES:
            break
    return listed
