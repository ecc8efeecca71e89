"""Event: what arrived from a store, the same for every scheme. Standard library only."""

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

# base32 two letters at a time: base64.b32encode takes longer than the hash
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS = tuple(first + second for first in _LETTERS for second in _LETTERS)


def event_id(store: str, duplicate_key: bytes) -> str:
    """Our id of an event. It is made from the duplicate key, so that accepting twice finds the first.

    It is the beginning of the hash in base32: 130 bits, 26 letters.
    """
    digest = hashlib.sha256(store.encode() + b"\0" + duplicate_key).digest()
    bits = int.from_bytes(digest[:17], "big") >> 6
    return "".join([_PAIRS[bits >> shift & 1023] for shift in range(120, -1, -10)])


def follow(document: Any, path: str) -> Any:
    """The value at `a.b.0` in a JSON document, or None. The empty path is the document itself."""
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
    """One event of one store. `data` is the resource itself, whatever envelope the store uses."""

    id: str
    """Ours; the same for every redelivery."""
    store: str
    """The store's name in the config."""
    topic: str
    """Such as order.paid, whatever the store calls it."""
    received_at: datetime
    """When it reached us."""
    body: bytes = field(repr=False)
    """The raw bytes, as they were signed."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Those that came with it; names in lower case."""
    delivery_id: str = ""
    """Theirs; empty where the store gives none."""
    resource_id: str = ""
    """The id of the product, order or customer, as text."""
    occurred_at: datetime | None = None
    """When it happened, as the store says; None where it does not."""
    source: str = "webhook"
    """How it came: webhook, send, replay, ..."""
    data_path: str = ""
    """Where in the payload the resource stands; empty when the payload is the resource."""

    @cached_property
    def payload(self) -> Any:
        """The whole JSON document, whole integers kept."""
        return json.loads(self.body)

    @property
    def data(self) -> Any:
        """The resource: a product, an order, a customer."""
        return follow(self.payload, self.data_path)

    @cached_property
    def record(self) -> Record | None:
        """The resource as a Product, an Order or a Customer, money as Decimal; None where the data is no object."""
        from receiver.contract.records import record_of

        exact = json.loads(self.body, parse_float=Decimal)
        return record_of(self.topic, follow(exact, self.data_path))
