"""Refusal counts: counted in the process and written once a second, so that a forged request costs no write."""

from __future__ import annotations

import atexit
import threading
from collections import Counter

from redis import Redis
from redis.exceptions import RedisError

from receiver.contract.errors import Reason
from receiver.inbox import keys

FLUSH_EVERY = 1.0


class RefusalCounts:
    """Refusals by store and reason. The labels are a closed set: configured stores, `?`, and our own reasons."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        atexit.register(self.flush)

    def refused(self, store: str, reason: Reason) -> None:
        with self._lock:
            self._counts.update((f"refused|{store}", f"refused:{reason}|{store}"))
            self._start_timer()

    def flush(self) -> None:
        """Write the counts. Counts that cannot be written stay for the next flush."""
        with self._lock:
            counts, self._counts, self._timer = self._counts, Counter(), None
        if not counts:
            return
        pipeline = self._client.pipeline(transaction=True)
        for name, value in counts.items():
            pipeline.hincrby(keys.COUNTERS, name, value)
        try:
            pipeline.execute()
        except RedisError:
            with self._lock:
                self._counts += counts

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(FLUSH_EVERY, self._flush_until_written)
            self._timer.daemon = True
            self._timer.start()

    def _flush_until_written(self) -> None:
        """Not part of `flush`: a process that ends starts no thread."""
        self.flush()
        with self._lock:
            if self._counts:
                self._start_timer()
