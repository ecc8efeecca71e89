"""Lingering close: ends a connection without losing the answer that is on its way.

Closing a socket that has unread bytes resets the connection, and the sender may never read the answer. So only the
sending side is closed at first, and what the sender still sends is read and discarded, for a bounded time.
"""

from __future__ import annotations

import selectors
import socket

from receiver.server.connection import Connection
from receiver.server.connection_table import ConnectionTable

LINGER_SECONDS = 2.0
LINGER_BYTES = 8 << 20


class LingeringClose:
    def __init__(self, table: ConnectionTable) -> None:
        self._table = table

    def begin(self, connection: Connection) -> None:
        self._table.buffered_bytes -= connection.discard_unread()
        try:
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._table.close(connection)
            return
        self._table.enter(self._table.lingering, connection, LINGER_SECONDS)
        self._table.watch(connection, selectors.EVENT_READ)

    def on_readable(self, connection: Connection) -> None:
        data = connection.receive()
        if data is None:
            return
        connection.discarded_bytes += len(data)
        if not data or connection.discarded_bytes > LINGER_BYTES:
            self._table.close(connection)

    def close_oldest(self) -> bool:
        """Close the connection that has had the most time to read its answer; return whether there was one."""
        if connection := next(iter(self._table.lingering), None):
            self._table.close(connection)
        return connection is not None
