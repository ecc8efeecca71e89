"""Store: the scheme, secrets and domain of one sender, and the search for the store that a delivery names."""

from __future__ import annotations

import secrets as entropy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from receiver.contract.signing.grammar import Part
from receiver.contract.signing.signatures import STANDARD_WEBHOOKS, Headers, Scheme, Secret, read_part

MAX_DOMAIN = 255
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

    @cached_property
    def normalised_domain(self) -> str:
        return _normalise(self.domain)


def decoy() -> Store:
    """Return a store with a random secret. It is used for an unknown store, so that the answer takes as long."""
    return Store(name="?", scheme=STANDARD_WEBHOOKS, secrets=(Secret(entropy.token_bytes(24)),))


class StoreIndex:
    """Finds the store that a delivery to `POST /webhooks` names. Built once for each config."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores: dict[tuple[Part, str], Store] = {}
        self._parts: dict[Part, None] = {}
        for store in stores.values():
            if store.normalised_domain:
                for part in store.scheme.event.parts["store"]:
                    self._parts[part] = None
                    self._stores.setdefault((part, store.normalised_domain), store)

    def find(self, headers: Headers, body: bytes) -> Store | None:
        """Return the store that is named, or None. The delivery must still be verified with that store's secrets.

        Headers are read first. The body is parsed only if some scheme names its store in the body.
        """
        document: Any = None
        for kind in ("header", "json"):
            parts = [part for part in self._parts if part[0] == kind]
            if parts and kind == "json":
                document = _parse(body)
            for part in parts:
                domain = _normalise(read_part(part, headers, document))
                if domain and (store := self._stores.get((part, domain))):
                    return store
        return None


def names_another_store(store: Store, headers: Headers, document: Any) -> bool:
    """Whether the delivery names a store, and never this one. One source that names this store is enough."""
    if not store.normalised_domain:
        return False
    named = [_normalise(read_part(part, headers, document)) for part in store.scheme.event.parts["store"]]
    return any(named) and store.normalised_domain not in named


def _parse(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _normalise(value: Any) -> str:
    """Return one form for `https://Shop.example/` and `shop.example`; a number becomes its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > MAX_DOMAIN:
        return ""
    return value.strip().lower().removeprefix("https://").removeprefix("http://").rstrip("/")
