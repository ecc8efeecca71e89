"""Record map: where a store's payload holds the standard fields of products, orders and customers.

It is `[schemes.NAME.record]`, as data. `records` reads by it; `send`, the sandbox and the test kit write by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Any, Literal

Paths = str | tuple[str, ...]
"""A path such as `customer.email`, or several that are tried in order; "" if the store does not send the field."""
FIELDS = {
    "product": ("id", "name", "price", "currency"),
    "order": ("id", "status", "total", "currency", "lines", "customer"),
    "customer": ("id", "name", "email", "metadata"),
    "line": ("id", "product_id", "quantity", "price", "currency"),
    "buyer": ("id", "name", "email"),
}
"""The standard fields by table. A line is in `order.lines`; a buyer is `order.customer`, as paths in the order."""
AMOUNTS = ("price", "total")
MISSING: Any = object()
"""What `read` returns for a field that is not there. One that is null is None."""
SAMPLE_CURRENCY = "EUR"
"""The currency of samples in minor units: without one, these say no amount."""

# ISO 4217: currencies without the usual two decimals.
_WITHOUT = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
_THREE = "BHD IQD JOD KWD LYD OMR TND"
_DECIMALS = {
    **dict.fromkeys(_WITHOUT.split(), 0),
    **dict.fromkeys(_THREE.split(), 3),
    "CLF": 4,
    "UYW": 4,
}
_PATH = re.compile(r"[^\s.:]+(\.[^\s.:]+)*")
_CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True)
class RecordMap:
    """For each table of FIELDS, the paths of its fields. A field that is not listed has its own name."""

    fields: Mapping[str, Mapping[str, Paths]] = field(default_factory=dict)
    money: Literal["major", "minor"] = "major"
    """Whether amounts are in the currency's main unit (19.90) or whole numbers of its smallest unit (1990)."""
    decimals: Mapping[str, int] = field(default_factory=dict)
    """The decimals of minor units by currency, where the store differs from ISO 4217."""
    unknown_store: str = ""
    """The store, if this host's config lacks it: neither names nor units are known."""

    def __bool__(self) -> bool:
        return bool(self.fields) or self.money != "major" or bool(self.unknown_store)

    def paths(self, kind: str, name: str) -> tuple[str, ...]:
        given = self.fields.get(kind, {}).get(name, name)
        return tuple(filter(None, (given,) if isinstance(given, str) else given))

    def read(self, kind: str, name: str, raw: Any) -> Any:
        """Return the first value of a field that is not null; None if all are null, MISSING if there is none."""
        found = [value for path in self.paths(kind, name) if (value := _value_at(raw, path)) is not MISSING]
        return next((value for value in found if value is not None), None) if found else MISSING

    def write(self, document: Mapping[str, Any], kind: str, name: str, value: Any, currency: str = "") -> Any:
        """Return the document with a field at its first path; unchanged if the store does not send the field."""
        paths = self.paths(kind, name)
        if not paths:
            return document
        words = paths[0].split(" ")
        if name in AMOUNTS and self.money == "minor":
            value = self._to_minor(value, currency)
        parts = [value] if len(words) == 1 else [*str(value).split(" ", len(words) - 1), *("" for _ in words)]
        for word, part in zip(words, parts, strict=False):
            document = set_at(document, word.split("."), part)
        return document

    def shape(self, kind: str, record: Mapping[str, Any], currency: str = "") -> dict[str, Any]:
        """Return a record with standard field names as this store's payload has it. Other fields stay as they are."""
        names = FIELDS.get(kind, ()) if self else ()
        if kind in ("order", "product"):
            currency = str(record.get("currency") or SAMPLE_CURRENCY)
            if self.money == "minor":
                record = {**record, "currency": currency}
        shaped: Any = {name: value for name, value in record.items() if name not in names}
        for name in (name for name in names if name in record):
            value = record[name]
            if name == "lines" and isinstance(value, list):
                value = [self.shape("line", line, currency) if isinstance(line, Mapping) else line for line in value]
            if name == "customer" and isinstance(value, Mapping):
                if "buyer" in self.fields:
                    for mine in (mine for mine in self.fields["buyer"] if mine in value):
                        shaped = self.write(shaped, "buyer", mine, value[mine])
                    continue
                value = self.shape("customer", value)
            shaped = self.write(shaped, kind, name, value, currency)
        return dict(shaped)

    def decimals_of(self, currency: str) -> int:
        return self.decimals.get(currency, _DECIMALS.get(currency, 2))

    def from_minor(self, value: int | Decimal, currency: str) -> Decimal:
        """Move the decimal point of a whole amount. Exact, whatever precision a handler has set for Decimals."""
        sign, digits, exponent = Decimal(value).as_tuple()
        return Decimal((sign, digits, int(exponent) - self.decimals_of(currency)))

    def _to_minor(self, value: Any, currency: str) -> Any:
        try:
            return int(Decimal(str(value)).scaleb(self.decimals_of(currency.upper())))
        except (InvalidOperation, ValueError, OverflowError):
            return value  # not an amount

    def extended(self, table: Mapping[str, Any]) -> RecordMap:
        """Return this map with the changes of a `[schemes.NAME.record]` table."""
        given = {kind: table[kind] for kind in FIELDS if table.get(kind)}
        fields = {kind: {**self.fields.get(kind, {}), **given.get(kind, {})} for kind in {**self.fields, **given}}
        decimals = {**self.decimals, **table.get("decimals", {})}
        return RecordMap(fields, table.get("money", self.money), decimals)

    def as_table(self) -> dict[str, Any]:
        """The reverse: the table, without what is empty."""
        table: dict[str, Any] = {"money": self.money} if self.money != "major" else {}
        if self.decimals:
            table["decimals"] = dict(self.decimals)
        for kind, names in self.fields.items():
            table[kind] = {name: given if isinstance(given, str) else list(given) for name, given in names.items()}
        return table

    def problems(self) -> Iterator[tuple[str, str]]:
        """Each key that cannot be used, with the fix."""
        for kind, names in self.fields.items():
            for name, given in names.items():
                if name not in FIELDS[kind]:
                    nearest = get_close_matches(name, FIELDS[kind], n=1) or FIELDS[kind]
                    hint = f"did you mean {nearest[0]}?" if len(nearest) == 1 else f"there are {', '.join(nearest)}"
                    yield f"{kind}.{name}", f"unknown field; {hint}"
                for path in (given,) if isinstance(given, str) else given:
                    if fix := self._problem(kind, name, path):
                        yield f"{kind}.{name}", fix
            if self.money == "minor" and not self.paths(kind, "currency") and self._has_amounts(kind):
                yield f"{kind}.currency", 'money = "minor" needs the currency, which says how many decimals there are'
        for currency, decimals in self.decimals.items():
            if not _CURRENCY.fullmatch(currency) or not 0 <= decimals <= 6:
                yield "decimals", f'{currency} = {decimals}: write currency codes and decimals, such as "JPY" = 0'

    def _has_amounts(self, kind: str) -> bool:
        return any(name in FIELDS[kind] and self.paths(kind, name) for name in AMOUNTS)

    def _problem(self, kind: str, name: str, path: str) -> str:
        if path.startswith("json:"):
            return f'{path!r} has a prefix; a path into the data needs none: "{path.removeprefix("json:")}"'
        words = path.split(" ") if path else []
        if len(words) > 1 and name != "name":
            return f"{path!r} joins several fields with a space, which only name may; write one path"
        if not all(_PATH.fullmatch(word) for word in words):
            return f'{path!r} is not a path; write it like "{name}" or "{kind}.{name}"'
        return ""


def set_at(document: Any, steps: Sequence[str], value: Any) -> Any:
    """Return a copy of a JSON document with a value at a path; objects and lists on the way are made."""
    if not steps:
        return value
    step, *rest = steps
    if step.isdigit() and not isinstance(document, Mapping):
        items = list(document) if isinstance(document, list) else []
        at = min(int(step), len(items))
        return [*items[:at], set_at(items[at] if at < len(items) else None, rest, value), *items[at + 1 :]]
    inside = document if isinstance(document, Mapping) else {}
    return {**inside, step: set_at(inside.get(step), rest, value)}


def _value_at(raw: Any, path: str) -> Any:
    """Return the value at a path, or MISSING. Paths with a space between them are joined to one text."""
    words = path.split(" ")
    values = [_follow(raw, word) for word in words]
    if len(words) == 1 or all(value is MISSING for value in values):
        return values[0]
    return " ".join(str(value) for value in values if value not in (MISSING, None, ""))


def _follow(document: Any, path: str) -> Any:
    """`event.follow`, but a field that is not there differs from one that is null."""
    for step in path.split("."):
        if isinstance(document, Mapping):
            document = document.get(step, MISSING)
        elif isinstance(document, list) and step.isascii() and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        else:
            return MISSING
    return document
