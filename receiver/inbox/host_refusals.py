"""Host refusals: the sum of the refused deliveries that each host stores, as its receiver reports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson
from redis import Redis

from receiver.inbox import keys
from receiver.inbox.redis.connecting import server_ms

MAX_STORES = 200


@dataclass(frozen=True)
class RefusedOfStore:
    """The refused deliveries of one store at one host; "?" is all stores that are not configured."""

    store: str
    reasons: Mapping[str, int]
    with_body: int
    first: datetime
    last: datetime


@dataclass(frozen=True)
class RefusedAtHost:
    at: datetime
    """When it was reported, by the server's clock."""
    stores: tuple[RefusedOfStore, ...]
    """Those with the most refusals, at most MAX_STORES."""

    @property
    def total(self) -> int:
        return sum(sum(one.reasons.values()) for one in self.stores)


def publish_refusals(client: Redis, host: str, stores: Iterable[tuple[Any, ...]]) -> None:
    """Publish what a host has stored, for each store: name, reasons, how many have a body, first and last time (s)."""
    listed = list(islice(stores, MAX_STORES))
    if listed:
        client.hset(keys.REFUSALS, host, orjson.dumps({"at": server_ms(client) / 1000, "stores": listed}))
    else:
        client.hdel(keys.REFUSALS, host)


def refusals_of_hosts(client: Redis) -> dict[str, RefusedAtHost]:
    """What each host has reported. A report that cannot be read is left out."""
    found: Any = client.hgetall(keys.REFUSALS)
    read = {keys.host_name(host): _report(text) for host, text in found.items()}
    return {host: one for host, one in sorted(read.items()) if one}


def _report(text: bytes) -> RefusedAtHost | None:
    try:
        fields = orjson.loads(text)
        stores = tuple(
            RefusedOfStore(store, dict(reasons), int(with_body), _moment(first), _moment(last))
            for store, reasons, with_body, first, last in fields["stores"]
        )
        return RefusedAtHost(_moment(fields["at"]), stores)
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return None


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
