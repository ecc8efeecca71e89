"""Connection I/O: reads requests and sends answers in the main loop, without blocking, each state with a deadline.

A connection is in one state at a time, and each state but `serving` has a deadline:

    reading --complete--> serving --answer--> sending --keep-alive--> reading
                                                      --close-------> lingering --> closed
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from receiver.delivery.answers import protocol_error
from receiver.server.connection import Connection
from receiver.server.connection_table import ConnectionTable
from receiver.server.lingering_close import LingeringClose
from receiver.server.request_head import Head

SEND_SECONDS = 5.0
IDLE_SECONDS_AT_STOP = 0.2
"""When the process stops, how long a connection that has sent nothing stays open: its request may be on the way."""
CHECK_DEADLINES_EVERY = 0.05
MAX_BUFFERED_BYTES = 64 << 20
"""Bytes of requests that one process buffers. Beyond it, the request that has been arriving longest times out."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

ReadHead = Callable[[bytes], Head | None]


class ConnectionIO:
    def __init__(
        self,
        poller: selectors.BaseSelector,
        *,
        read_timeout: float,
        max_body: int,
        keepalive: float,
        read_head: ReadHead | None,
        on_close: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self.table = ConnectionTable(poller, self._on_event, on_close)
        self.lingering = LingeringClose(self.table)
        self.ready: list[Connection] = []
        """Connections whose next request is complete; each is served once in a turn of the loop."""
        self._read_timeout, self._max_body, self._keepalive = read_timeout, max_body, keepalive
        self._read_head = read_head
        """Reads the head of a delivery that arrived in one piece; None where the worker does not use it."""
        self._log = log
        self._check_deadlines_at = 0.0

    # Reading

    def add(self, sock: Any, client: Any, server: Any) -> None:
        self._start_reading(Connection(sock, client, server, self._max_body), self._read_timeout)

    def _start_reading(self, connection: Connection, seconds: float) -> None:
        """Wait for a request; the bytes that came with the last one may already be one."""
        self.table.enter(self.table.reading, connection, seconds)
        self.table.watch(connection, selectors.EVENT_READ)
        if connection.framing:
            self._advance(connection)

    def _on_readable(self, connection: Connection) -> None:
        data = connection.receive()
        if data is None:
            return
        if not data:
            self._on_end_of_stream(connection)
            return
        self.table.buffered_bytes += len(data)
        self._add_bytes(connection, data)
        if self.table.buffered_bytes > MAX_BUFFERED_BYTES:
            self.time_out_oldest(with_bytes=True)

    def _add_bytes(self, connection: Connection, data: bytes) -> None:
        """A delivery that arrives in one piece, as nearly all do, skips the framing."""
        if not connection.framing:
            head = self._read_head(data) if self._read_head else None
            if head is not None and head.length <= self._max_body:
                connection.take_whole(data, head)
                self._make_ready(connection)
                return
            self.table.enter(self.table.reading, connection, self._read_timeout)  # now the newest of the requests
        connection.framing.feed(data)
        self._advance(connection)

    def _on_end_of_stream(self, connection: Connection) -> None:
        """The sender sends no more. What has arrived is answered, because it may still read."""
        if connection.framing:
            connection.take_request()
            self._make_ready(connection)
        else:
            self.table.close(connection)

    def _advance(self, connection: Connection) -> None:
        framing = connection.framing
        if framing.too_long:
            self._refuse(connection, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif framing.ready:
            connection.take_request()
            self._make_ready(connection)
        elif framing.expects_continue:
            framing.expects_continue = False
            with suppress(OSError):  # the sender is gone, and its deadline ends the connection
                connection.sock.send(CONTINUE)

    def _make_ready(self, connection: Connection) -> None:
        self.table.leave(connection)
        self.ready.append(connection)

    # Refusing

    def time_out_oldest(self, *, with_bytes: bool = False) -> None:
        """Time out the request that has been arriving longest; `with_bytes` skips connections that sent nothing."""
        reading = self.table.reading
        if connection := next((one for one in reading if one.framing or not with_bytes), None):
            self._time_out(connection)

    def _time_out(self, connection: Connection) -> None:
        """Answer 408. A connection that has sent nothing is closed without an answer."""
        if connection.framing:
            self._refuse(connection, HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.table.close(connection)

    def _refuse(self, connection: Connection, status: HTTPStatus) -> None:
        self.table.buffered_bytes -= connection.discard_unread()
        self.reply(connection, protocol_error(status), keep_alive=False)

    def abort(self, connection: Connection) -> None:
        """Close a connection whose handling raised. Call it while the exception is handled."""
        self._log.exception("a connection could not be served")
        self.table.close(connection)

    def close_overdue(self) -> None:
        """Time out or close the connections whose deadline has passed; does nothing if it was called a moment ago."""
        now = time.monotonic()
        if now < self._check_deadlines_at:
            return
        self._check_deadlines_at = now + CHECK_DEADLINES_EVERY
        for connection in self.table.overdue(self.table.reading, now):
            self._time_out(connection)
        for state in (self.table.sending, self.table.lingering):
            for connection in self.table.overdue(state, now):
                self.table.close(connection)

    # Answering

    def reply(self, connection: Connection, answer: bytes, *, keep_alive: bool) -> None:
        """Send as much of the answer as the sender takes now, and the rest when it takes more."""
        self.table.buffered_bytes -= connection.request_bytes
        connection.request, connection.request_bytes = b"", 0
        connection.answer, connection.keep_alive = answer, keep_alive
        connection.send()
        if connection.answer:
            self.table.enter(self.table.sending, connection, SEND_SECONDS)
            self.table.watch(connection, selectors.EVENT_WRITE)
        else:
            self._after_answer(connection)

    def _on_writable(self, connection: Connection) -> None:
        connection.send()
        if not connection.answer:
            self._after_answer(connection)

    def _after_answer(self, connection: Connection) -> None:
        if not connection.keep_alive:
            self.lingering.begin(connection)
        elif connection.framing:
            self._start_reading(connection, self._read_timeout)
        else:
            self._start_reading(connection, self._keepalive)

    def stop(self) -> None:
        """Wait only a moment for new requests. Answers promised keep-alive, so some requests may be on the way."""
        self._keepalive = IDLE_SECONDS_AT_STOP
        deadline = time.monotonic() + IDLE_SECONDS_AT_STOP
        for connection in self.table.reading:
            if not connection.framing:
                connection.deadline = min(connection.deadline, deadline)

    # Events of the poller

    def _on_event(self, connection: Connection, _: Any) -> None:
        try:
            self._dispatch(connection)
        except Exception:  # noqa: BLE001  logged there
            self.abort(connection)

    def _dispatch(self, connection: Connection) -> None:
        state = connection.state
        if state is self.table.reading:
            self._on_readable(connection)
        elif state is self.table.sending:
            self._on_writable(connection)
        elif state is self.table.lingering:
            self.lingering.on_readable(connection)
        else:  # more bytes, or the end of the stream, while a request is served: read after its answer
            self.table.watch(connection, 0)
