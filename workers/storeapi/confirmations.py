"""Confirmations: which operations were called at which store, and which of them have answered 2xx. Stored in Redis."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from workers.storeapi import keys
from workers.storeapi.catalogue import Operation


class Confirmations:
    """The confirmations of one store. The first 2xx confirms an operation, with the method and path of that call."""

    def __init__(self, redis: Redis | None, store: str) -> None:
        self._redis = redis
        self.store = store
        self._confirmed: set[str] = set()
        self._tried: set[str] = set()

    def record_try(self, operation: Operation) -> None:
        """Note that an operation is about to be called. Written once per process, and only if it is not documented."""
        name = self._field(operation)
        if self._redis is not None and name not in self._tried and not operation.documented:
            self._tried.add(name)
            with suppress(RedisError):
                self._redis.hsetnx(keys.TRIED, name, f"{datetime.now(UTC):%Y-%m-%d}")

    def confirm(self, operation: Operation) -> None:
        """Note that an operation answered 2xx. Written once per process; later calls cost nothing."""
        name = self._field(operation)
        if name not in self._confirmed:
            self._confirmed.add(name)
            if self._redis is not None:
                with suppress(RedisError):  # only a note: without Redis the caller still gets the response
                    self._redis.hsetnx(keys.CONFIRMED, name, f"{datetime.now(UTC):%Y-%m-%d}")

    def confirmed_on(self, operation: Operation) -> str:
        """The day of its first 2xx at this store; empty where there was none."""
        name = self._field(operation)
        if self._redis is None:
            return "now" if name in self._confirmed else ""
        found = self._redis.hget(keys.CONFIRMED, name)
        return found.decode() if isinstance(found, bytes) else ""

    def _field(self, operation: Operation) -> str:
        return f"{self.store}|{operation.full_name}|{operation.method} {operation.path}"


def unconfirmed_operations(redis: Redis, stores: Iterable[str]) -> dict[str, list[str]]:
    """By store, the undocumented operations that were called there and have never answered 2xx."""
    every: Any = set(redis.hkeys(keys.TRIED)) - set(redis.hkeys(keys.CONFIRMED))
    found: dict[str, list[str]] = {store: [] for store in stores}
    for name in sorted(field.decode() for field in every):
        store, operation, _ = name.split("|", 2)
        if store in found:
            found[store].append(operation)
    return found


def state_text(operation: Operation, confirmed_on: str, store: str) -> str:
    """documented, assumed, overridden or added; or confirmed, with the day and the store."""
    return f"confirmed {confirmed_on} at {store}" if confirmed_on else operation.state
