"""The open connections of a process: their deadlines, and the limits of their number and of the bytes they hold."""

from __future__ import annotations

from http import HTTPStatus
from time import monotonic
from typing import Literal, Protocol

CONNECTIONS = 1000
"""Maximum for one process. For a new one, one is closed that only discards what its sender sends, or the oldest."""
MAX_HELD_BYTES = 64 << 20
"""Bytes of requests that one process holds. Beyond it, the request that has been arriving longest times out."""
IDLE_SECONDS_AT_STOP = 0.2
"""When the process stops, how long a connection that has sent nothing stays open: its request may be on the way."""

State = Literal["idle", "receiving", "complete", "served", "sending", "lingering"]


class TrackedConnection(Protocol):
    state: State
    deadline: float
    """When it must have left the state. A request that is served has none."""

    @property
    def held_bytes(self) -> int: ...

    def refuse(self, status: HTTPStatus) -> None: ...

    def close(self) -> None: ...


class OpenConnections:
    def __init__(self) -> None:
        self.all: set[TrackedConnection] = set()
        self.stopping = False

    def limit(self, new: int) -> None:
        """Called when connections are accepted: end an old one if there are too many."""
        if len(self.all) + new > CONNECTIONS:
            self.make_space()

    def make_space(self) -> None:
        """End a connection."""
        self._end_oldest("lingering") or self._end_oldest("receiving") or self._end_oldest("idle")

    def check(self) -> None:
        """Called again and again: end those that are overdue, or that hold too many bytes."""
        now = monotonic()
        for connection in [one for one in self.all if one.deadline < now]:
            end(connection)
        while sum(one.held_bytes for one in self.all) > MAX_HELD_BYTES and self._end_oldest("receiving"):
            pass

    def stop(self) -> None:
        """Wait only a moment for new requests. Answers promised keep-alive, so some requests may be on the way."""
        self.stopping = True
        for connection in self.all:
            if connection.state == "idle":
                connection.deadline = min(connection.deadline, monotonic() + IDLE_SECONDS_AT_STOP)

    def _end_oldest(self, state: State) -> bool:
        """End the connection whose deadline in this state is the next; return whether there was one."""
        oldest = min((one for one in self.all if one.state == state), key=lambda one: one.deadline, default=None)
        if oldest:
            end(oldest)
        return oldest is not None


def end(connection: TrackedConnection) -> None:
    """Time out a request that is arriving, with an answer; close any other connection."""
    if connection.state == "receiving":
        connection.refuse(HTTPStatus.REQUEST_TIMEOUT)
    else:
        connection.close()
