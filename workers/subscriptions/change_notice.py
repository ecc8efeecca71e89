"""Under way: what a process owes the receivers while it changes a store's secrets, and patience with Redis meanwhile.

A receiver believes a word for `CHANGE_SECONDS` from when it first saw its mark: a process that died must not keep
refusals open for ever. One call of a slow or limited API may take as long, and a store may need many. So whoever is
still at it says the word again, well before it is over, whatever it waits for meanwhile.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from redis.exceptions import RedisError

from receiver.contract.errors import StorehooksError
from receiver.inbox.keyring.keyring import CHANGE_SECONDS, Keyring
from receiver.inbox.keyring.receiver_versions import LIVE_SECONDS

RECEIVERS_WITHIN = LIVE_SECONDS + 3.0
"""A receiver that was killed is forgotten before that."""
AGAIN_EVERY = CHANGE_SECONDS / 3
PATIENCE = 300.0
"""How long a secret that was learned waits for Redis to come back before its process gives up; its file stays. No call
takes as long: whoever has begun none since hangs."""
TRY_AGAIN = 0.25
T = TypeVar("T")


class ReceiversBehind(StorehooksError):
    """A receiver does not read the keyring, so nothing was changed at the store."""


class ChangeNotice:
    """The word that a store's secret is under way. A thread says it again until it is left or taken back; if the
    process dies, the thread is gone too, and the last mark stands for whoever looks next."""

    def __init__(self, keyring: Keyring, store: str) -> None:
        self._keyring, self._store = keyring, store
        self._mine, self._said = secrets.token_hex(4), 0
        self._believed_until = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._say_again, name=f"word of {store}", daemon=True)

    def give(self) -> int:
        """Say it; gives the version that has it."""
        self.go_on()
        version = patiently(lambda: self._keyring.announce_change(self._store, self._mark()))
        self._thread.start()
        return version

    def go_on(self) -> None:
        """Something is begun: a process that hangs does not say so, and the word is not said again for it."""
        self._believed_until = time.monotonic() + PATIENCE

    def leave(self) -> None:
        """It stands as it is, and is not said again."""
        self._over.set()
        self._thread.join()

    def take_back(self) -> None:
        """It goes, unless somebody else has given theirs since."""
        self.leave()
        patiently(lambda: self._keyring.withdraw_change(self._store, self._mine))

    def _say_again(self) -> None:
        pause = AGAIN_EVERY
        while not self._over.wait(pause):
            pause = TRY_AGAIN
            with suppress(RedisError):  # receivers cannot be sure either; they hear it when Redis is back
                if time.monotonic() < self._believed_until:
                    self._keyring.announce_change(self._store, self._mark(), again=True)
                pause = AGAIN_EVERY

    def _mark(self) -> str:
        self._said += 1
        return f"{self._mine}.{self._said}"


def wait_for_receivers(keyring: Keyring, version: int) -> list[str]:
    """Until every live receiver has read a version; gives those that hang."""
    return patiently(lambda: keyring.receivers.wait_for(version, within=RECEIVERS_WITHIN))


def refuse_behind(keyring: Keyring, store: str, version: int) -> None:
    """Before a secret is touched: every receiver has read so far."""
    if late := wait_for_receivers(keyring, version):
        raise ReceiversBehind(
            f"{store}: {', '.join(late)} has not read the keyring for {RECEIVERS_WITHIN:.0f} s, so the store's secret "
            "was not touched. A receiver that hangs must be stopped first"
        )


def patiently(call: Callable[[], T]) -> T:
    """Do something at Redis, also if it is away for a while: what was learned or done must be written down."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except RedisError:
            if time.monotonic() > until:
                raise
            time.sleep(TRY_AGAIN)
