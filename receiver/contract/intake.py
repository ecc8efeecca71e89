"""Intake: verifies a delivery's raw bytes, then reads its event. Raises DeliveryRefused."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import UNREADABLE, Event, build, delivery_key, event_id, follow, form_fields, is_form, walk
from receiver.contract.redaction import Budget, TooManyValues, redact
from receiver.contract.signing.signatures import Headers, Scheme, id_has_separator, joined_id, may_be_cut, verify
from receiver.contract.signing.sources import Reader, count_containers, item_slices, too_many_containers
from receiver.contract.stored_headers import ITEM, stored_headers
from receiver.contract.stores import Store, names_another_store
from receiver.contract.topics import translate
from receiver.contract.whole_characters import read_whole

MAX_ID = 200
MAX_TOPIC = 100
MAX_DEPTH = 254
"""Levels of nesting. `json` can read them even from deep inside a handler's calls. orjson reads 1024 and writes 254."""
MAX_ITEMS = 1000
"""Events of one delivery. One script stores them, and the server does nothing else meanwhile."""
LOOP_ITEMS, LOOP_BYTES = 100, 64 * 1024
"""Of a batch that is read in an event loop: it takes 30 microseconds for each item, and up to 40 for each KiB."""
LOOP_VALUES = 2000
"""Of a body that is redacted there, as many are looked at one by one: in 4 to 12 ms."""
LOOP_COMMAS = 20_000
"""Of such a body: with more it is not even read there, since most of these have more values than that."""

_CONTAINERS = (dict, list)
_NUMBERS = (int, float)
_OBJECT = ord("{")
_BOM = b"\xef\xbb\xbf"
_BEYOND_64_BITS = float(1 << 63)
"""Beyond 64 bits orjson reads integers as floats, so ids could collide. No smaller float was such an integer."""
_MILLISECONDS = 10**11  # a larger number is milliseconds: as seconds it would be after the year 5138
_DIGITS = re.compile(r"[0-9]{1,16}(\.[0-9]{1,9})?")
_THIN_KEY = re.compile(
    r"(.*[_-])?(id|ids|key|uuid|guid|hash)|.*[a-z](Id|Ids|ID|Key|Uuid|Hash)"
    r"|type|event|topic|scope|action|entity|operation|resource|producer|store|shop|merchant"
    r"|timestamp|(.*_)?(at|time|date)"
)


class _Arrival(NamedTuple):
    headers: Headers
    store: Store
    now: float
    source: str
    signed_with: str = ""
    budget: Budget | None = None
    """If it is read in an event loop: then what takes long raises LongWork."""


_Identity = tuple[str, bytes, bool, bytes]
"""The delivery id, the key made of it, whether the key counts without the body, and what is compared without an id."""


@dataclass(frozen=True)
class Delivery:
    """An accepted delivery: its event, and what the inbox needs to store it."""

    event: Event
    theirs: str
    """The store's own name of the topic."""
    content_hash: str = ""
    """The hash of topic and body, if the delivery has no id: equal ones count as duplicates for a short time."""
    unreadable: str = ""
    """Why a genuine delivery cannot be read; empty if it can. It is stored in both cases."""
    signed_with: str = ""
    """The fingerprint of the matching secret."""
    first_id: str = ""
    """The event's id if this is the first body under its delivery id. Empty if the body does not count for the id."""
    others_count: bool = False
    """Whether another body under its id may be another event. Not if the body counts for the id, or is not signed: then
    one captured delivery could become any number of events."""
    rest: tuple[Delivery, ...] = ()
    """The other events of a batch, each as a delivery: all are stored, or none."""


class LongWork(Exception):
    """A delivery that takes too long to judge in an event loop, of this store; empty if it is not verified yet."""

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self.store = store


class NoEvents(Exception):
    """A genuine batch without events: there is nothing to store."""


def receive(headers: Headers, body: bytes, *, store: Store, now: float, source: str = "webhook") -> Delivery:
    """Verify and read a delivery, or raise DeliveryRefused. A genuine delivery is never refused for its content."""
    proof = verify(store.scheme, secrets=store.secrets, headers=headers, body=body, now=now, url=store.url)
    return read_delivery(headers, body, store=store, now=now, source=source, signed_with=proof.secret.fingerprint)


def read_delivery(
    headers: Headers,
    body: bytes,
    *,
    store: Store,
    now: float,
    source: str,
    signed_with: str = "",
    in_loop: bool = False,
) -> Delivery:
    """Read a delivery that was verified. Raises DeliveryRefused if it names another store, NoEvents if it has none.

    With `in_loop` raises LongWork for one that must be read in a thread.
    """
    scheme, budget = store.scheme, Budget(LOOP_VALUES) if in_loop else None
    arrival = _Arrival(headers, store, now, source, signed_with, budget)
    if in_loop and store.redact and body.count(b",") > LOOP_COMMAS:
        raise LongWork(store.name)
    document, problem = read_document(body)
    readable = not problem
    if scheme.batch and readable:
        slices, problem = _find_items(store, body, document, in_loop)
        if slices:
            return _read_items(arrival, body, document, slices)
    if store.normalised_domain and names_another_store(store, headers, document):
        raise DeliveryRefused("wrong-store", "the delivery names another store")
    is_json = readable and (body[0] == _OBJECT or not is_form(body))
    if not is_json:
        _refuse_if_changed(scheme, headers, body, is_form=readable)
    joined = joined_id(scheme, headers, document) if scheme.joined_ids else b""
    delivery_id = _text(scheme.readers["id"], arrival, document, body)
    id_key = b"joined\0" + joined if joined else delivery_key(delivery_id)
    alone = _id_counts_alone(scheme, headers, document, is_json, joined)
    identity = (delivery_id, id_key, alone, body)
    return _read_event(arrival, identity, stored_headers(headers, scheme.reads), body, document, problem)


def _read_event(
    arrival: _Arrival, identity: _Identity, stored: dict[str, str], body: bytes, document: Any, problem: str
) -> Delivery:
    (headers, store, now, source, signed_with, budget), (delivery_id, _, _, content) = arrival, identity
    scheme, has_no_place = store.scheme, bool(problem)
    readers = scheme.readers
    theirs = _text(readers["topic"], arrival, document, body)
    topic = translate(theirs, scheme.topics)
    if not problem and not topic:
        problem = f"no topic at {' or '.join(scheme.event.topic) or 'any source'}"
    resource_id = _text(readers["resource_id"], arrival, document, body)
    data_path = _data_path(scheme, headers, document)
    own_id, first_id, others_count = _event_ids(store, identity, body)
    event = build(
        Event,
        {
            "id": own_id,
            "store": store.name,
            "topic": UNREADABLE if problem else topic,
            "received_at": datetime.fromtimestamp(now, UTC),
            "body": body,
            "headers": stored,
            "delivery_id": _bounded(delivery_id, MAX_ID),
            "resource_id": _bounded(resource_id, MAX_ID),
            "occurred_at": parse_time(readers["occurred"](headers, document)),
            "source": source,
            "data_path": data_path,
            "merged": (),
            "record_map": scheme.record,
        },
    )
    if store.redact and document is not None:
        try:
            event = redact(event, store.redact, anywhere=has_no_place, budget=budget)
        except TooManyValues:
            raise LongWork(store.name) from None
    is_unidentified = content and not delivery_id and not _is_thin(follow(document, data_path))
    return build(
        Delivery,
        {
            "event": event,
            "theirs": _bounded(theirs, MAX_TOPIC),
            "content_hash": _content_hash(theirs, content) if is_unidentified else "",
            "unreadable": problem,
            "signed_with": signed_with,
            "first_id": first_id,
            "others_count": others_count,
            "rest": (),
        },
    )


def _event_ids(store: Store, identity: _Identity, body: bytes) -> tuple[str, str, bool]:
    """The id of the event, its first id, and whether other bodies count; see Delivery."""
    delivery_id, id_key, id_counts_alone, _ = identity
    if not delivery_id:
        return event_id(store.name, b"once\0" + secrets.token_bytes(16)), "", False
    if id_counts_alone and store.scheme.dedupe == "id":
        return event_id(store.name, id_key), "", store.scheme.signs_body
    by_body = event_id(store.name, b"id+body\0%d\0%b%b" % (len(id_key), id_key, body))
    return by_body, event_id(store.name, id_key) if store.scheme.dedupe != "id" else "", False


# Batches


def _find_items(store: Store, body: bytes, document: Any, in_loop: bool) -> tuple[list[bytes] | None, str]:
    """The items of a batch, each as the store wrote it, or the reason why they cannot be read."""
    scheme = store.scheme
    items = walk(document, scheme.batch_path)
    if not isinstance(items, list):
        return None, f"no list of events at {scheme.batch}"
    if len(items) > MAX_ITEMS:
        return None, f"the delivery has more than {MAX_ITEMS:,} events"
    if not items:
        raise NoEvents
    if in_loop and (len(items) > LOOP_ITEMS or len(body) > LOOP_BYTES):
        raise LongWork(store.name)
    slices = item_slices(body, scheme.batch_path)
    return slices, "" if slices else f"no list of events at {scheme.batch}"


def _read_items(arrival: _Arrival, body: bytes, document: Any, slices: list[bytes]) -> Delivery:
    """Read each item as an event. One that cannot be read is unreadable alone.

    Each event stores only those headers that the scheme reads: all of them, a thousand times, would be much more than
    the delivery.
    """
    headers, store = arrival.headers, arrival.store
    scheme, found = store.scheme, []
    stored = {name: value for name, value in stored_headers(headers, scheme.reads).items() if name in scheme.reads}
    content = hashlib.sha256(body).digest()
    for place, (item, text) in enumerate(zip(walk(document, scheme.batch_path), slices, strict=True), 1):
        if store.normalised_domain and names_another_store(store, headers, item):
            raise DeliveryRefused("wrong-store", "an event of the delivery names another store")
        found.append(_read_item(arrival, stored, text, item, place, b"%b%d" % (content, place)))
    return replace(found[0], rest=tuple(found[1:])) if len(found) > 1 else found[0]


def _read_item(
    arrival: _Arrival, stored: dict[str, str], text: bytes, item: Any, place: int, content: bytes
) -> Delivery:
    """An id in a header names the delivery, so an item without its own id is identified by that and its place."""
    headers, scheme = arrival.headers, arrival.store.scheme
    problem = "" if isinstance(item, dict) else "the item is not an object"
    delivery_id = _text(scheme.event.item_id, arrival, item, text)
    if delivery_id:
        id_key, alone = delivery_key(delivery_id), scheme.dedupe == "id"
    else:
        delivery_id = _text(scheme.readers["id"], arrival, None, text)
        joined = joined_id(scheme, headers, None) if scheme.joined_ids else b""
        id_key = b"item\0%d\0" % place + (joined or delivery_id.encode("utf-8", "surrogatepass"))
        alone = _id_counts_alone(scheme, headers, None, True, joined)
    identity = (delivery_id, id_key, alone, content)
    return _read_event(arrival, identity, {**stored, ITEM: str(place)}, text, item, problem)


def read_again(event: Event, store: Store) -> Delivery:
    """Read a stored event with the store's current scheme. Raises like `read_delivery`.

    The body of an event of a batch is its item. What the whole delivery was is not known any more.
    """
    now, place = event.received_at.timestamp(), event.headers.get(ITEM, "")
    if not (store.scheme.batch and place):
        return read_delivery(event.headers, event.body, store=store, now=now, source=event.source)
    arrival = _Arrival(event.headers, store, now, event.source)
    return _read_item(arrival, dict(event.headers), event.body, read_document(event.body)[0], int(place), b"")


def read_document(body: bytes) -> tuple[Any, str]:
    """Return the JSON or the form of a body, and an empty text or the reason why it cannot be read.

    `event.payload` can read every body that is valid here.
    """
    if not body:
        return None, "the body is empty"
    if allowed := too_many_containers(body):
        return None, f"the body has more than {allowed:,} objects and arrays"
    try:
        document = read_whole(body.removeprefix(_BOM), orjson.loads)
    except orjson.JSONDecodeError as error:
        fields = form_fields(body)
        return (None, f"the body is not JSON: {error.msg}") if fields is None else (fields, "")
    if not isinstance(document, _CONTAINERS):
        return None, "the body is a bare value, not an object"
    if count_containers(body, MAX_DEPTH + 1) > MAX_DEPTH and _is_too_deep(document):
        return None, f"the body is nested more than {MAX_DEPTH} deep"
    return document, ""


def _is_too_deep(document: Any) -> bool:
    """Whether a document is nested more than MAX_DEPTH deep, which is where writing it fails; in C, so that it is fast.

    Everything else that was read can be written.
    """
    try:
        orjson.dumps(document)
    except orjson.JSONEncodeError:
        return True
    return False


def _text(read: Reader, arrival: _Arrival, document: Any, body: bytes) -> str:
    """Return a string or number as text; empty for other values, which cannot be an id or a name."""
    headers = arrival.headers
    value = read(headers, document)
    if isinstance(value, str):
        return value
    if isinstance(value, float) and abs(value) >= _BEYOND_64_BITS:
        if arrival.budget and len(body) > LOOP_BYTES:  # 1 MB may take 100 ms
            raise LongWork(arrival.store.name)
        value = read(headers, json.loads(body))
    return str(value) if type(value) in _NUMBERS else ""  # a bool is not


def _refuse_if_changed(scheme: Scheme, headers: Headers, body: bytes, *, is_form: bool) -> None:
    """Refuse a form or an unreadable delivery that may be a part of another one, or one with an addition.

    Where `signed` joins headers with other parts, the signed bytes of one delivery can be cut elsewhere and sent again,
    even under another id. The rest of a JSON object that was cut is not JSON, so readable JSON is genuine. Another
    body is refused if it may be cut; else it is accepted, but its id counts only together with its body. JSON that is
    joined with other headers can be cut between these: then their joined text is its id.
    """
    if may_be_cut(scheme, headers, body, is_form=is_form):
        raise DeliveryRefused(
            "ambiguous",
            "the body is not JSON, and a signed header or the body contains what separates the signed parts: this may "
            "be a part of another delivery",
        )
    if scheme.can_be_extended and not is_form:
        raise DeliveryRefused(
            "ambiguous",
            "the body cannot be read, and the store signs SHA-256(secret + body), to which an attacker can add bytes: "
            "this may be another delivery with an addition",
        )


def _id_counts_alone(scheme: Scheme, headers: Headers, document: Any, is_json: bool, joined: bytes) -> bool:
    """Whether the scheme trusts the id to name one delivery, and it cannot be cut from other signed text."""
    if scheme.dedupe != "id" or (scheme.id_separators and not is_json):
        return False
    return bool(joined) or not id_has_separator(scheme, headers, document)


def _content_hash(theirs: str, body: bytes) -> str:
    """Hash topic and body: without a delivery id, an equal hash soon afterwards is a duplicate."""
    named = hashlib.sha256(theirs.encode("utf-8", "surrogatepass") + b"\0" + body)
    return named.hexdigest()[:32]


def _is_thin(data: Any) -> bool:
    """Whether the payload is thin: it has only ids, types and times of the resource, not its content.

    A thin body is equal after every change, so it never counts as a duplicate.
    """
    if not isinstance(data, dict):
        return not data
    return len(data) <= 12 and all(
        len(key) <= MAX_ID and _THIN_KEY.fullmatch(key) and not isinstance(value, _CONTAINERS)
        for key, value in data.items()
    )


def _data_path(scheme: Scheme, headers: Headers, document: Any) -> str:
    """Return the path of the first source that is an object; empty, the whole document, if none is."""
    for path, read in scheme.event.data_readers:
        if not path or isinstance(read(headers, document), dict):
            return path
    return ""


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def parse_time(value: Any) -> datetime | None:
    """Parse a time in any usual form to UTC; None if it is not a time."""
    try:
        if isinstance(value, str):
            if "-" in value or not _DIGITS.fullmatch(value):
                moment = datetime.fromisoformat(value)
                if moment.tzinfo is not UTC:
                    moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
                return moment
            value = float(value)
        if isinstance(value, _NUMBERS) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > _MILLISECONDS else value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None
