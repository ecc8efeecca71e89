"""Detects the scheme of captured deliveries, from these and their secret alone. Every result is verified first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import orjson
import tomli_w

from receiver.contract.diagnosis.captures import OMITTED, Capture, omitted
from receiver.contract.diagnosis.contents import MAX_TIMES
from receiver.contract.diagnosis.event_sources import choose_sources, guess_id
from receiver.contract.diagnosis.formatting import some
from receiver.contract.diagnosis.search import Match, Search, decode_secret_variants, find_signer
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import UNREADABLE, Event
from receiver.contract.intake import NoEvents, read_delivery
from receiver.contract.signing.grammar import Scheme, Secret, Sources
from receiver.contract.signing.signatures import PRESETS, read_source
from receiver.contract.stores import Store

MAX_SCHEMES = 6
MAX_ITEMS = 20
BASES = ("hex-body", "base64-body")
"""Presets to extend: they say how a store signs, not where it writes topic and id."""
_BASE = Scheme("detected")


@dataclass(frozen=True)
class CaptureReading:
    """What the detected scheme reads from one capture, as text; empty if it is not there."""

    topic: str = ""
    standard_topic: str = ""
    id: str = ""
    resource_id: str = ""
    time: str = ""
    data: str = ""
    """Where `data` is in the body, and its first fields."""

    @property
    def missing(self) -> list[str]:
        return [name for name in ("topic", "id", "resource_id", "time") if not getattr(self, name)]


@dataclass(frozen=True)
class Detection:
    """The result: the scheme, or, if none matches, what was tried."""

    scheme: Scheme | None
    preset: str = ""
    """The preset that matches without changes; it needs no [schemes.NAME]."""
    url: str = ""
    """The URL, if the scheme signs it."""
    readings: tuple[CaptureReading, ...] = ()
    alternatives: tuple[Scheme, ...] = ()
    """Other schemes that match every capture, too: the captures do not show which one is right."""
    notes: tuple[str, ...] = ()
    """What is proven, what is assumed, and warnings."""
    tried: tuple[str, ...] = ()

    @property
    def has_topic(self) -> bool:
        return bool(self.readings) and all(reading.topic for reading in self.readings)

    def toml(self, name: str) -> str:
        """Return the scheme as config lines; an empty text if none was found, or a preset, which needs none."""
        return to_toml(self.scheme, name) if self.scheme and not self.preset else ""


def detect(captures: Sequence[Capture], secret_text: str, *, url: str = "") -> Detection:
    """Find the scheme under which `secret_text` signed every capture. The age of the deliveries is ignored."""
    return _Detector(captures, secret_text, url or captures[0].url).run()


def to_toml(scheme: Scheme, name: str) -> str:
    """Return a scheme as `[schemes.NAME]`: every key that differs from the defaults, and the header."""
    table = {
        "headers": scheme.headers,
        **changes(scheme, _BASE),
        "event": changes(scheme.event, _BASE.event),
        "topics": dict(scheme.topics),
        "record": scheme.record.as_table(),
    }
    return tomli_w.dumps({"schemes": {name: {key: value for key, value in table.items() if value not in ((), {})}}})


def changes(given: Any, default: Any) -> dict[str, Any]:
    """The keys of a scheme, or of its sources, that differ from those of another one."""
    keys = [item.name for item in fields(given) if item.name not in ("name", "event", "topics", "record", "configured")]
    return {key: getattr(given, key) for key in keys if getattr(given, key) != getattr(default, key)}


class _Detector:
    """One detection: the captures, the secret, and what is noticed on the way."""

    def __init__(self, captures: Sequence[Capture], secret_text: str, url: str) -> None:
        self.captures, self.secret_text, self.url = captures, secret_text, url
        self.notes: list[str] = []

    def run(self) -> Detection:
        for preset in PRESETS.values():
            if preset.name not in BASES and self._verifies(preset):
                readings = self._readings(preset)
                if all(reading.topic for reading in readings):
                    return Detection(preset, preset.name, self._signed_url(preset), readings)
        capture = min(self.captures, key=lambda one: len(one.body))
        search = Search(capture, decode_secret_variants(self.secret_text), self.url, _BASE)
        for matches in search.matches(search.slots.contents()):
            for match in matches:
                if schemes := list(self._schemes(match)):
                    return self._detected(schemes)
        return Detection(None, notes=tuple(self._unmatched()), tried=self._tried(search))

    def _detected(self, schemes: list[Scheme]) -> Detection:
        scheme = self._with_guessed_id(self._with_sources(schemes[0]))
        return Detection(
            scheme,
            url=self._signed_url(scheme),
            readings=self._readings(scheme),
            alternatives=tuple(replace(other, event=scheme.event) for other in schemes[1:MAX_SCHEMES]),
            notes=(*self.notes, *self._about_proof(scheme)),
        )

    # From a match to schemes that verify every capture

    def _schemes(self, match: Match) -> Iterator[Scheme]:
        """Yield every scheme that the match can mean and that verifies each capture, the most usual first."""
        for scheme in match.schemes(_BASE):
            if isinstance(scheme, str):
                self.notes.append(scheme)
            elif self._verifies(scheme):
                yield scheme

    def _verifies(self, scheme: Scheme) -> bool:
        try:
            secrets = [Secret(scheme.key_of(self.secret_text))]
        except ValueError:
            return False
        return all(find_signer(scheme, secrets, one.headers, one.body, self.url) for one in self.captures)

    def _with_sources(self, scheme: Scheme) -> Scheme:
        used = {*(f"header:{name}" for name in scheme.header_names), *scheme.signature}
        event = choose_sources(self.captures, used=used, signs=scheme.signs)
        if event.topic:
            return replace(scheme, event=event)
        for batch, items in self._batches():
            of_item = choose_sources(items, used=used, signs=scheme.signs)
            if of_item.topic:
                self.notes.append(f"a delivery is a batch: each item of the list at {batch} becomes an event")
                return replace(scheme, batch=batch, event=of_item)
        return replace(scheme, event=replace(event, topic=Sources().topic))

    def _with_guessed_id(self, scheme: Scheme) -> Scheme:
        event = scheme.event
        used = {scheme.timestamp, *event.topic, *event.resource_id}
        guess = () if event.id or scheme.batch else guess_id(self.captures, used=used, signs=scheme.signs)
        if guess:
            why = "no other signed header differs; remove it if it differs in a repeated delivery too"
            self.notes.append(f"guess: the id is {guess[0]}: {why}")
        return replace(scheme, event=replace(event, id=event.id or guess))

    def _batches(self) -> Iterator[tuple[str, list[Capture]]]:
        """Yield each place where every capture has a list of objects, with these as captures of their own."""
        first = self.captures[0].document
        keys = [f"json:{key}" for key in first if "." not in key] if isinstance(first, dict) else ["body"]
        for place in keys:
            lists = [(one, read_source(place, {}, one.document)) for one in self.captures]
            items = [
                Capture(one.headers, orjson.dumps(item))
                for one, found in lists
                for item in (found if isinstance(found, list) else ())[:MAX_ITEMS]
                if isinstance(item, dict)
            ]
            if items and all(isinstance(found, list) for _, found in lists):
                yield place, items

    def _readings(self, scheme: Scheme) -> tuple[CaptureReading, ...]:
        store = Store("detected", scheme, (), url=self.url)
        return tuple(_read(one, store) for one in self.captures)

    def _signed_url(self, scheme: Scheme) -> str:
        return self.url if {("url", ""), ("path", "")} & scheme.signed_parts else ""

    # What is said about the result

    def _about_proof(self, scheme: Scheme) -> Iterator[str]:
        bodies, sources = len({one.body for one in self.captures}), " or ".join(scheme.event.id)
        if ("body", "") in scheme.signed_parts and not all(one.body for one in self.captures):
            yield "assumed: the body is signed; the body of a capture is empty, so use one with a body"
        if not sources:
            yield (
                "no delivery id was found; set id, if a header or field differs in a second delivery but not in a "
                "repeated one"
            )
        elif bodies < 2:
            yield (
                f"assumed: the id is {sources}, which must differ in a second delivery; give two captures with "
                "different bodies to prove it: --request FILE --request FILE"
            )
        else:
            yield f"proven: {sources} differs in {bodies} captures with different bodies"
            if all(map(scheme.signs, scheme.event.id)):
                yield 'if a redelivery has the same id, and only then, you may set dedupe = "id": the id is signed'

    def _unmatched(self) -> Iterator[str]:
        yield from dict.fromkeys(self.notes)
        names = dict.fromkeys(name for one in self.captures for name in omitted(one.headers))
        if names:
            yield f"{OMITTED}{', '.join(names)}; if one of them is the signature, capture its value"

    def _tried(self, search: Search) -> tuple[str, ...]:
        """What the search tried, for the error message."""

        def names(sources: Iterable[str]) -> str:
            return ", ".join(source.removeprefix("header:") for source in sources) or "none"

        length = min(len(one.body) for one in self.captures)
        shorter = f"capture a body shorter than {length:,} bytes, or remove headers that are not signed"
        limit = f", not all: it takes too long; {shorter}" if search.stopped else ""
        url = "" if self.url else ", none with a URL"
        keys = [f"{key.encoding} without its prefix" if key.prefix else key.encoding for key in search.keys]
        return (
            f"{len(PRESETS)} presets",
            f"signatures: {names(search.places)}",
            f"timestamps: {names(time.source for time in search.times[:MAX_TIMES])}",
            f"other values: {names(search.slots.names)}",
            f"parts, combined as in docs/schemes.md: {', '.join(search.slots.fixed)}",
            f"the secret read as {', '.join(keys) or 'nothing'}",
            f"{search.tried:,} ways to build the signed content{url}{limit}",
        )


def _read(capture: Capture, store: Store) -> CaptureReading:
    """What the receiver's own intake reads from a capture; of a batch, its first event."""
    try:
        delivery = read_delivery(capture.headers, capture.body, store=store, now=0.0, source="webhook")
    except (DeliveryRefused, NoEvents):
        return CaptureReading()
    event = delivery.event
    return CaptureReading(
        topic=delivery.theirs,
        standard_topic="" if event.topic == UNREADABLE else event.topic,
        id=event.delivery_id,
        resource_id=event.resource_id,
        time=event.occurred_at.isoformat() if event.occurred_at else "",
        data=_about_data(event),
    )


def _about_data(event: Event) -> str:
    """Shown because no name or value proves it: the store may have the resource under a name of its own."""
    try:
        data = event.data
    except (ValueError, RecursionError):
        return ""
    place = f"json:{event.data_path}" if event.data_path else "body"
    return f"{place}, with {some(list(data))}" if data and isinstance(data, dict) else ""
