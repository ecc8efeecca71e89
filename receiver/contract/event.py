"""Event: one accepted delivery, with the same fields for every store. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property
from math import nan
from typing import TYPE_CHECKING, Any, TypeVar

from receiver.contract.whole_characters import with_whole_characters

if TYPE_CHECKING:
    from receiver.contract.record_map import RecordMap
    from receiver.contract.records import Record

T = TypeVar("T")

ID_LENGTH = 26
UNREADABLE = "unreadable"

REDACTED = "storehooks-redacted"
"""Stored like a header with an event whose body is redacted: the digest of the body that was signed, and the paths."""
MAX_FIELDS = 1_000
"""Fields of a form."""
MAX_ESCAPES = 100_000
"""Characters of a form that are written as %XX. Three times as many take a web process 25 ms to read."""
_SPACES = bytes.maketrans(b"+", b" ")
_FORM_BYTES = bytes(set(range(0x21, 0x7F)) - set(b'"<>\\^`{|}'))
_LETTERS = b"abcdefghijklmnopqrstuvwxyz234567" * 8
"""For each byte, the letter of its lower five bits."""
_HEX_LETTERS = str.maketrans("0189", "ghij")


def event_id(store: str, duplicate_key: bytes) -> str:
    """Return the id of an event: 130 bits of a hash over store and duplicate key, five of each byte, as 26 letters.

    Two deliveries of one event have the same duplicate key and so the same id: accepting twice is idempotent.
    """
    digest = hashlib.sha256(store.encode() + b"\0" + duplicate_key).digest()
    return digest[:ID_LENGTH].translate(_LETTERS).decode()


def delivery_key(delivery_id: str) -> bytes:
    """The duplicate key of a delivery whose id tells it from all others of its store."""
    return b"id\0" + delivery_id.encode("utf-8", "surrogatepass")


def body_digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def other_event_id(event: Event) -> str:
    """Return the id of an event whose delivery has the id of another event. accept.lua makes the same."""
    named = hashlib.sha1(f"{event.id} {event.signed_digest}".encode(), usedforsecurity=False)
    return named.hexdigest()[:ID_LENGTH].translate(_HEX_LETTERS)


def follow(document: Any, path: str) -> Any:
    """Return the value at `a.b.0` in a JSON document, or None. The empty path is the document itself."""
    return walk(document, path.split(".") if path else ())


def walk(document: Any, steps: Iterable[str]) -> Any:
    """`follow` for a path that was split before."""
    for step in steps:
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isascii() and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


def is_form(body: bytes) -> bool:
    """Whether a body looks like a form: a `=` in its first field, at most MAX_FIELDS, none of the characters that it
    must escape. JSON and the rest of it that was cut have brackets or quotes: no body is both.
    """
    begins = b"=" in body.partition(b"&")[0]
    few = begins and body.count(b"&") < MAX_FIELDS and body.count(b"=") <= 2 * MAX_FIELDS
    return few and body.count(b"%") <= MAX_ESCAPES and not body.translate(None, _FORM_BYTES)


def form_pairs(body: bytes) -> list[tuple[str, str]] | None:
    """Return the fields of a form body in their order, each byte as one character (latin-1); None if it is no form.

    The JSON decoder reads the escapes, because it does so in C.
    """
    if not is_form(body):
        return None
    text = body.translate(_SPACES).replace(b"%", rb"\u00").replace(b"&", b'"],["').replace(b"=", b'","')
    try:
        found = json.loads(b'[["%b"]]' % text)
    except ValueError:
        return None
    return [(name, "=".join(value)) for name, *value in found if name or value]


def form_fields(body: bytes) -> dict[str, str] | None:
    """Return the fields of a form body as text; None if it is no form. Of a repeated field, the last value."""
    pairs = form_pairs(body)
    return None if pairs is None else {_utf8(name): _utf8(value) for name, value in pairs}


def _utf8(text: str) -> str:
    return text if text.isascii() else text.encode("latin-1").decode("utf-8", "replace")


def _exact_number(text: str) -> Decimal | float:
    try:
        return Decimal(text)
    except InvalidOperation:
        return nan


def build(cls: type[T], fields: dict[str, Any]) -> T:
    """Return an instance of a frozen dataclass with these fields, which must be all of them.

    Its own `__init__` sets them one by one, in three times the time.
    """
    instance = object.__new__(cls)
    object.__setattr__(instance, "__dict__", fields)
    return instance


@dataclass(frozen=True)
class Event:
    """One event of one store: a product, order or customer was created, changed or deleted.

    `data` is the resource as plain JSON, with the store's own field names; `record` is the resource with the same typed
    fields for every store, and exact money; `payload` and `body` are the whole delivery. An event is read-only.
    """

    id: str
    """The id of the event in storehooks, the same for every redelivery. Safe as an idempotency key."""
    store: str
    """The name of the store in the config: NAME of `[stores.NAME]`."""
    topic: str
    """What happened, as `resource.action`: order.paid, product.updated. The same for every store."""
    received_at: datetime
    """When the receiver got the delivery, in UTC."""
    body: bytes = field(repr=False)
    """The raw bytes of the body, exactly as the store signed them, unless `redacted` names fields that were removed."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The headers of the delivery, with names in lower case; its query fields as `?NAME`. Credentials are removed."""
    delivery_id: str = ""
    """The store's own id of the delivery; empty if it sends none."""
    resource_id: str = ""
    """The store's id of the product, order or customer, as text; empty if the delivery has none."""
    occurred_at: datetime | None = None
    """When the change happened, by the store's clock, in UTC; None if the store does not say, or does not sign it."""
    source: str = "webhook"
    """Where the event came from: webhook, send, replay and others."""
    data_path: str = ""
    """The path of `data` in `payload`, such as `data.order`; empty if the payload is the resource."""
    merged: tuple[str, ...] = ()
    """With `coalesce`, the ids of the other events of this resource that this run also settles, in their order."""
    record_map: RecordMap | None = field(default=None, repr=False, compare=False)
    """Where `data` holds the fields of `record`: `[schemes.NAME.record]` of the store's scheme, as it is now. None if
    the store is not in the config: then each field has its own name."""

    @cached_property
    def payload(self) -> Any:
        """The whole document. Integers keep all their digits; other numbers are floats. A form is a dict of texts."""
        return self._read()

    @property
    def redacted(self) -> tuple[str, ...]:
        """The paths of `data` whose values were removed before the event was stored: `[redact] paths`. They are null
        in `body`, which is not what the store signed then."""
        return tuple(self.headers.get(REDACTED, "").split()[1:])

    @property
    def signed_digest(self) -> str:
        """A digest of the body as the store signed it."""
        mark = self.headers.get(REDACTED)
        return mark.partition(" ")[0] if mark else body_digest(self.body)

    @property
    def data(self) -> Any:
        """The resource as plain JSON: the product, order or customer, without the store's envelope."""
        return follow(self.payload, self.data_path)

    @property
    def exact_data(self) -> Any:
        """The same as `data`, with the numbers that `data` has as floats as exact Decimals. One whose exponent has more
        than 18 digits is NaN: no Decimal can hold it."""
        return follow(self._read(parse_float=_exact_number), self.data_path)

    @cached_property
    def record(self) -> Record | None:
        """The resource as a Product, Order or Customer, with money as exact Decimals; None if `data` is not an object.

        The names of its fields are the same for every store whose scheme has a record map. A resource of another kind
        is a plain Record.
        """
        from receiver.contract.records import record_of

        return record_of(self.topic, self.exact_data, self.record_map)

    def _read(self, **options: Any) -> Any:
        try:
            return json.loads(with_whole_characters(self.body), **options)
        except ValueError:
            fields = form_fields(self.body)
            if fields is None:
                raise
            return fields
