"""Polled connections: scripts over one connection, plain or TLS, for an event loop that must not block.

One group of calls is in flight at a time. Any error breaks the connection, and then the calls may or may not have been
executed, so only calls that may be repeated are sent this way. Opening the connection does block.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as LostConnection

from receiver.inbox.redis.raw_connection import WOULD_BLOCK, RawConnection, packed
from receiver.inbox.redis.script_runner import ScriptCall, check_replicated, wait_command


class PolledConnection(RawConnection):
    def __init__(self, client: Redis, replicas: int = 0) -> None:
        """`replicas` is how many replicas must have what calls write."""
        super().__init__(client)
        self._replicas = replicas
        self._socket.setblocking(False)
        self.unsent = memoryview(b"")
        self._expected = 0
        self._replies: list[Any] = []

    def start(self, calls: Sequence[ScriptCall]) -> None:
        """Send calls as far as possible without blocking; `write` sends the rest."""
        commands = [call.command for call in calls]
        if self._replicas:
            commands.append(wait_command(self._replicas))
        self.unsent = memoryview(packed(commands))
        self._expected, self._replies = len(commands), []
        self.write()

    def write(self) -> None:
        """Send more without blocking."""
        try:
            self.unsent = self.unsent[self._socket.send(self.unsent) :]
        except WOULD_BLOCK:
            pass
        except OSError as error:
            raise LostConnection(str(error)) from None

    def read(self) -> list[Any] | None:
        """All replies once they have arrived, else None. An error of one call is its reply."""
        self._replies += self.receive()
        while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():  # the loop does not see these bytes
            self._replies += self.receive()
        if len(self._replies) > self._expected or (len(self._replies) == self._expected and self._reader.has_data()):
            raise LostConnection("more replies than calls")  # they cannot be assigned to calls
        if len(self._replies) < self._expected or not self._expected:
            return None
        replies, self._expected, self._replies = self._replies, 0, []
        if self._replicas:
            check_replicated(replies.pop(), self._replicas, replies)
        return replies
