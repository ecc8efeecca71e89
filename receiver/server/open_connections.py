"""The open connections of a process: their deadlines, and the limits of their number and of the bytes they hold."""

from __future__ import annotations

from http import HTTPStatus
from time import monotonic
from typing import Literal, Protocol

CONNECTIONS = 1000
"""Maximum for one process."""
LINGERING_CONNECTIONS = 100
"""Of them, reserved for connections that linger after a refusal, so that new ones need not wait for them."""
MAX_HELD_BYTES = 64 << 20
"""Bytes of requests that one process holds. Beyond it, the request that has been arriving longest times out."""
IDLE_SECONDS_AT_STOP = 0.2
"""When the process stops, how long a connection that has sent nothing stays open: its request may be on the way."""

State = Literal["idle", "receiving", "complete", "served", "sending", "lingering"]


class TrackedConnection(Protocol):
    state: State
    deadline: float
    """When it must have left the state. A request that is served has none."""

    def refuse(self, status: HTTPStatus) -> None: ...

    def close(self) -> None: ...


class OpenConnections:
    def __init__(self) -> None:
        self.all: set[TrackedConnection] = set()
        self.count = 0
        """With those that were accepted just now."""
        self.held_bytes = 0
        """Of all requests that are received or served."""
        self.stopping = False

    def make_space(self) -> None:
        """Called for each new connection: end an old one if there are too many."""
        if self.count > CONNECTIONS - LINGERING_CONNECTIONS:
            if self.count - len(self._in("lingering")) > CONNECTIONS - LINGERING_CONNECTIONS:
                self._end_oldest("receiving") or self._end_oldest("idle")
            if self.count >= CONNECTIONS:
                self._end_oldest("lingering")

    def free_descriptor(self) -> None:
        """Called if a connection cannot be accepted."""
        self._end_oldest("lingering") or self._end_oldest("receiving") or self._end_oldest("idle")

    def hold(self, size: int) -> None:
        """Count bytes that were received."""
        self.held_bytes += size
        if self.held_bytes > MAX_HELD_BYTES:
            self._end_oldest("receiving")

    def end_overdue(self) -> None:
        now = monotonic()
        for connection in [one for one in self.all if one.deadline < now]:
            end(connection)

    def stop(self) -> None:
        """Wait only a moment for new requests. Answers promised keep-alive, so some requests may be on the way."""
        self.stopping = True
        deadline = monotonic() + IDLE_SECONDS_AT_STOP
        for connection in self._in("idle"):
            connection.deadline = min(connection.deadline, deadline)

    def _in(self, state: State) -> list[TrackedConnection]:
        return [one for one in self.all if one.state == state]

    def _end_oldest(self, state: State) -> bool:
        """End the connection whose deadline in this state is the next; return whether there was one."""
        oldest = min(self._in(state), key=lambda one: one.deadline, default=None)
        if oldest:
            end(oldest)
        return oldest is not None


def end(connection: TrackedConnection) -> None:
    """Time out a request that is arriving, with an answer; close any other connection."""
    if connection.state == "receiving":
        connection.refuse(HTTPStatus.REQUEST_TIMEOUT)
    else:
        connection.close()
