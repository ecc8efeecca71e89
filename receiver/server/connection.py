"""A connection of a sender, as the loop sees it: its socket, its state, and the request that is arriving or served."""

from __future__ import annotations

import socket
from typing import Any

from receiver.server.request_framing import Framing
from receiver.server.request_head import Head


class Connection:
    """One sender, and what has come of its next request."""

    def __init__(self, sock: socket.socket, client: Any, server: Any, limit: int) -> None:
        self.sock, self.client, self.server = sock, client, server
        self.address = client[0] if isinstance(client, tuple) else str(client)
        self.framing = Framing(limit=limit)
        self.state: dict[Connection, None] | None = None
        """Those that are in the same state; None while it is served."""
        self.deadline = 0.0
        self.watched = 0
        self.request, self.complete, self.chunked = b"", False, False
        self.head: Head | None = None
        """Of the request, where it has been read already."""
        self.held = 0
        """Bytes of the request that is being served."""
        self.answer, self.goes_on = b"", False
        self.drained = 0
        self.closed = False

    def take(self) -> None:
        """Make what has come the request to serve; what follows it begins the next."""
        self.request, rest = self.framing.split()
        self.complete, self.chunked = self.framing.complete, self.framing.chunked
        self.held = len(self.request)
        self.framing = Framing(rest, limit=self.framing.limit)
