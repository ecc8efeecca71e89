"""Event: one accepted delivery, with the same fields for every store. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from receiver.contract.records import Record

ID_LENGTH = 26
UNREADABLE = "unreadable"

# Base32, two letters at a time: base64.b32encode takes longer than the hash.
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS = tuple(first + second for first in _LETTERS for second in _LETTERS)


def event_id(store: str, duplicate_key: bytes) -> str:
    """Return the id of an event: the first 130 bits of a hash over store and duplicate key, as 26 letters of base32.

    Two deliveries of one event have the same duplicate key and so the same id: accepting twice is idempotent.
    """
    digest = hashlib.sha256(store.encode() + b"\0" + duplicate_key).digest()
    bits = int.from_bytes(digest[:17], "big") >> 6
    return "".join([_PAIRS[bits >> shift & 1023] for shift in range(120, -1, -10)])


def follow(document: Any, path: str) -> Any:
    """Return the value at `a.b.0` in a JSON document, or None. The empty path is the document itself."""
    for step in path.split(".") if path else ():
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isascii() and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


@dataclass(frozen=True)
class Event:
    """One event of one store: a product, order or customer was created, changed or deleted.

    `data` is the resource as plain JSON, the same for every store; `record` is the resource with typed fields and
    exact money; `payload` and `body` are the whole delivery. An event is read-only.
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
    """The raw bytes of the body, exactly as the store signed them."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The headers of the delivery, with names in lower case. Credentials are removed."""
    delivery_id: str = ""
    """The store's own id of the delivery; empty if it sends none."""
    resource_id: str = ""
    """The store's id of the product, order or customer, as text; empty if the delivery has none."""
    occurred_at: datetime | None = None
    """When the change happened, by the store's clock, in UTC; None if the store does not say."""
    source: str = "webhook"
    """Where the event came from: webhook, send, replay and others."""
    data_path: str = ""
    """The path of `data` in `payload`, such as `data.order`; empty if the payload is the resource."""

    @cached_property
    def payload(self) -> Any:
        """The whole JSON document. Integers keep all their digits; other numbers are floats."""
        return json.loads(self.body)

    @property
    def data(self) -> Any:
        """The resource as plain JSON: the product, order or customer, without the store's envelope."""
        return follow(self.payload, self.data_path)

    @cached_property
    def record(self) -> Record | None:
        """The resource as a Product, Order or Customer, with money as exact Decimals; None if `data` is not an object.

        A resource of another kind is a plain Record.
        """
        from receiver.contract.records import record_of

        exact = json.loads(self.body, parse_float=Decimal)
        return record_of(self.topic, follow(exact, self.data_path))
