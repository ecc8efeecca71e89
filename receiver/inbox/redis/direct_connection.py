"""A direct connection: scripts over one connection, for one thread. It costs half as much as a client with a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import Redis

from receiver.inbox.redis.connecting import ask_again
from receiver.inbox.redis.raw_connection import Argument, RawConnection


class DirectConnection:
    def __init__(self, client: Redis) -> None:
        self.client = client
        self._connection: RawConnection | None = None

    def send(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands in one round trip. An error of one command is its reply."""
        ask_again(self.client)
        if self._connection and self._connection.outdated:
            self.close()
        self._connection = self._connection or RawConnection(self.client)
        try:
            return self._connection.ask(commands)
        except BaseException:
            self.close()  # replies may still be on their way, and the next command would read them
            raise

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        if self._connection:
            self._connection.close()
        self._connection = None
