"""Records: a store's products, orders, customers and subscriptions. Standard library only.

A record wraps the store's JSON object with all its fields. Its properties give the common fields the same name and
type for every store, with money as Decimal. For records of the API client, the config can map other field names.
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
    """A record has no such field, or its value has the wrong type. The message names the field and the fix."""


class Record(Mapping[str, Any]):
    """A JSON object of a store, as a read-only mapping with typed properties.

    `record["field"]` reads a field by the store's own name. Properties such as `order.total` have the same name and
    type for every store. A property whose field is missing raises RecordError; `record.get("field")` returns None.
    Two records are equal if their JSON is equal.
    """

    kind = "record"
    """What the record is: product, order, customer, line or subscription."""

    def __init__(self, raw: Mapping[str, Any], names: Mapping[str, str] | None = None, hint: str = "") -> None:
        self._raw = dict(raw)
        self._names = names or {}
        self._hint = hint

    def to_json(self) -> dict[str, Any]:
        """Return the store's JSON object with all its fields."""
        return dict(self._raw)

    def replace(self: R, **changes: Any) -> R:
        """Return a copy with other values, given by property names: `product.replace(price=Decimal("9.90"))`."""
        changed = {self.field_name(name): as_json(value) for name, value in changes.items()}
        return type(self)({**self._raw, **changed}, self._names, self._hint)

    def field_name(self, name: str) -> str:
        """Return the store's own name of a property's field."""
        return self._names.get(name, name)

    @property
    def id(self) -> int | str:
        """The store's id of the record."""
        value: int | str = self.value("id")
        return value

    def value(self, name: str) -> Any:
        """Return the JSON value of a property. RecordError says which config key to set if the field is missing."""
        theirs = self.field_name(name)
        if theirs in self._raw:
            return self._raw[theirs]
        fix = f'; if the store uses another name, set {self._hint} = {{{name} = "..."}}' if self._hint else ""
        raise RecordError(
            f"this {self.kind} has no field {theirs!r}; its fields are {', '.join(map(str, self._raw))}{fix}"
        )

    def amount(self, name: str) -> Decimal:
        """Return an amount of money as an exact Decimal, from text (`"19.90"`) or a JSON number."""
        value = self.value(name)
        if isinstance(value, str) and _AMOUNT.fullmatch(value):
            return Decimal(value)
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            return Decimal(value)
        if isinstance(value, float):
            return Decimal(repr(value))
        raise RecordError(f"{self.field_name(name)} of this {self.kind} is not an amount of money")

    def flag(self, name: str) -> bool:
        """Return a flag as a bool, from true or false or an unambiguous word such as "enabled"."""
        value = self.value(name)
        word = str(value).lower() if isinstance(value, bool | int | str) else ""
        if word not in _ON | _OFF:
            raise RecordError(f"{self.field_name(name)} of this {self.kind} is neither true nor false")
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
    """A product. The API document shows its `id`, `name` and `price`; other fields depend on the store."""

    kind = "product"

    @property
    def name(self) -> str:
        """The product's name."""
        return str(self.value("name"))

    @property
    def price(self) -> Decimal:
        """The price, as an exact Decimal."""
        return self.amount("price")


class OrderLine(Record):
    """One line of an order: a product, its quantity and its price."""

    kind = "line"

    @property
    def product_id(self) -> int | str:
        """The id of the product."""
        value: int | str = self.value("product_id")
        return value

    @property
    def quantity(self) -> int:
        """The number of items."""
        return int(self.value("quantity"))

    @property
    def price(self) -> Decimal:
        """The price, as an exact Decimal."""
        return self.amount("price")


class Customer(Record):
    """A customer. The fields are assumed: the API document shows none of them."""

    kind = "customer"

    @property
    def name(self) -> str:
        """The customer's name."""
        return str(self.value("name"))

    @property
    def email(self) -> str:
        """The email address."""
        return str(self.value("email"))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Custom fields of the customer."""
        value: Mapping[str, Any] = self.value("metadata")
        return value


class Order(Record):
    """An order. The fields are assumed: the API document shows none of them."""

    kind = "order"

    @property
    def status(self) -> str:
        """The status as the store names it, such as `paid`."""
        return str(self.value("status"))

    @property
    def total(self) -> Decimal:
        """The total, as an exact Decimal."""
        return self.amount("total")

    @property
    def lines(self) -> tuple[OrderLine, ...]:
        """The lines of the order."""
        return tuple(OrderLine(line) for line in self.value("lines"))

    @property
    def customer(self) -> Customer | None:
        """The buyer; None if the store sends something else than an object, such as an id or null."""
        raw = self.value("customer")
        return Customer(raw) if isinstance(raw, Mapping) else None


class Subscription(Record):
    """A webhook subscription at a store."""

    kind = "subscription"

    @property
    def topic(self) -> str:
        """The store's own name of the topic."""
        return str(self.value("topic"))

    @property
    def url(self) -> str:
        """The URL that the store sends deliveries to."""
        return str(self.value("url"))

    @property
    def enabled(self) -> bool:
        """Whether the store sends deliveries."""
        return self.flag("enabled")

    @property
    def secret(self) -> str:
        """The signing secret."""
        return str(self.value("secret"))


KINDS: dict[str, type[Record]] = {record.kind: record for record in (Product, Order, Customer, Subscription)}


def make(kind: str, raw: Mapping[str, Any], names: Mapping[str, str] | None = None, hint: str = "") -> Record:
    """Return the record of a kind; a plain Record for a kind without a class."""
    return KINDS.get(kind, Record)(raw, names, hint)


def record_of(topic: str, data: Any) -> Record | None:
    """Return the record in an event's data, by its topic; None if the data is not an object."""
    return make(topic.partition(".")[0], data) if isinstance(data, Mapping) else None


def as_json(value: Any) -> Any:
    """Return a value as the API takes it: a Decimal as text, a record as its JSON object."""
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.to_json() if isinstance(value, Record) else value
