"""HTTP connections: each sender's requests, read in steps and answered in order, one at a time.

    idle --bytes--> receiving --> complete --its turn--> served --answer--> sending --> idle
                                                                                    --> lingering --> closing

Lingering: closing a socket that has unread bytes resets the connection, and the sender may never read its answer. So
only the sending side is closed at first, and what arrives is discarded for a moment.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from math import inf
from time import monotonic, time
from typing import Literal, cast

from receiver import logs
from receiver.contract.sender_address import TrustedProxies, sender_at
from receiver.delivery.answers import Answer, protocol_error, to_bytes
from receiver.server.descriptors import connections_within
from receiver.server.held_bytes import KnownSenders
from receiver.server.request_reader import HttpRequest, RequestReader
from receiver.server.turns import Turns

RECEIVE_BYTES = 16 * 1024
"""Bytes that are received at once. No more are received ahead while a request is read or served, so that requests which
wait behind it take less than half of what all connections may hold: an outsider could have larger ones refused."""
PIECE_BYTES = 32 * 1024
"""Bytes that are received at once where as many are missing of a body: one of 900 kB then waits for fewer turns."""
BODY_BYTES = 64 * 1024
"""After these of a body, a connection waits for its turn: receiving many large bodies at once takes long, too."""
KEEP_ALIVE_SECONDS = 15.0
SEND_SECONDS = 5.0
LINGER_SECONDS = 2.0
SLOW_SENDER = 4096
"""Bytes in a second. A request that arrives as fast keeps its connection when some must end for new ones."""
AHEAD_SECONDS = 0.7
"""For how long a sender may pause that has sent as much before, or that has not begun."""
SECONDS_OF_BYTE, SECONDS_OF_PIECE = 1e-8, 6e-5
"""Of the processor, for reading what is received at once. An ordinary request takes a third, also one in chunks and in
packets of 512 bytes. Packets that are full of chunks of one byte take three times as long."""
HOLD_SECONDS = 4.0
"""The bytes of a request that arrives evenly within this time do not wait for its sender, whatever its size."""
STOP_SECONDS = 0.2
"""When the process stops, how long a connection that has sent nothing stays open: its request may be on the way."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

State = Literal["idle", "receiving", "complete", "served", "sending", "lingering", "closing"]
Serve = Callable[["HttpConnection", HttpRequest], None]
"""Called with each request. In the end `answer` or `fail` must be called for it."""

problems = logs.ThrottledLog(logs.get("receiver"))
"""Limited: a sender may find a request that raises, and send it without end."""


class ConnectionGroup:
    """What the connections of a process share."""

    def __init__(
        self, turns: Turns, serve: Serve, *, max_body: int, read_seconds: float, proxies: TrustedProxies | None = None
    ) -> None:
        self.turns, self.serve, self.max_body, self.read_seconds = turns, serve, max_body, read_seconds
        self.proxies = proxies or TrustedProxies()
        self.all: set[HttpConnection] = set()
        """Those that have a descriptor, so also those that are closing."""
        self.most = connections_within(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self.stopping = False
        self.crowded = False
        """New connections wait, and no open one may end for them."""
        self.known_senders = KnownSenders()
        self.buffer = memoryview(bytearray(PIECE_BYTES))
        """Where the loop receives. Each connection takes out its bytes at once."""
        self.counted = logs.CountedLog(logs.get("receiver"))

    @property
    def idle_seconds(self) -> float:
        """How long a connection may wait for its next request."""
        return STOP_SECONDS if self.stopping else KEEP_ALIVE_SECONDS

    @property
    def free(self) -> int:
        """How many new connections may come now."""
        return self.most - len(self.all)


class HttpConnection(asyncio.BufferedProtocol):
    def __init__(self, others: ConnectionGroup) -> None:
        self._others, self.known_senders = others, others.known_senders
        self.reader = RequestReader(others.max_body)
        self._unread = b""
        self._request: HttpRequest | None = None
        self.request_bytes = 0
        """Of its head and body."""
        self.waiting_since = self.holding_since = 0.0
        """When this connection and its bytes began to wait for its sender: each byte moves them on by the time that it
        may take, but not far into the future. So what is sent now counts, not much at first or a byte now and then."""
        self.has_step, self.scheduled_at = False, 0.0
        """Whether a step of this connection is waiting for its turn, and since when."""
        self.spent = 0.0
        """Seconds of the processor that its steps have taken for this request, beyond what its bytes may take."""
        self.receives, self.received_at = True, 0.0
        self._ended = self._paused = self._closing = False
        self.is_other = False
        """Whether the request that is served is no delivery, or not verified and of a sender without a balance."""

    @property
    def held_bytes(self) -> int:
        return len(self._unread) + self.reader.held_bytes + (self.request_bytes if self._request else 0)

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(0)  # `pause_writing` then says that an answer is not sent yet
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else str(peer or "")
        is_proxy = self._others.proxies.has(self.address)  # each of its requests names a sender
        self.peer = self.sender = "" if is_proxy else sender_at(self.address) or "a socket of this host"
        self._enter("idle", STOP_SECONDS if self._others.stopping else self._others.read_seconds)
        self._others.all.add(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self.close()
        self._others.all.discard(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio's signature
        return self._others.buffer[: max(RECEIVE_BYTES, self.reader.missing)]

    def buffer_updated(self, size: int) -> None:
        if self._closing:
            return
        data, now = self._others.buffer[:size].tobytes(), monotonic()
        if self.state == "idle":
            if not data.strip(b"\r\n"):  # nothing has begun, and the connection is as old as before
                return
            self._enter("receiving", self._others.read_seconds)
        self.received_at = now
        self.waiting_since = min(now + AHEAD_SECONDS, self.waiting_since + size / SLOW_SENDER)
        self.holding_since = min(now, self.holding_since + HOLD_SECONDS * size / (self.held_bytes + size))
        self.spent = max(0.0, self.spent - SECONDS_OF_PIECE - SECONDS_OF_BYTE * size)
        self._unread = self._unread + data if self._unread else data
        if self.reader.missing and self.state == "receiving":  # such a part is only appended
            before = self.reader.held_bytes
            self._read()
            if self.reader.missing and self.reader.held_bytes // BODY_BYTES > before // BODY_BYTES:
                self._receive_more(False)
                self._schedule(BODY_BYTES)
            return
        if self.state != "receiving" or len(self._unread) >= RECEIVE_BYTES:
            self._receive_more(False)
        self._schedule(len(self._unread))

    def eof_received(self) -> bool:
        """The sender sends no more. What has arrived is answered, because it may still read."""
        self._ended, self.receives = True, False
        self._schedule(0)
        return not self._closing

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self.state == "sending":
            self._after_answer()

    # Reading and serving, in turns

    def _enter(self, state: State, seconds: float) -> None:
        """`deadline` is when it must have left the state."""
        self.state, self.since = state, monotonic()
        self.waiting_since = self.since + (AHEAD_SECONDS if state == "idle" else 0.0)
        self.holding_since = self.since
        self.spent = 0.0
        self.deadline = self.since + seconds

    def _schedule(self, size: int) -> None:
        if not self.has_step:
            self.has_step, self.scheduled_at = True, monotonic()
            self._others.turns.add(self, size)

    def step(self) -> None:
        """Read some bytes, or serve the request that was read.

        It is two steps, so that all requests of a turn are read, then all are served: the processor's caches then save
        a fifth of the work. And a large body is served after small ones.
        """
        self.has_step = False
        now = monotonic()
        waited = now - self.scheduled_at  # its sender need not be faster because others keep us busy
        self.deadline += waited
        self.waiting_since = min(now + AHEAD_SECONDS, self.waiting_since + waited)
        self.holding_since = min(now, self.holding_since + waited)
        try:
            if self.state == "complete" and self._request:
                self.state = "served"
                self._others.serve(self, self._request)
            elif self.state in ("idle", "receiving") and not self._closing:
                self._read()
        except Exception:  # noqa: BLE001  logged there
            fail(self)

    def _read(self) -> None:
        reader, has_head = self.reader, self.reader.in_body
        size = reader.read(self._unread) if self._unread else 0
        if not self.peer and not has_head and (reader.in_body or reader.request):
            self.sender = sender_at(self._others.proxies.sender(self.address, reader.headers))
        self._unread = self._unread[size:]
        if reader.fault:
            self.refuse(reader.fault)
        elif reader.request:
            self._request, reader.request = reader.request, None
            self.request_bytes = reader.head_bytes + len(self._request.body)
            self.state, self.deadline = "complete", inf
            self._schedule(self.request_bytes)
        elif size and self._unread:
            self._schedule(len(self._unread))
        elif self._ended:
            self.refuse(HTTPStatus.BAD_REQUEST) if self._unread or reader.in_body else self.close()
        else:
            if not (self._unread or reader.in_body):  # only empty lines
                self._enter("idle", self._others.idle_seconds)
            if reader.expects_continue:
                reader.expects_continue = False
                self.transport.write(CONTINUE)
            self._receive_more(True)

    def _receive_more(self, more: bool) -> None:
        if more != self.receives and not self._ended:
            self.receives = more
            (self.transport.resume_reading if more else self.transport.pause_reading)()

    # Answering

    def answer(self, answer: Answer) -> None:
        """Send the answer to the request that is served."""
        request, self._request = self._request, None
        assert request
        keep_alive = request.keep_alive and not (self._others.stopping or self._others.crowded)
        data = to_bytes(answer, now=time(), close=not keep_alive, minor=request.minor, method=request.method)
        self._send(data, keep_alive=keep_alive)

    def refuse(self, status: HTTPStatus) -> None:
        """Answer a request that is malformed, too long or late, and close the connection."""
        if status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:  # all of a store may be, and then nothing else shows it
            self._others.counted.add("requests answered 413, because they are too large")
        self._send(protocol_error(status), keep_alive=False)

    def close(self) -> None:
        """Read and serve no more."""
        self._drop_unserved()
        self.state, self.deadline = "closing", inf
        self.transport.abort()

    def _drop_unserved(self) -> None:
        """What has arrived would be work for no one, and no limit would count it any more. It counts against its
        sender."""
        held = self.held_bytes
        self._closing, self._unread, self.reader = True, b"", RequestReader(0)
        if self.state == "complete":
            self._request = None
        self.known_senders.add_other(self.sender, held - self.held_bytes)

    def _send(self, data: bytes, *, keep_alive: bool) -> None:
        if not keep_alive:
            self._drop_unserved()
        if self.transport.is_closing():  # the sender is gone
            return
        self.transport.write(data)
        if self._paused:
            self._enter("sending", SEND_SECONDS)
        else:
            self._after_answer()

    def _after_answer(self) -> None:
        self.sender, self.is_other = self.peer, False  # the next request of a proxy may be of another
        if not self._closing:
            if self._unread:
                self._enter("receiving", self._others.read_seconds)
            else:
                self._enter("idle", self._others.idle_seconds)
            if self._unread or self._ended:
                self._schedule(len(self._unread))
                return
        elif self._ended:
            self.transport.close()
        else:
            self._enter("lingering", LINGER_SECONDS)
            with suppress(OSError):  # the sender is gone
                self.transport.write_eof()
        self._receive_more(True)


def fail(connection: HttpConnection) -> None:
    """Close a connection whose request raised. Call it while the exception is handled."""
    problems.error("a connection could not be served", exc_info=True)
    connection.close()
