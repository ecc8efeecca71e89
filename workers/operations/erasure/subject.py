"""Subject: the person whose data is erased, and whether an event or a text is about that person. Pure."""

from __future__ import annotations

import hashlib
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
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
"""Characters that every program writes as they are, into JSON and into a form."""
_SHORT = {"\b": b"b", "\f": b"f", "\n": b"n", "\r": b"r", "\t": b"t", '"': b'"', "/": b"/", "\\": rb"\\"}
"""Characters that have a short escape in JSON."""
_BEGINS = rb"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2})|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4}))"
"""No letter or digit is before it, or one that ends an escape."""
_ENDS = rb"(?![A-Za-z0-9])"
_NOT_LONGER = rb"(?<![A-Za-z0-9][.+])(?<![A-Za-z0-9]%2[Bb])", rb"(?!\.[A-Za-z0-9])"
"""An email address that begins with `mary.` or ends with `.au` is another person's."""


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

    def digest(self, salt: str) -> str:
        parts = (salt, self.store, self.by, self.name, self.value)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def is_distinctive(self) -> bool:
        """Whether the value is looked for in any text: an email address, a telephone number, a long id."""
        return "@" in self.value[1:] or (len(self.value) >= LONG_ENOUGH and any(map(str.isdigit, self.value)))

    @cached_property
    def probes(self) -> tuple[bytes, ...]:
        """Texts that everything about the person contains, however it is written as JSON or in a form; the longest
        first."""
        text = self.value
        with suppress(InvalidOperation, ValueError):  # a number may be written in several ways
            text = max(re.findall(r"\d+", f"{Decimal(self.value).normalize():f}"), key=len)
        return tuple(one.encode() for one in sorted(set(_PLAIN.findall(text)), key=lambda one: (-len(one), one)))

    def may_be_in(self, text: bytes) -> bool:
        return all(one in text for one in self.probes)

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
        return self.is_distinctive and self.may_be_in(text) and bool(self._pattern.search(text))

    def replaced_in(self, text: bytes) -> bytes:
        return self._pattern.sub(b"(erased)", text)

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        before, after = _NOT_LONGER if "@" in self.value else (b"", b"")
        return re.compile(_BEGINS + before + b"".join(map(_written, self.value)) + _ENDS + after)


def _written(character: str) -> bytes:
    """A pattern for each way in which a character is written: as it is, escaped in JSON, which may be a text in JSON
    again, or in a form."""
    raw, units = character.encode("utf-8", "surrogatepass"), character.encode("utf-16-be", "surrogatepass")
    pairs = [units[at : at + 2].hex().encode() for at in range(0, len(units), 2)]
    ways = [re.escape(raw), rb"(?i:%s)" % b"".join(rb"\\+u" + one for one in pairs)]
    ways.append(rb"(?i:%s)" % b"".join(b"%%%02x" % one for one in raw))
    if character in _SHORT:
        ways.append(rb"\\+" + _SHORT[character])
    if character == " ":
        ways.append(rb"\+")
    return b"(?:" + b"|".join(ways) + b")"


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
    if not subject.probes:
        raise ConfigError("the value must have a letter or a digit of ASCII, by which it is looked for; use an id")
    return subject
