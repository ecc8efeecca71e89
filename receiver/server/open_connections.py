"""The open connections of a process: the state of each, its deadline, and the limits of their number and bytes.

    idle --bytes--> receiving --complete--> (served) --answer--> sending --> idle
                                                                         --> lingering --> closed

Each state but the served one has a deadline. Lingering: closing a socket that has unread bytes resets the connection,
and the sender may never read its answer. So only the sending side is closed at first, and what arrives is discarded.
"""

from __future__ import annotations

from http import HTTPStatus
from time import monotonic
from typing import Protocol

CONNECTIONS = 1000
"""Maximum for one process."""
LINGERING_CONNECTIONS = 100
"""Of them, reserved for connections that linger after a refusal, so that new ones need not wait for them."""
MAX_HELD_BYTES = 64 << 20
"""Bytes of requests that one process holds. Beyond it, the request that has been arriving longest times out."""
IDLE_SECONDS_AT_STOP = 0.2
"""When the process stops, how long a connection that has sent nothing stays open: its request may be on the way."""


class TrackedConnection(Protocol):
    state: dict[TrackedConnection, float] | None

    def refuse(self, status: HTTPStatus) -> None: ...

    def close(self) -> None: ...


State = dict[TrackedConnection, float]
"""The connections in one state with their deadlines, the oldest first."""


class OpenConnections:
    def __init__(self) -> None:
        self.idle: State = {}
        self.receiving: State = {}
        self.sending: State = {}
        self.lingering: State = {}
        self.count = 0
        self.held_bytes = 0
        """Of all requests that are received or served."""
        self.stopping = False

    def enter(self, connection: TrackedConnection, state: State, seconds: float) -> None:
        """Move a connection into a state, which it must leave within this time."""
        if connection.state is not None:
            del connection.state[connection]
        if self.stopping and state is self.idle:
            seconds = IDLE_SECONDS_AT_STOP
        connection.state = state
        state[connection] = monotonic() + seconds

    def leave(self, connection: TrackedConnection) -> None:
        if connection.state is not None:
            del connection.state[connection]
            connection.state = None

    def make_space(self) -> None:
        """Called for each new connection: end an old one if there are too many."""
        if self.count - len(self.lingering) > CONNECTIONS - LINGERING_CONNECTIONS:
            self.end_oldest()
        if self.count >= CONNECTIONS:
            self._close_lingering()

    def free_descriptor(self) -> None:
        """Called if a connection cannot be accepted."""
        if not self._close_lingering():
            self.end_oldest()

    def end_oldest(self) -> None:
        """Time out the request that has been arriving longest; else close the connection that was idle longest."""
        if connection := next(iter(self.receiving), None):
            connection.refuse(HTTPStatus.REQUEST_TIMEOUT)
        elif connection := next(iter(self.idle), None):
            connection.close()

    def hold(self, size: int) -> None:
        """Count bytes that were received."""
        self.held_bytes += size
        if self.held_bytes > MAX_HELD_BYTES and (connection := next(iter(self.receiving), None)):
            connection.refuse(HTTPStatus.REQUEST_TIMEOUT)

    def end_overdue(self) -> None:
        now = monotonic()
        for connection in overdue(self.receiving, now):
            connection.refuse(HTTPStatus.REQUEST_TIMEOUT)
        for state in (self.idle, self.sending, self.lingering):
            for connection in overdue(state, now):
                connection.close()

    def stop(self) -> None:
        """Wait only a moment for new requests. Answers promised keep-alive, so some requests may be on the way."""
        self.stopping = True
        deadline = monotonic() + IDLE_SECONDS_AT_STOP
        for connection in self.idle:
            self.idle[connection] = min(self.idle[connection], deadline)

    def _close_lingering(self) -> bool:
        """Close the connection that has had the most time to read its answer; return whether there was one."""
        if connection := next(iter(self.lingering), None):
            connection.close()
        return connection is not None


def overdue(state: State, now: float) -> list[TrackedConnection]:
    return [connection for connection, deadline in state.items() if deadline < now]
