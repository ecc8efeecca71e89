"""Change notice: what a process announces to receivers while it changes a store's secrets.

While a notice is valid, receivers answer 503 instead of 401 for the store. A receiver trusts a notice for
`CHANGE_SECONDS` after it first saw its mark: a process that died must not suspend refusals for ever. A store may need
many calls, and each may be slow. So a thread repeats the notice with a new mark, well before the old one expires.

A notice stays although its change is over if the secrets of some subscriptions may be lost. Then its mark names them.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

from redis.exceptions import RedisError

from receiver.contract.errors import StorehooksError
from receiver.inbox.keyring.change_marks import mark_for, subscriptions_in
from receiver.inbox.keyring.keyring import Keyring
from receiver.inbox.keyring.receiver_versions import LIVE_SECONDS

RECEIVER_SECONDS = LIVE_SECONDS + 3.0
"""How long to wait for receivers. A receiver that was killed no longer counts before this time is over."""
REPEAT_EVERY = 20.0
GIVE_UP_AFTER = 300.0
"""How long a learned secret waits for Redis before its process gives up; it stays in the file of this host. No call to
a store takes as long: a process that has begun none for this long hangs, and its notice is no longer repeated."""
RETRY_EVERY = 0.25
T = TypeVar("T")


class ReceiversBehind(StorehooksError):
    """A receiver does not read the keyring, so nothing was changed at the store."""


class ChangeNotice:
    """Announces that a store's secrets are changing. A thread repeats it until `stop_repeating` or `withdraw`.

    If the process dies, the thread ends with it, and the last mark stays for the next check to find.
    """

    def __init__(self, keyring: Keyring, store: str) -> None:
        self._keyring, self._store = keyring, store
        self._id, self._repeats = secrets.token_hex(4), 0
        self._repeat_until = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name=f"change notice {store}", daemon=True)

    def announce(self) -> int:
        """Send the notice; returns the keyring's version that contains it."""
        self.extend()
        version = retry_redis(lambda: self._keyring.announce_change(self._store, self._next_mark()))
        self._thread.start()
        return version

    def extend(self) -> None:
        """Called before each call to the store. A process that hangs does not, and its notice expires."""
        self._repeat_until = time.monotonic() + GIVE_UP_AFTER

    def stop_repeating(self) -> None:
        """Leave the notice as it is."""
        self._stopped.set()
        self._thread.join()

    def withdraw(self) -> None:
        """Remove the notice, unless another process has announced its own since."""
        self.stop_repeating()
        retry_redis(lambda: self._keyring.withdraw_change(self._store, self._id))

    def leave_for(self, subscriptions: Collection[str], *, found: str | None = None) -> None:
        """Leave the notice for the subscriptions whose secret may be lost; without any, withdraw it.

        `found` is the mark that was there before this notice.
        """
        if not subscriptions:
            self.withdraw()
            return
        self.stop_repeating()
        tried_before = found is not None and subscriptions_in(found) is not None
        mark = mark_for(self._id, 0 if tried_before else self._next_number(), subscriptions)
        retry_redis(lambda: self._keyring.announce_change(self._store, mark, again=True))

    def _repeat(self) -> None:
        pause = REPEAT_EVERY
        while not self._stopped.wait(pause):
            pause = RETRY_EVERY
            with suppress(RedisError):  # receivers cannot read the keyring either; they see it when Redis is back
                if time.monotonic() < self._repeat_until:
                    self._keyring.announce_change(self._store, self._next_mark(), again=True)
                pause = REPEAT_EVERY

    def _next_mark(self) -> str:
        return mark_for(self._id, self._next_number())

    def _next_number(self) -> int:
        self._repeats += 1
        return self._repeats


def wait_for_receivers(keyring: Keyring, version: int) -> list[str]:
    """Wait until every live receiver has read a version; returns the receivers that have not."""
    return retry_redis(lambda: keyring.receivers.wait_for(version, within=RECEIVER_SECONDS))


def require_receivers(keyring: Keyring, store: str, version: int) -> None:
    """Before a secret changes: raise ReceiversBehind unless every live receiver has read this version."""
    if late := wait_for_receivers(keyring, version):
        raise ReceiversBehind(
            f"{store}: {', '.join(late)} has not read the keyring for {RECEIVER_SECONDS:.0f} s, so the store's secret "
            "was not changed. Stop the receiver that hangs, then try again"
        )


def retry_redis(call: Callable[[], T]) -> T:
    """Call, and retry while Redis is unavailable: a secret that was learned must not be lost."""
    deadline = time.monotonic() + GIVE_UP_AFTER
    while True:
        try:
            return call()
        except RedisError:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_EVERY)
