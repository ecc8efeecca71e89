"""Line: one connection to the server on which nobody waits. Scripts go out; a poller says when replies are there.

For a loop that must not block. One group is out at a time. Whatever goes wrong breaks the line, and then what was sent
may or may not have been done: only what may be done twice goes this way. Opening one does wait.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
from redis import Redis
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import ResponseError

from receiver.inbox.client import open_connection, outdated
from receiver.inbox.scripts import Call

RECEIVE = 64 * 1024
_pack: Callable[[Any], bytes] = hiredis.pack_command


class CannotBePolled(LostConnection):
    """A connection by TLS holds back bytes that a poller knows nothing of."""


class Line:
    def __init__(self, client: Redis) -> None:
        self._client = client
        self._connection = open_connection(client)
        self._connection.connect()
        link: socket.socket | None = self._connection._sock  # redis-py shows it nowhere
        if link is None or isinstance(link, ssl.SSLSocket):
            self.close()
            raise CannotBePolled
        link.setblocking(False)
        self._link = link
        self._reader = hiredis.Reader(replyError=ResponseError)
        self._unsent = memoryview(b"")
        self._owed = 0
        self._replies: list[Any] = []

    def fileno(self) -> int:
        return self._link.fileno()

    @property
    def outdated(self) -> bool:
        """Whether its server is known to be replaced. Nobody is asked: others of this process do."""
        return outdated(self._client, self._connection)

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, calls: Sequence[Call]) -> None:
        """Send scripts, as far as the server takes them now; `write` sends the rest."""
        self._unsent = memoryview(b"".join([_pack(call.command) for call in calls]))
        self._owed, self._replies = len(calls), []
        self.write()

    def write(self) -> None:
        try:
            self._unsent = self._unsent[self._link.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise LostConnection(str(error)) from None

    def read(self) -> list[Any] | None:
        """All replies, once they are here; what the server has against a script is its reply, as an exception."""
        try:
            data = self._link.recv(RECEIVE)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise LostConnection(str(error)) from None
        if not data:
            raise LostConnection("the server closed the connection")
        self._reader.feed(data)
        while self._owed and (reply := self._reader.gets()) is not False:
            self._replies.append(reply)
            self._owed -= 1
        return None if self._owed else self._replies

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it is given up, whatever state it is in
            self._connection.disconnect()
