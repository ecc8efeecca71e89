"""Line: one connection to the server on which nobody waits. Scripts go out; a poller says when replies are there.

For a loop that must not block. One group is out at a time. Whatever goes wrong breaks the line, and then what was sent
may or may not have been done: only what may be done twice goes this way. Opening one does wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.connection import SSLConnection
from redis.exceptions import ConnectionError as LostConnection

from receiver.inbox.redis.raw_connection import RawConnection, packed
from receiver.inbox.redis.script_runner import ScriptCall


class CannotBePolled(LostConnection):
    """A connection by TLS holds back bytes that a poller knows nothing of."""


class PolledConnection(RawConnection):
    def __init__(self, client: Redis) -> None:
        if issubclass(client.connection_pool.connection_class, SSLConnection):  # not worth a connection to find out
            raise CannotBePolled
        super().__init__(client)
        self._link.setblocking(False)
        self._unsent = memoryview(b"")
        self._owed = 0
        self._replies: list[Any] = []

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def put(self, calls: Sequence[ScriptCall]) -> None:
        """Send scripts, as far as the server takes them now; `write` sends the rest."""
        self._unsent = memoryview(packed([call.command for call in calls]))
        self._owed, self._replies = len(calls), []
        self.write()

    def write(self) -> bool:
        """Send more, as far as the server takes it now; whether it took any."""
        try:
            self._unsent = self._unsent[self._link.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise LostConnection(str(error)) from None
        return True

    def read(self) -> list[Any] | None:
        """All replies, once they are here; what the server has against a script is its reply, as an exception."""
        self._replies += self.receive()
        if len(self._replies) < self._owed:
            return None
        if len(self._replies) > self._owed or self._reader.has_data():
            raise LostConnection("more replies than were asked for")  # nobody knows whose the next would be
        if not self._owed:
            return None
        replies, self._owed, self._replies = self._replies, 0, []
        return replies
