"""A sender's connection as the event loop sees it: its socket, its state, and the request being read or served."""

from __future__ import annotations

import socket
from typing import Any

from receiver.server.request_framing import Framing
from receiver.server.request_head import Head

RECEIVE_BYTES = 64 * 1024


class Connection:
    def __init__(self, sock: socket.socket, client: Any, server: Any, limit: int) -> None:
        self.sock, self.client, self.server = sock, client, server
        self.address = client[0] if isinstance(client, tuple) else str(client)
        self.framing = Framing(limit=limit)
        self.state: dict[Connection, None] | None = None
        """All connections in the same state; None while a request is served."""
        self.deadline = 0.0
        self.watched = 0
        self.request, self.complete, self.chunked = b"", False, False
        self.head: Head | None = None
        """The request's head, if it has been read already."""
        self.request_bytes = 0
        """Bytes of the request that is being served."""
        self.answer, self.keep_alive = b"", False
        self.discarded_bytes = 0
        self.closed = False

    def take_request(self) -> None:
        """Make the bytes read so far the request to serve; bytes after it begin the next one."""
        self.request, rest = self.framing.split()
        self.complete, self.chunked = self.framing.complete, self.framing.chunked
        self.request_bytes = len(self.request)
        self.framing = Framing(rest, limit=self.framing.limit)

    def take_whole(self, data: bytes, head: Head) -> None:
        """Make bytes that are exactly one request the request to serve."""
        self.request, self.complete, self.chunked = data, True, False
        self.request_bytes, self.head = len(data), head

    def discard_unread(self) -> int:
        """Drop the bytes of a request that is not complete; return how many they were."""
        size = len(self.framing)
        self.framing = Framing(limit=self.framing.limit)
        return size

    def receive(self) -> bytes | None:
        """What has arrived; empty at the end of the stream, None if nothing has arrived yet."""
        try:
            return self.sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""

    def send(self) -> None:
        """Send as much of the answer as the socket takes now; `answer` is what is left."""
        try:
            sent = self.sock.send(self.answer)
            self.answer = self.answer[sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # the sender has closed the connection
            self.answer, self.keep_alive = b"", False
