"""Store lock: one process at a time changes the subscriptions of a store.

The lock in Redis is short, because a check must soon repair what a process that was killed has left undone. A thread
extends it: for longer than the slowest call to the store takes, counted from the last change.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from contextlib import suppress

from redis import Redis
from redis.exceptions import RedisError

from receiver.contract.errors import StorehooksError
from receiver.inbox import keys
from receiver.inbox.redis import script_runner

LOCK_MS = 20_000
OWNER_MS = 180_000
"""How long a lock is kept after it was extended, and how long after an outage its owner may take it again."""
KEEP_EVERY = 5.0
POLL_SECONDS = 0.1


class StoreLocked(StorehooksError):
    """Another process is changing the store's subscriptions."""


class StoreLock:
    def __init__(self, client: Redis, store: str) -> None:
        self._client, self._store, self._token = client, store, secrets.token_hex(8)
        self._keep_until = 0.0
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lock {store}", daemon=True)

    def take(self, *, within: float) -> None:
        """Raises StoreLocked if that fails for `within` seconds."""
        until = time.monotonic() + within
        while not self._run("take"):
            left = self._seconds_left()
            if time.monotonic() >= until:
                raise StoreLocked(
                    f"{self._store}: another process is changing its subscriptions; "
                    f"try again when it has ended, or if it was killed, in {left} s"
                )
            time.sleep(POLL_SECONDS)
        self._keep_until = time.monotonic() + OWNER_MS / 1000
        self._thread.start()

    def extend(self) -> None:
        """Call it before each change. Raises StoreLocked if another process has the lock, or has had it since."""
        if not self._run("extend"):
            raise StoreLocked(
                f"{self._store}: this took too long, and the lock on its subscriptions has expired; try again"
            )
        self._keep_until = time.monotonic() + OWNER_MS / 1000

    def release(self) -> None:
        self._released.set()
        if self._thread.ident:
            self._thread.join()
        self._run("release")

    def _keep(self) -> None:
        while not self._released.wait(KEEP_EVERY):
            if time.monotonic() < self._keep_until:
                with suppress(RedisError):  # the owner takes the lock again after an outage, or finds that it is lost
                    self._run("extend")

    def _seconds_left(self) -> int:
        """Until a lock that no process keeps expires."""
        name = keys.CHECK_LOCK + self._store
        left_ms = int(self._client.pttl(name))
        if left_ms > OWNER_MS:  # the clock was set back, and its owner may be dead
            left_ms = LOCK_MS
            self._client.pexpire(name, left_ms)
        return max(1, math.ceil(left_ms / 1000))

    def _run(self, action: str) -> bool:
        arguments = (action, self._store, self._token, LOCK_MS, OWNER_MS)
        return bool(script_runner.run_one(self._client, "lock_store", *arguments))
