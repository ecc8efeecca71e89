"""Store: one sender of deliveries, as the receiver needs to know it; and which one a delivery names."""

from __future__ import annotations

import secrets as entropy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from receiver.contract.signing.grammar import Part
from receiver.contract.signing.signatures import STANDARD_WEBHOOKS, Headers, Scheme, Secret, read_part

MAX_CLAIM = 255


@dataclass(frozen=True)
class Store:
    name: str
    scheme: Scheme
    secrets: tuple[Secret, ...] = field(repr=False)
    url: str = ""
    """What the store was told to send to; part of the signed content in some schemes."""
    domain: str = ""
    """What the store calls itself at its scheme's `store` sources: a domain, a shop's id."""

    @cached_property
    def claim(self) -> str:
        return _as_claim(self.domain)


def decoy() -> Store:
    """Stands in for a store nobody configured, so that an unknown name costs the same work."""
    return Store(name="?", scheme=STANDARD_WEBHOOKS, secrets=(Secret(entropy.token_bytes(24)),))


class StoreIndex:
    """Finds the store that a delivery to the shared URL names. Built once for a config, asked often."""

    def __init__(self, stores: Mapping[str, Store] | Iterable[Store]) -> None:
        every = stores.values() if isinstance(stores, Mapping) else stores
        self._stores: dict[tuple[Part, str], Store] = {}
        self._parts: dict[Part, None] = {}
        for store in every:
            if store.claim:
                for part in store.scheme.event.parts["store"]:
                    self._parts[part] = None
                    self._stores.setdefault((part, store.claim), store)

    def find(self, headers: Headers, body: bytes) -> Store | None:
        """The store that is named, or None. Nothing is verified yet: whoever is found must still fit.

        Headers are looked at first; the body is parsed only where some store is named in bodies.
        """
        document: Any = None
        for kind in ("header", "json"):
            parts = [part for part in self._parts if part[0] == kind]
            if parts and kind == "json":
                document = _parse(body)
            for part in parts:
                claim = _as_claim(read_part(part, headers, document))
                if claim and (store := self._stores.get((part, claim))):
                    return store
        return None


def find_store(headers: Headers, body: bytes, stores: Mapping[str, Store] | Iterable[Store]) -> Store | None:
    """The store that a delivery to `POST /webhooks` names, or None; see StoreIndex for many deliveries."""
    return StoreIndex(stores).find(headers, body)


def claims_another_store(store: Store, headers: Headers, document: Any) -> bool:
    """Whether the delivery names a store, and not this one. Naming it in one of the places is enough."""
    if not store.claim:
        return False
    claims = [_as_claim(read_part(part, headers, document)) for part in store.scheme.event.parts["store"]]
    return any(claims) and store.claim not in claims


def _parse(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _as_claim(value: Any) -> str:
    """`https://Shop.example/` and `shop.example` are one name; a number is its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > MAX_CLAIM:
        return ""
    return value.strip().lower().removeprefix("https://").removeprefix("http://").rstrip("/")
