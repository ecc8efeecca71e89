"""Raw connections: one connection to the server outside a client's pool, with as little work in between as possible.

redis-py opens it, with password, TLS and sentinels. Its own sending and reading takes longer than the server needs, so
the three most frequent callers use this: the receiver's polled connection, the worker's scripts and its wake-ups.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis import Redis
from redis.exceptions import BusyLoadingError, InvalidResponse, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as TooSlow

from receiver.inbox.redis.connecting import find_primary, new_connection, outdated

Argument = str | bytes | int | float

RECEIVE_BYTES = 64 * 1024
WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_ERRORS = {"LOADING": BusyLoadingError, "READONLY": ReadOnlyError}
_pack: Callable[[Any], bytes] = hiredis.pack_command


class RawConnection:
    def __init__(self, client: Redis) -> None:
        self._client = client
        self._connection = new_connection(client)
        self._connection.connect()  # asks the sentinels for the primary's address, which sending alone does not
        sock: socket.socket | None = self._connection._sock  # redis-py has no public name for it
        if sock is None:
            raise LostConnection
        self._socket = sock
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=_error_of)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def outdated(self) -> bool:
        """Whether the sentinels have named another primary. This does not ask them; other callers do."""
        return outdated(self._client, self._connection)

    def execute(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands in one round trip and return their replies. An error of one command is its reply.

        An error that ends the connection is raised.
        """
        self.send(commands)
        replies: list[Any] = []
        while len(replies) < len(commands):
            replies += self.receive()
        if len(replies) > len(commands) or self._reader.has_data():
            raise LostConnection("more replies than commands")  # they cannot be assigned to commands
        for reply in replies:
            if isinstance(reply, LostConnection):
                raise reply
        return replies

    def send(self, commands: Sequence[Sequence[Argument]]) -> None:
        try:
            self._socket.sendall(packed(commands))
        except OSError as error:
            raise _lost(error) from None

    def receive(self) -> list[Any]:
        """Wait for data and return the complete replies. There may be none yet."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except WOULD_BLOCK:
            return []
        except OSError as error:
            raise _lost(error) from None
        if not data:
            raise LostConnection("the server closed the connection")
        self._reader.feed(data)
        replies = []
        while (reply := self._reader.gets()) is not False:
            replies.append(reply)
        return replies

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it may be in any state
            self._connection.disconnect()


class DirectConnection:
    """One connection for one thread. It costs half as much as a client with a pool."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self._connection: RawConnection | None = None

    def send(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands in one round trip. An error of one command is its reply."""
        find_primary(self.client)
        if self._connection and self._connection.outdated:
            self.close()
        self._connection = self._connection or RawConnection(self.client)
        try:
            return self._connection.execute(commands)
        except BaseException:
            self.close()  # replies may still be on their way, and the next command would read them
            raise

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        if self._connection:
            self._connection.close()
        self._connection = None


def packed(commands: Sequence[Sequence[Argument]]) -> bytes:
    return b"".join([_pack(tuple(command)) for command in commands])


def _error_of(text: str) -> Exception:
    return _ERRORS.get(text.partition(" ")[0], ResponseError)(text)


def _lost(error: OSError) -> Exception:
    return TooSlow(str(error)) if isinstance(error, TimeoutError) else LostConnection(str(error))
