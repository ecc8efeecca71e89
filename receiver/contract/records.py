"""Records: a product, an order, a customer, a subscription, as a store gave them. Standard library only.

A record is the store's own JSON object and keeps every field of it, known or not: `to_json()` gives back what
came. Beside that it has the few fields everybody needs by our names, money as Decimal. Where a store calls a
field otherwise, `names` says so, and config sets it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from receiver.contract.errors import StorehooksError

_ON = frozenset({"true", "yes", "on", "1", "enabled", "active", "live"})
_OFF = frozenset({"false", "no", "off", "0", "disabled", "inactive", "paused", "suspended"})
_AMOUNT = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,18})?")
R = TypeVar("R", bound="Record")


class RecordError(StorehooksError, LookupError):
    """A record lacks a field that was asked for, or holds something else there. Names the field and the fix."""


class Record(Mapping[str, Any]):
    """Any JSON object of a store. `record["field"]` reads by the store's names, properties by ours."""

    kind = "record"

    def __init__(self, raw: Mapping[str, Any], names: Mapping[str, str] | None = None, hint: str = "") -> None:
        self._raw = dict(raw)
        self._names = names or {}
        self._hint = hint

    def to_json(self) -> dict[str, Any]:
        """The object as the store knows it, with every field."""
        return dict(self._raw)

    def replace(self: R, **changes: Any) -> R:
        """The same record with other values, given by our names."""
        changed = {self.field_name(name): as_json(value) for name, value in changes.items()}
        return type(self)({**self._raw, **changed}, self._names, self._hint)

    def field_name(self, name: str) -> str:
        return self._names.get(name, name)

    @property
    def id(self) -> int | str:
        value: int | str = self.value("id")
        return value

    def value(self, name: str) -> Any:
        """The field of our name, or RecordError with what to set."""
        theirs = self.field_name(name)
        if theirs in self._raw:
            return self._raw[theirs]
        fix = f'; if it has another name there, set {self._hint} = {{{name} = "..."}}' if self._hint else ""
        raise RecordError(f"this {self.kind} has no field {theirs!r}, it has {', '.join(map(str, self._raw))}{fix}")

    def amount(self, name: str) -> Decimal:
        """Money: a Decimal from a string of digits, or from a JSON number that was read exactly."""
        value = self.value(name)
        if isinstance(value, str) and _AMOUNT.fullmatch(value):
            return Decimal(value)
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            return Decimal(value)
        if isinstance(value, float):
            return Decimal(repr(value))
        raise RecordError(f"{self.field_name(name)} of this {self.kind} is no amount of money")

    def switch(self, name: str) -> bool:
        """Whether something is on: true or false, or a word that can only mean one of them."""
        value = self.value(name)
        word = str(value).lower() if isinstance(value, bool | int | str) else ""
        if word not in _ON | _OFF:
            raise RecordError(f"{self.field_name(name)} of this {self.kind} says neither on nor off")
        return word in _ON

    def __getitem__(self, name: str) -> Any:
        return self._raw[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self.kind == other.kind and self._raw == other._raw

    def __hash__(self) -> int:
        return hash((self.kind, str(self._raw.get(self.field_name("id")))))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._raw.get(self.field_name('id'))!r})"


class Product(Record):
    """`id`, `name` and `price` are documented, the rest is assumed."""

    kind = "product"

    @property
    def name(self) -> str:
        return str(self.value("name"))

    @property
    def price(self) -> Decimal:
        return self.amount("price")


class OrderLine(Record):
    """One line of an order."""

    kind = "line"

    @property
    def product_id(self) -> int | str:
        found: int | str = self.value("product_id")
        return found

    @property
    def quantity(self) -> int:
        return int(self.value("quantity"))

    @property
    def price(self) -> Decimal:
        return self.amount("price")


class Customer(Record):
    kind = "customer"

    @property
    def name(self) -> str:
        return str(self.value("name"))

    @property
    def email(self) -> str:
        return str(self.value("email"))

    @property
    def metadata(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.value("metadata")
        return found


class Order(Record):
    kind = "order"

    @property
    def status(self) -> str:
        return str(self.value("status"))

    @property
    def total(self) -> Decimal:
        return self.amount("total")

    @property
    def lines(self) -> tuple[OrderLine, ...]:
        return tuple(OrderLine(line) for line in self.value("lines"))

    @property
    def customer(self) -> Customer | None:
        """Who bought; None where the store names nobody."""
        raw = self.value("customer")
        return Customer(raw) if isinstance(raw, Mapping) else None


class Subscription(Record):
    """A webhook subscription at a store."""

    kind = "subscription"

    @property
    def topic(self) -> str:
        return str(self.value("topic"))

    @property
    def url(self) -> str:
        return str(self.value("url"))

    @property
    def enabled(self) -> bool:
        return self.switch("enabled")

    @property
    def secret(self) -> str:
        return str(self.value("secret"))


KINDS: dict[str, type[Record]] = {one.kind: one for one in (Product, Order, Customer, Subscription)}


def make(kind: str, raw: Mapping[str, Any], names: Mapping[str, str] | None = None, hint: str = "") -> Record:
    """The record of a kind; what has no class of its own is a Record."""
    return KINDS.get(kind, Record)(raw, names, hint)


def record_of(topic: str, data: Any, names: Mapping[str, str] | None = None) -> Record | None:
    """The record in an event's data, by its topic; None where the data is no object."""
    return make(topic.partition(".")[0], data, names) if isinstance(data, Mapping) else None


def as_json(value: Any) -> Any:
    """A value as the API carries it: money is text, a record its object."""
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.to_json() if isinstance(value, Record) else value
