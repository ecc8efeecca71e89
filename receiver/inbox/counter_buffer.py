"""Counter buffer: counts in the process and writes once a second, so that a forged request costs no write."""

from __future__ import annotations

from collections import Counter

from redis import Redis
from redis.exceptions import RedisError

from receiver.inbox import keys
from receiver.logs import PeriodicCounts

FLUSH_EVERY = 1.0


class CounterBuffer(PeriodicCounts[str]):
    """Counters of stores. The names are a closed set: configured stores, `?`, and our own words."""

    def __init__(self, client: Redis) -> None:
        super().__init__(every=FLUSH_EVERY)
        self._client = client

    def add(self, store: str, *names: str, number: int = 1) -> None:
        self._count({f"{name}|{store}": number for name in names})

    def _write(self, counts: Counter[str]) -> bool:
        pipeline = self._client.pipeline(transaction=True)
        for name, value in counts.items():
            pipeline.hincrby(keys.COUNTERS, name, value)
        try:
            self._client.ping()  # a server that hangs would execute each try when it goes on
            replies = pipeline.execute(raise_on_error=False)
        except RedisError:
            return False
        for name, reply in zip(list(counts), replies, strict=True):
            if not isinstance(reply, RedisError):  # a damaged field keeps its own count waiting, and no other
                del counts[name]
        return not counts
