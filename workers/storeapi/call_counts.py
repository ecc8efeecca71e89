"""Call counts: how many calls each store's API has answered with which status, in Redis."""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from workers.storeapi import keys

NO_ANSWER, OTHER = "none", "other"
_KNOWN = frozenset(map(int, HTTPStatus))


class CallCounts:
    """The counts of one store. Without Redis, nothing is counted."""

    def __init__(self, redis: Redis | None, store: str) -> None:
        self._redis, self._store = redis, store

    def add(self, status: int | None) -> None:
        """Count a call by its status; None if there was no answer. A store cannot make names of its own."""
        name = NO_ANSWER if status is None else str(status) if status in _KNOWN else OTHER
        if self._redis is not None:
            with suppress(RedisError):  # only a note: without Redis the caller still gets the response
                self._redis.hincrby(keys.CALLS, f"{self._store}|{name}", 1)


def calls_by_status(redis: Redis) -> dict[tuple[str, str], int]:
    fields: Any = redis.hgetall(keys.CALLS)
    found = {}
    for name, number in fields.items():
        store, _, status = name.decode("utf-8", "replace").partition("|")
        if number.isdigit():
            found[store, status] = int(number)
    return found
