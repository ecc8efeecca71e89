"""Plain: one connection to the server outside a client's pool. Commands go out, replies come in, nothing in between.

redis-py opens it: by password, TLS or sentinels. But its own way of sending and reading takes longer than the server
does, so for the three that call all the time (the line, the worker's scripts, the bell) that is done here.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis import Redis
from redis.exceptions import BusyLoadingError, InvalidResponse, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as TooSlow

from receiver.inbox.redis.connecting import ask_again, open_connection, outdated

Argument = str | bytes | int | float

RECEIVE = 64 * 1024

_ERRORS = {"LOADING": BusyLoadingError, "READONLY": ReadOnlyError}
_pack: Callable[[Any], bytes] = hiredis.pack_command


class RawConnection:
    def __init__(self, client: Redis) -> None:
        self._client = client
        self._connection = open_connection(client)
        self._connection.connect()  # by itself it would not ask the sentinels where
        link: socket.socket | None = self._connection._sock  # redis-py shows it nowhere
        if link is None:
            raise LostConnection
        self._link = link
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=_error_of)

    def fileno(self) -> int:
        return self._link.fileno()

    @property
    def outdated(self) -> bool:
        """Whether its server is known to be replaced. Nobody is asked: others of this process do."""
        return outdated(self._client, self._connection)

    def ask(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """All of them in one round trip; what the server has against one is its reply, as an exception. What it has
        against us is raised."""
        self.send(commands)
        replies: list[Any] = []
        while len(replies) < len(commands):
            replies += self.receive()
        if len(replies) > len(commands) or self._reader.has_data():
            raise LostConnection("more replies than were asked for")  # nobody knows whose they are
        for reply in replies:
            if isinstance(reply, LostConnection):
                raise reply
        return replies

    def send(self, commands: Sequence[Sequence[Argument]]) -> None:
        try:
            self._link.sendall(packed(commands))
        except OSError as error:
            raise _lost(error) from None

    def receive(self) -> list[Any]:
        """What has come since; waits where nothing has. It may be none: part of a reply."""
        try:
            data = self._link.recv(RECEIVE)
        except (BlockingIOError, InterruptedError):
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
        with contextlib.suppress(Exception):  # it is given up, whatever state it is in
            self._connection.disconnect()


class DirectConnection:
    """One connection for one thread. It costs half as much as a client with a pool."""

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


def packed(commands: Sequence[Sequence[Argument]]) -> bytes:
    return b"".join([_pack(tuple(command)) for command in commands])


def _error_of(text: str) -> Exception:
    return _ERRORS.get(text.partition(" ")[0], ResponseError)(text)


def _lost(error: OSError) -> Exception:
    return TooSlow(str(error)) if isinstance(error, TimeoutError) else LostConnection(str(error))
