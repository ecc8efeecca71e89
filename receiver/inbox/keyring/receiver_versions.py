"""Receiver versions: which version of the keyring each receiver has read, and waiting until all have read one."""

from __future__ import annotations

import time

from receiver.inbox import keys
from receiver.inbox.model import to_number
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser

LIVE_SECONDS = 12.0
"""A receiver that has confirmed nothing for this long is not waited for."""


class ReceiverVersions(ServerUser):
    def confirm(self, receiver: str, version: int) -> None:
        """Record that a receiver has read a version. Each receiver does so after reading one, and every few seconds."""
        script_runner.run_one(self.client, "confirm", receiver, version)

    def forget(self, receiver: str) -> None:
        self.client.hdel(keys.RECEIVERS, receiver)

    def behind(self, version: int) -> list[str]:
        """The live receivers that have not read this version yet. Those that are gone are removed."""
        pipeline = self.client.pipeline(transaction=False)
        pipeline.time()
        pipeline.hgetall(keys.RECEIVERS)
        (seconds, _), confirmed = pipeline.execute()
        late, gone = [], []
        for name, value in confirmed.items():
            has_read, _, at = value.partition(b" ")
            # A damaged entry may be of a live receiver, which writes it again. A time far ahead: the clock was set
            # back since.
            if at.isdigit() and abs(int(at) / 1000 - seconds) > LIVE_SECONDS:
                gone.append(name)
            elif to_number(has_read) < version or not at.isdigit():
                late.append(name.decode())
        if gone:
            self.client.hdel(keys.RECEIVERS, *gone)
        return late

    def wait_for(self, version: int, *, within: float = 8.0) -> list[str]:
        """Wait until every live receiver has read a version. Returns those that had not in time."""
        until = time.monotonic() + within
        while (late := self.behind(version)) and time.monotonic() < until:
            time.sleep(0.05)
        return late
