"""Confirmed: which operations were tried at which store, which have answered, and since when.

Kept in Redis, where there is one.
"""

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
    """One store's. An operation is confirmed by its first 2xx, under the method and path it was called by."""

    def __init__(self, redis: Redis | None, store: str) -> None:
        self._redis = redis
        self.store = store
        self._added: set[str] = set()
        self._tried: set[str] = set()

    def tried(self, operation: Operation) -> None:
        """It is about to be asked for. Written once in each process, and only of what is not known for sure."""
        name = self._field(operation)
        if self._redis is not None and name not in self._tried and not operation.documented:
            self._tried.add(name)
            with suppress(RedisError):
                self._redis.hsetnx(keys.TRIED, name, f"{datetime.now(UTC):%Y-%m-%d}")

    def add(self, operation: Operation) -> None:
        """Written once in each process; calls after that cost nothing."""
        name = self._field(operation)
        if name not in self._added:
            self._added.add(name)
            if self._redis is not None:
                with suppress(RedisError):  # only a note: the answer that came with it must not be lost for it
                    self._redis.hsetnx(keys.CONFIRMED, name, f"{datetime.now(UTC):%Y-%m-%d}")

    def confirmed_on(self, operation: Operation) -> str:
        """The day it first answered here; empty where it never did."""
        name = self._field(operation)
        if self._redis is None:
            return "now" if name in self._added else ""
        found = self._redis.hget(keys.CONFIRMED, name)
        return found.decode() if isinstance(found, bytes) else ""

    def _field(self, operation: Operation) -> str:
        return f"{self.store}|{operation.full_name}|{operation.method} {operation.path}"


def unconfirmed_operations(redis: Redis, stores: Iterable[str]) -> dict[str, list[str]]:
    """By store, the operations that were tried there, are not documented, and have never answered."""
    every: Any = set(redis.hkeys(keys.TRIED)) - set(redis.hkeys(keys.CONFIRMED))
    found: dict[str, list[str]] = {store: [] for store in stores}
    for name in sorted(field.decode() for field in every):
        store, operation, _ = name.split("|", 2)
        if store in found:
            found[store].append(operation)
    return found


def state_text(operation: Operation, since: str, store: str) -> str:
    """documented, assumed, overridden or added; or confirmed, with the day and the store."""
    return f"confirmed {since} at {store}" if since else operation.state
