"""Limiter: the calls of all processes to one store pass one gate, a place at a time."""

from __future__ import annotations

import math
import threading
import time
from typing import Protocol

from redis import Redis

from workers.storeapi import keys

_US = 1_000_000
SLACK = 0.05
"""Calls that leave evenly do not arrive evenly: the part of the rate left unused for those that catch up. It is also
how many seconds a place is good for; who wakes later than that takes another."""
ALL_STORES = ""
"""The gate that the calls to every store pass. No store has this name."""


class Gate(Protocol):
    """Gives places. A negative wait says how long it would have been, and that no place was taken."""

    def place(self, longest: float) -> float: ...

    def hold(self, seconds: float) -> None: ...


def burst_of(rate: float) -> int:
    """How many calls may come at once: a tenth of a second's worth, and at least one."""
    return max(1, math.floor(rate / 10))


def interval_of(rate: float) -> float:
    """Seconds between calls that come evenly. What may come at once is taken off, and what may catch up on the way, so
    that in no second, however it is cut, there are more than `rate`."""
    return 1 / (rate * (1 - SLACK) - (burst_of(rate) - 1)) if rate else 0.0


class SharedGate:
    """The gate in Redis: all processes of all machines share it."""

    def __init__(self, redis: Redis, store: str, rate: float) -> None:
        self._redis = redis
        self._names = keys.gate(store)
        self._interval = math.ceil(interval_of(rate) * _US)
        self._burst = burst_of(rate)

    def place(self, longest: float) -> float:
        """How long to wait for our turn."""
        return self._run(longest, 0.0) / _US

    def hold(self, seconds: float) -> None:
        """The store asked for a pause: nobody calls it for so long."""
        self._run(0.0, seconds)

    def _run(self, longest: float, hold: float) -> int:
        arguments = (self._interval, self._burst, int(longest * _US), int(hold * _US))
        return int(keys.run(self._redis, "gate", self._names, *arguments))


class LocalGate:
    """The same for one process without Redis."""

    def __init__(self, rate: float) -> None:
        self._interval = interval_of(rate)
        self._ahead = (burst_of(rate) - 1) * self._interval
        self._tat = self._held = 0.0
        self._lock = threading.Lock()

    def place(self, longest: float) -> float:
        with self._lock:
            now = time.monotonic()
            at = max(self._tat, self._held, now)
            wait = max(at - self._ahead, self._held, now) - now
            if wait > longest:
                return -wait
            self._tat = at + self._interval if self._interval else self._tat
            return wait

    def hold(self, seconds: float) -> None:
        with self._lock:
            self._held = max(self._held, time.monotonic() + seconds)
