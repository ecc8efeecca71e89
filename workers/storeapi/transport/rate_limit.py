"""Rate limit: every call to a store takes a slot first, in all processes together."""

from __future__ import annotations

import math
import threading
import time
from typing import Protocol

from redis import Redis

from workers.storeapi import keys

_MICROSECONDS = 1_000_000
SLACK = 0.05
"""The share of the rate that stays unused, because calls that leave evenly do not arrive evenly. It is also how many
seconds a slot stays valid: a call that wakes up later takes another."""
ALL_STORES = ""
"""The name of the rate limit that the calls to every store share. No store has this name."""


class RateLimiter(Protocol):
    def take_slot(self, max_wait: float) -> float:
        """Take the next slot; return the seconds to wait for it. Negative: the wait would be longer than `max_wait`,
        and no slot was taken."""

    def pause(self, seconds: float) -> None:
        """Give no slot before this time has passed: the store asked for a pause."""


def burst_size(rate: float) -> int:
    """Number of calls that may come at once: a tenth of a second's worth, and at least one."""
    return max(1, math.floor(rate / 10))


def call_interval(rate: float) -> float:
    """Seconds between calls that come evenly. The burst and the slack are subtracted from the rate, so that no window
    of one second has more than `rate` calls."""
    return 1 / (rate * (1 - SLACK) - (burst_size(rate) - 1)) if rate else 0.0


class SharedRateLimiter:
    """A rate limit in Redis, shared by all processes of all machines."""

    def __init__(self, redis: Redis, store: str, rate: float) -> None:
        self._redis = redis
        self._keys = keys.rate_limit_keys(store)
        self._interval = math.ceil(call_interval(rate) * _MICROSECONDS)
        self._burst = burst_size(rate)

    def take_slot(self, max_wait: float) -> float:
        return self._run(max_wait, 0.0) / _MICROSECONDS

    def pause(self, seconds: float) -> None:
        self._run(0.0, seconds)

    def _run(self, max_wait: float, pause: float) -> int:
        arguments = (self._interval, self._burst, int(max_wait * _MICROSECONDS), int(pause * _MICROSECONDS))
        return int(keys.run_script(self._redis, "take_slot", self._keys, *arguments))


class LocalRateLimiter:
    """A rate limit of one process, without Redis."""

    def __init__(self, rate: float) -> None:
        self._interval = call_interval(rate)
        self._ahead = (burst_size(rate) - 1) * self._interval
        self._next_due = self._paused_until = 0.0
        self._lock = threading.Lock()

    def take_slot(self, max_wait: float) -> float:
        with self._lock:
            now = time.monotonic()
            at = max(self._next_due, self._paused_until, now)
            wait = max(at - self._ahead, self._paused_until, now) - now
            if wait > max_wait:
                return -wait
            self._next_due = at + self._interval if self._interval else self._next_due
            return wait

    def pause(self, seconds: float) -> None:
        with self._lock:
            self._paused_until = max(self._paused_until, time.monotonic() + seconds)
