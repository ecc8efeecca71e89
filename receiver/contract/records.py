"""Records: a store's products, orders, customers and subscriptions. Standard library only.

A record wraps the store's JSON object with all its fields. Its properties give the common fields the same name and
type for every store, with money as Decimal. The config can map other field names: for events in the scheme of their
store, for the API client in its catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from receiver.contract.errors import ConfigError, StorehooksError
from receiver.contract.record_map import MISSING, RecordMap

_ON = frozenset({"true", "yes", "on", "1", "enabled", "active", "live"})
_OFF = frozenset({"false", "no", "off", "0", "disabled", "inactive", "paused", "suspended"})
_AMOUNT = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,18})?")
_OWN_NAMES = RecordMap()
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

    def __init__(
        self, raw: Mapping[str, Any], record_map: RecordMap | None = None, hint: str = "", currency: str = ""
    ) -> None:
        self._raw = dict(raw)
        self._map = record_map or _OWN_NAMES
        self._hint = hint
        self._currency = currency

    def to_json(self) -> dict[str, Any]:
        """Return the store's JSON object with all its fields."""
        return dict(self._raw)

    def replace(self: R, **changes: Any) -> R:
        """Return a copy with other values, given by property names: `product.replace(price=Decimal("9.90"))`."""
        raw: Mapping[str, Any] = self._raw
        for name, value in changes.items():
            raw = self._map.write(raw, self.kind, name, as_json(value), self._currency_code())
        return type(self)(raw, self._map, self._hint, self._currency)

    def field_name(self, name: str) -> str:
        """Return the store's own name of a property's field, or its path."""
        return next(iter(self._map.paths(self.kind, name)), name)

    @property
    def id(self) -> int | str:
        """The store's id of the record."""
        value: int | str = self.value("id")
        return value

    def value(self, name: str) -> Any:
        """Return the JSON value of a property. RecordError says which config key to set if the field is missing.

        ConfigError says that the store is missing: a plugin may have runs fail for good for a field that is not there.
        """
        if self._map.unknown_store:
            raise ConfigError(
                f"store {self._map.unknown_store} is not in the config of this worker: neither names nor units of its "
                "fields are known; add it on this host and send HUP, or read event.data"
            )
        found = self._map.read(self.kind, name, self._raw)
        if found is not MISSING:
            return found
        if not self._map.paths(self.kind, name):
            raise RecordError(f"this {self.kind} has no {name}: the store's payload does not have it ({self._hint})")
        theirs = self.field_name(name)
        fix = f'; if the store uses another name, set {self._hint} = {{{name} = "..."}}' if self._hint else ""
        raise RecordError(
            f"this {self.kind} has no field {theirs!r}; its fields are {', '.join(map(str, self._raw))}{fix}"
        )

    def text(self, name: str) -> str:
        """Return a property as text. Null is an error: the text "None" would be taken for a name."""
        return str(self._not_null(name))

    def _not_null(self, name: str) -> Any:
        value = self.value(name)
        if value is None:
            raise RecordError(f"{self.field_name(name)} of this {self.kind} is null")
        return value

    def amount(self, name: str) -> Decimal:
        """Return an amount of money as an exact Decimal, from text (`"19.90"`) or a JSON number.

        If the store's amounts are in minor units, 1990 is 19.90 or 1990, by the currency.
        """
        value = self.value(name)
        minor = self._map.money == "minor"
        if isinstance(value, str) and _AMOUNT.fullmatch(value):
            value = Decimal(value)
        elif isinstance(value, float):
            value = Decimal(repr(value))
        is_number = isinstance(value, int | Decimal) and not isinstance(value, bool) and Decimal(value).is_finite()
        if not is_number or (minor and value != int(value)):
            raise RecordError(f"{self.field_name(name)} of this {self.kind} is not an amount of money")
        if not minor:
            return Decimal(value)
        currency = self._currency_code()
        if not currency:
            raise RecordError(
                f"{self.field_name(name)} of this {self.kind} is in minor units, and it has no currency, which says "
                f'how many decimals there are; set {self._hint} = {{currency = "..."}}'
            )
        return self._map.from_minor(value, currency)

    def _currency_code(self) -> str:
        found = self._map.read(self.kind, "currency", self._raw)
        return found.upper() if isinstance(found, str) else self._currency

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
        return hash((self.kind, str(self._map.read(self.kind, "id", self._raw))))

    def __repr__(self) -> str:
        found = self._map.read(self.kind, "id", self._raw)
        return f"{type(self).__name__}({None if found is MISSING else found!r})"


class _WithCurrency(Record):
    @property
    def currency(self) -> str:
        """The currency of the amounts, by its ISO 4217 code: EUR."""
        return self._currency_code() or self.text("currency").upper()


class _WithPrice(_WithCurrency):
    @property
    def price(self) -> Decimal:
        """The price, as an exact Decimal."""
        return self.amount("price")


class Product(_WithPrice):
    """A product. The API document shows its `id`, `name` and `price`; other fields depend on the store."""

    kind = "product"

    @property
    def name(self) -> str:
        """The product's name."""
        return self.text("name")


class OrderLine(_WithPrice):
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
        return int(self._not_null("quantity"))


class Customer(Record):
    """A customer. The fields are assumed: the API document shows none of them."""

    kind = "customer"

    @property
    def name(self) -> str:
        """The customer's name."""
        return self.text("name")

    @property
    def email(self) -> str:
        """The email address."""
        return self.text("email")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Custom fields of the customer."""
        value: Mapping[str, Any] = self.value("metadata")
        return value


class Order(_WithCurrency):
    """An order. The fields are assumed: the API document shows none of them."""

    kind = "order"

    @property
    def status(self) -> str:
        """The status as the store names it, such as `paid`."""
        return self.text("status")

    @property
    def total(self) -> Decimal:
        """The total, as an exact Decimal."""
        return self.amount("total")

    @property
    def lines(self) -> tuple[OrderLine, ...]:
        """The lines of the order. Null is an empty list."""
        lines, currency = self.value("lines"), self._currency_code()
        if lines is None:
            return ()
        if not isinstance(lines, list | tuple) or not all(isinstance(line, Mapping) for line in lines):
            raise RecordError(f"{self.field_name('lines')} of this {self.kind} is not a list of objects")
        return tuple(OrderLine(line, self._map, self._hint_of("line"), currency) for line in lines)

    @property
    def customer(self) -> Customer | None:
        """The buyer; None if it is null or an id. If it is absent: None if the scheme has `buyer`, else RecordError."""
        if names := self._map.fields.get("buyer"):
            values = {name: self._map.read("buyer", name, self._raw) for name in names}
            found = {name: value for name, value in values.items() if value is not MISSING}
            return Customer(found, None, self._hint_of("buyer")) if any(found.values()) else None
        raw = self.value("customer")
        return Customer(raw, self._map, self._hint_of("customer")) if isinstance(raw, Mapping) else None

    def _hint_of(self, part: str) -> str:
        above = self._hint.removesuffix(self.kind)
        return above + part if above != self._hint else ""


class Subscription(Record):
    """A webhook subscription at a store."""

    kind = "subscription"

    @property
    def topic(self) -> str:
        """The store's own name of the topic."""
        return self.text("topic")

    @property
    def url(self) -> str:
        """The URL that the store sends deliveries to."""
        return self.text("url")

    @property
    def enabled(self) -> bool:
        """Whether the store sends deliveries. Always true at a store that has no such field: `enabled = ""`."""
        return self.flag("enabled") if self._map.paths(self.kind, "enabled") else True

    @property
    def secret(self) -> str:
        """The signing secret."""
        return self.text("secret")


KINDS: dict[str, type[Record]] = {record.kind: record for record in (Product, Order, Customer, Subscription)}


def make(kind: str, raw: Mapping[str, Any], record_map: RecordMap | None = None, hint: str = "") -> Record:
    """Return the record of a kind; a plain Record for a kind without a class."""
    return KINDS.get(kind, Record)(raw, record_map, hint)


def record_of(topic: str, data: Any, record_map: RecordMap | None = None) -> Record | None:
    """Return the record in an event's data, by its topic; None if the data is not an object."""
    kind = topic.partition(".")[0]
    return make(kind, data, record_map, f"[schemes.NAME.record] {kind}") if isinstance(data, Mapping) else None


def as_json(value: Any) -> Any:
    """Return a value as the API takes it: a Decimal as text, a record as its JSON object."""
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.to_json() if isinstance(value, Record) else value
