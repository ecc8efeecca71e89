"""Store: the scheme, secrets and domain of one sender, and the search for the store that a delivery names."""

from __future__ import annotations

import hashlib
import re
import secrets as entropy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from receiver.contract.event import form_fields
from receiver.contract.signing.signatures import STANDARD_WEBHOOKS, Headers, Scheme, Secret, read_part
from receiver.contract.signing.sources import Part

MAX_DOMAIN = 255
MAX_CANDIDATES = 4
"""Stores that a delivery to `POST /webhooks` may name. Its signature is tried with the secrets of these."""
MAX_SCANNED = 256
"""Places in a body where a store's name is looked for, at all sources together. Half are the first ones, half the
last ones: a sender writes its own name before its data or after it, and the data may have the same key often."""
MIN_SCANNED = 32
"""Places for one source, however many there are for the sources before it."""
MAX_PLACE = 512
"""Bytes that are looked at in each place."""
_BLANKS = rb"[ \t\r\n]{0,64}+"
_SCALAR = rb'(?:"[^"\0]++(?<!\\)"|[0-9]{1,20}+(?=[\] \t\r\n,}]))'
_VALUES = re.compile(rb"\0%b:%b(%b)" % (_BLANKS, _BLANKS, _SCALAR))
_LISTS = re.compile(rb"\0%b:((?:[\[ \t\r\n,]{0,64}+%b){1,16}+)" % (_BLANKS, _SCALAR))
_IN_LIST = re.compile(rb'"[^"]++"|[0-9]++')
UNKNOWN_STORE = "?"
"""The label of a delivery whose store is not configured. Not a valid name for one."""


@dataclass(frozen=True)
class Store:
    """One store, with all that verification needs."""

    name: str
    scheme: Scheme
    secrets: tuple[Secret, ...] = field(repr=False)
    url: str = ""
    """The URL that the store sends to. Some schemes sign it."""
    domain: str = ""
    """The name that the store sends at its scheme's `store` sources: a domain or a shop id."""
    redact: tuple[str, ...] = ()
    """The paths into the data of its events whose values are not stored."""

    @cached_property
    def normalised_domain(self) -> str:
        return _normalise(self.domain)


class NamedStore(NamedTuple):
    """A store that a delivery names."""

    store: Store
    is_known: bool
    """If not, no store has this name: `store` is the one whose work is imitated, so that timing does not show it."""


class StoreIndex:
    """Finds stores by name or by what a delivery to `POST /webhooks` names. Built once for each config.

    An unknown name is given one of the stores that could have had it. The choice is the same in every process and
    cannot be computed without `key`. It changes for few names when a store is added.
    """

    def __init__(self, stores: Mapping[str, Store], key: bytes = b"") -> None:
        self._key = key
        self._by_name = stores
        self._by_part: dict[Part, dict[str, Store]] = {}
        for store in stores.values():
            if store.normalised_domain:
                for part in store.scheme.event.parts["store"]:
                    self._by_part.setdefault(part, {}).setdefault(store.normalised_domain, store)
        self._alike = {part: sorted(found.values(), key=_kind) for part, found in self._by_part.items()}
        self._all = sorted(stores.values(), key=_kind) or [_no_store()]

    def by_name(self, name: str) -> NamedStore:
        return self._named(self._by_name.get(name), name, None)

    def find(self, headers: Headers, body: bytes) -> Store | None:
        """Return the store that is named, or None. The delivery must still be verified with that store's secrets."""
        return next((one.store for one in self.candidates(headers, body) if one.is_known), None)

    def find_parsed(self, headers: Headers, document: Any) -> Store | None:
        """The same, wherever the body of a delivery names the store: also beyond the places that are scanned."""
        named = ((stores, read_part(part, headers, document)) for part, stores in self._by_part.items())
        return next((store for stores, name in named if (store := stores.get(_normalise(name)))), None)

    def candidates(self, headers: Headers, body: bytes) -> list[NamedStore]:
        """The stores that a delivery may name, known ones first: at least one, at most MAX_CANDIDATES.

        It is not verified yet, so the body is not parsed but scanned, for a bounded time. A name in the wrong place is
        found, too: whether the delivery names its store is checked when it is read. The number of candidates depends
        on how many names there are, not on which of them are known.
        """
        named = [*dict.fromkeys(self._names(headers, body))]
        named.sort(key=lambda one: one[1] not in self._by_part[one[0]])
        found = [self._named(self._by_part[part].get(name), name, part) for part, name in named[:MAX_CANDIDATES]]
        return found or [self._named(None, "", None)]

    def _names(self, headers: Headers, body: bytes) -> Iterator[tuple[Part, str]]:
        """What a delivery has at the sources of its store's name, or may have."""
        left = MAX_SCANNED
        form = _some_fields(body) if any(kind == "form" for kind, _ in self._by_part) else {}
        for part in self._by_part:
            kind, name = part
            if kind == "header":
                values: Iterable[Any] = [headers.get(name)]
            elif kind == "form":
                values = [form.get(name)]
            else:
                *_, key = ["", *(step for step in name.split(".") if not step.isdigit())]
                in_list = name.rpartition(".")[2].isdigit()
                most = MIN_SCANNED if in_list else max(left, MIN_SCANNED)
                places = _after(b'"%b"' % key.encode(), body, most // 2)
                left -= len(places)
                values = _read([*dict.fromkeys(_scan(places, in_list))])
            yield from ((part, domain) for domain in map(_normalise, values) if domain)

    def _named(self, known: Store | None, name: str, part: Part | None) -> NamedStore:
        """A known name is hashed as well: for a small delivery, the time of one hash would show the difference."""
        alike = self._alike[part] if part else self._all
        hashed = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8)
        imitated = alike[int.from_bytes(hashed.digest()) * len(alike) >> 64]
        return NamedStore(imitated, False) if known is None else NamedStore(known, True)


def _kind(store: Store) -> tuple[str, int, str]:
    """Sorts stores that cost equal work beside one another."""
    return store.scheme.name, len(store.secrets), store.name


def _no_store() -> Store:
    """Used for every delivery where no store is configured."""
    return Store(name=UNKNOWN_STORE, scheme=STANDARD_WEBHOOKS, secrets=(Secret(entropy.token_bytes(24)),))


def names_another_store(store: Store, headers: Headers, document: Any) -> bool:
    """Whether the delivery names a store, and never this one. One source that names this store is enough."""
    if not store.normalised_domain:
        return False
    named = [_normalise(read_part(part, headers, document)) for part in store.scheme.event.parts["store"]]
    return any(named) and store.normalised_domain not in named


def _after(key: bytes, body: bytes, most: int) -> list[bytes]:
    """What follows a key, the first times and the last times that it is there."""
    between, *last = body.rsplit(key, most)
    return [*between.split(key, most)[1:], *last] if len(last) == most else last


def _some_fields(body: bytes) -> dict[str, str]:
    """The first and the last fields of a form, without long ones."""
    places = _after(b"&", b"&" + body, MAX_SCANNED // 4)
    return form_fields(b"&".join(place for place in places if len(place) <= MAX_PLACE)) or {}


def _scan(places: Sequence[bytes], in_list: bool) -> list[bytes]:
    """The texts and integers after a key, or in a list there, in a JSON document that may be malformed."""
    text = b"\0".join([b"", *(place[:MAX_PLACE] for place in places)])
    if text.count(b"\0") > len(places):  # no JSON has a zero byte
        return []
    return _IN_LIST.findall(b",".join(_LISTS.findall(text))) if in_list else _VALUES.findall(text)


def _read(scalars: Sequence[bytes]) -> list[Any]:
    """Their values. If one is malformed, only `\\/` is decoded in each: finding out which one it is would take long."""
    try:
        return list(orjson.loads(b"[%b]" % b",".join(scalars)))
    except orjson.JSONDecodeError:
        return [one.decode("utf-8", "replace").strip('"').replace("\\/", "/") for one in scalars]


def _normalise(value: Any) -> str:
    """Return one form for `https://Shop.example/` and `shop.example`; a number becomes its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > MAX_DOMAIN:
        return ""
    return value.strip().lower().removeprefix("https://").removeprefix("http://").rstrip("/")
