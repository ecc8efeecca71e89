"""The open connections of a process: their states, their deadlines, and what the poller watches."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from receiver.server.connection import Connection

State = dict[Connection, None]
"""The connections in one state, the oldest first."""


class ConnectionTable:
    def __init__(
        self,
        poller: selectors.BaseSelector,
        on_event: Callable[[Connection, Any], None],
        on_close: Callable[[], None],
    ) -> None:
        self._poller = poller
        self._on_event = on_event
        self._on_close = on_close
        self.reading: State = {}
        self.sending: State = {}
        self.lingering: State = {}
        self.buffered_bytes = 0
        """Of all requests that are being read or served."""

    def enter(self, state: State, connection: Connection, seconds: float) -> None:
        """Move a connection into a state, which it must leave within this time."""
        self.leave(connection)
        connection.deadline = time.monotonic() + seconds
        connection.state = state
        state[connection] = None

    def leave(self, connection: Connection) -> None:
        if connection.state is not None:
            del connection.state[connection]
            connection.state = None

    def overdue(self, state: State, now: float) -> list[Connection]:
        return [connection for connection in state if connection.deadline < now]

    def watch(self, connection: Connection, events: int) -> None:
        """Set the events that the poller reports. They stay over many requests, because a change is a system call."""
        if events == connection.watched:
            return
        if not events:
            self._poller.unregister(connection.sock)
        elif not connection.watched:
            self._poller.register(connection.sock, events, partial(self._on_event, connection))
        else:
            self._poller.modify(connection.sock, events, partial(self._on_event, connection))
        connection.watched = events

    def close(self, connection: Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        self.leave(connection)
        self.watch(connection, 0)
        self.buffered_bytes -= len(connection.framing) + connection.request_bytes
        self._on_close()
        with suppress(OSError):
            connection.sock.close()
