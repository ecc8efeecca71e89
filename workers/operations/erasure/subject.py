"""Subject: the person whose data is erased, and whether an event or a text is about that person. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any, Literal

from receiver.contract.errors import ConfigError
from receiver.contract.event import Event, follow
from receiver.contract.records import Order, RecordError
from workers.history.event_filter import where_of
from workers.plugins.conditions import unmet_condition

LONG_ENOUGH = 8
"""A text of fewer characters, or without a digit, may also be a part of what is stored about others."""
_PLAIN = re.compile(r"[A-Za-z0-9@._-]+")
"""Characters that every program writes as they are into JSON."""


@dataclass(frozen=True)
class Subject:
    """A person, as `storehooks erase` is given one. Plugins get it in `@router.erase`."""

    store: str
    by: Literal["customer", "resource", "match"]
    name: str
    """The kind of a resource, such as `order`; the path of a match, such as `customer.email`. Empty for a customer."""
    value: str
    """The id of the customer or the resource, or the value at the path."""

    @property
    def words(self) -> str:
        """How the person is named, without the value."""
        return f"{self.by} {self.name}".strip()

    @cached_property
    def digest(self) -> str:
        parts = (self.store, self.by, self.name, self.value)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def is_distinctive(self) -> bool:
        """Whether the value is looked for in any text: an email address, a telephone number, a long id."""
        return "@" in self.value[1:] or (len(self.value) >= LONG_ENOUGH and any(map(str.isdigit, self.value)))

    @cached_property
    def probe(self) -> bytes:
        """A text that everything about the person contains, however it is written as JSON."""
        text = self.value
        with suppress(InvalidOperation, ValueError):  # a number may be written in several ways
            text = max(re.findall(r"\d+", f"{Decimal(self.value).normalize():f}"), key=len)
        return max(_PLAIN.findall(text), key=len, default="").encode()

    def is_in_event(self, event: Event) -> bool:
        """Whether an event is about the person, by its resource or its payload."""
        kind = event.topic.partition(".")[0]
        if self.by == "resource":
            return (kind, event.resource_id) == (self.name, self.value)
        if self.by == "customer" and kind == "customer":
            return event.resource_id == self.value
        try:
            return self._is_in_data(event)
        except (ValueError, RecursionError, RecordError):  # the body is not JSON, was removed, or has no customer
            return False

    def _is_in_data(self, event: Event) -> bool:
        if self.by == "match":
            return unmet_condition({self.name: self._condition}, event) is None
        found = [follow(event.data, "customer_id"), follow(event.data, "customer.id")]
        record = event.record
        if self.value in [str(one) for one in found if one is not None]:
            return True
        customer = record.customer if isinstance(record, Order) else None
        return customer is not None and str(customer.value("id")) == self.value

    @cached_property
    def _condition(self) -> Any:
        return where_of(f"{self.name}={self.value}")[1]

    def is_in_text(self, text: bytes) -> bool:
        """Whether any text has the value, as a whole word, if it is distinctive."""
        return self.is_distinctive and self.probe in text and bool(self._pattern.search(text))

    def replaced_in(self, text: bytes) -> bytes:
        return self._pattern.sub(b"(erased)", text)

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        forms = {self.value, json.dumps(self.value)[1:-1], json.dumps(self.value, ensure_ascii=False)[1:-1]}
        either = b"|".join(re.escape(one.encode("utf-8", "surrogatepass")) for one in sorted(forms))
        return re.compile(rb"(?<![A-Za-z0-9])(?:" + either + rb")(?![A-Za-z0-9])")


def subject_of(store: str, *, customer: str | None, resource: str | None, match: str | None) -> Subject:
    """A subject from the options of the command: exactly one of them. Raises ConfigError."""
    given: Mapping[str, str | None] = {"--customer": customer, "--resource": resource, "--match": match}
    if sum(value is not None for value in given.values()) != 1:
        raise ConfigError("name the person by one of --customer ID, --resource KIND:ID and --match PATH=VALUE")
    if customer is not None:
        subject = Subject(store, "customer", "", customer)
    elif resource is not None:
        kind, _, value = resource.partition(":")
        subject = Subject(store, "resource", kind, value)
    else:
        path, _, value = str(match).partition("=")
        subject = Subject(store, "match", path, value)
        where_of(f"{path}={value}")
    if not subject.value or (subject.by != "customer" and not subject.name):
        raise ConfigError("write --customer 42, --resource order:1001 or --match customer.email=ann@example.com")
    if not subject.probe:
        raise ConfigError("the value must have a letter or a digit of ASCII, by which it is looked for; use an id")
    return subject
