"""Patient worker: gunicorn's threads get only requests that have arrived whole, and none waits for a browser to close.

gunicorn gives each new connection to a thread, which waits there for its request, and its loop waits for each browser
that does not close. So a dozen slow senders would stop the console. Here the loop receives, and each connection has one
request. Senders take turns: one with many requests does not keep the others waiting.
"""

from __future__ import annotations

import errno
import re
import socket
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from selectors import EVENT_READ
from time import monotonic
from typing import Any

from gunicorn import http
from gunicorn.workers.gthread import TConn, ThreadWorker

from receiver.contract.sender_address import SENDER_BITS, TrustedProxies, sender_at
from workers.console.sender_turns import SenderTurns

MAX_HEAD = 32 << 10
MAX_FORM_BYTES = 400 << 10
RECEIVE_BYTES = 256 << 10
ARRIVE_SECONDS = 10.0
SEND_SECONDS = 5.0
LINGER_SECONDS = 2.0
OF_ONE, BESIDE_OTHERS = 3, 2
"""Threads that a sender may have at a time, alone and while others have some."""
RECEIVE_SECONDS = 0.05
"""For which the loop goes on receiving before it gives threads their next requests."""
ANSWER_BYTES = 512 << 10
"""The kernel takes answers up to this size, if it allows as much, and the thread is free for the next request."""
CHECK_EVERY = 0.5
MAX_SURPLUS = 4 << 20
"""Bytes that may follow a whole request, such as the rest of a form that is too large."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*0*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)
_FORWARDED = re.compile(rb"\r\nx-forwarded-for:([^\r]*)", re.IGNORECASE)


class ArrivingRequest:
    """The bytes of a request. One that is malformed, too large or without a length counts as whole: it is refused, or
    closed, and that needs no more of it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.forwarded_for = ""
        """What proxies name as the address of the sender."""
        self.is_whole = False
        self._size: int | None = None
        """Of head and body, once the head has arrived."""

    def add(self, data: bytes) -> bool:
        """Whether it has arrived whole."""
        start = max(0, len(self.data) - 3)
        self.data += data
        if self._size is None:
            end = self.data.find(b"\r\n\r\n", start)
            if end >= 0:
                self._size = self._read_head(bytes(self.data[: end + 4]))
        self.is_whole = len(self.data) > MAX_HEAD if self._size is None else len(self.data) >= self._size
        return self.is_whole

    def _read_head(self, head: bytes) -> int:
        self.forwarded_for = b",".join(_FORWARDED.findall(head)).decode("latin-1")
        length = _LENGTH.search(head)
        return len(head) + (int(length[1]) if length and int(length[1]) <= MAX_FORM_BYTES else 0)


@dataclass
class Waiting:
    """A connection that the loop watches, until a thread has it and afterwards."""

    until: float
    sender: str
    request: ArrivingRequest | None
    """None once it was answered: then it stays open until the browser closes it, or it would be reset."""
    surplus: int = 0

    @property
    def is_in_line(self) -> bool:
        return self.request is not None and self.request.is_whole


class PatientWorker(ThreadWorker):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.poller: Any
        self._waiting: dict[TConn, Waiting] = {}
        """The oldest is first."""
        self._proxies: TrustedProxies = self.app.proxies
        self._turns: SenderTurns[TConn] = SenderTurns(self.cfg.threads, OF_ONE, BESIDE_OTHERS)
        self._check_at = 0.0

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """Threads get their next requests once all that has arrived is received: while they compute, the loop takes
        so long for each connection that those of others would wait behind hundreds of a busy sender."""
        events, until = self.poller.select(timeout), monotonic() + RECEIVE_SECONDS
        while events:
            for key, _ in events:
                key.data(key.fileobj)
            events = self.poller.select(0) if monotonic() < until else ()
        while conn := self._turns.begin():
            self._begin(conn)

    def accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ANSWER_BYTES)
        except BlockingIOError:
            return
        except OSError as error:  # or the browser is gone
            if error.errno in NO_ROOM:
                self._make_room()
            return
        self.nr_conns += 1
        if self.nr_conns >= self.worker_connections:  # gunicorn would accept no more
            self._make_room()
        conn = TConn(self.cfg, sock, address, listener.getsockname())
        sender = sender_at(conn.client[0], bits=SENDER_BITS)
        self._wait(conn, Waiting(monotonic() + ARRIVE_SECONDS, sender, ArrivingRequest()))

    def _wait(self, conn: TConn, waiting: Waiting) -> None:
        conn.sock.setblocking(False)
        self.poller.register(conn.sock, EVENT_READ, lambda _sock: self._receive(conn, waiting))
        self._waiting[conn] = waiting

    def _receive(self, conn: TConn, waiting: Waiting) -> None:
        if conn not in self._waiting:  # ended since the poller reported it
            return
        try:
            data = conn.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not waiting.request or waiting.is_in_line:
            waiting.surplus += len(data)
        if not data or waiting.surplus > MAX_SURPLUS:  # also in line: a browser that closes its side has gone
            self._end(conn)
        elif waiting.request and not waiting.is_in_line and waiting.request.add(data):
            waiting.until, waiting.sender = inf, self._sender_of(conn, waiting.request)
            self._turns.add(waiting.sender, conn)

    def _sender_of(self, conn: TConn, request: ArrivingRequest) -> str:
        sender = self._proxies.sender(conn.client[0], {"x-forwarded-for": request.forwarded_for})
        return sender_at(sender, bits=SENDER_BITS)

    def _begin(self, conn: TConn) -> None:
        request = self._stop_waiting(conn).request
        assert request
        # The parser gets no socket: what it would still read would keep a thread waiting.
        conn.parser = http.get_parser(self.cfg, iter([bytes(request.data)]), conn.client)
        conn.initialized = True
        self.enqueue_req(conn)

    def handle_request(self, req: Any, conn: TConn) -> bool:
        """In a thread. Only a large answer waits for the browser here."""
        conn.sock.settimeout(SEND_SECONDS)
        with suppress(TimeoutError):
            super().handle_request(req, conn)
        return False

    def finish_request(self, conn: TConn, fs: Any) -> None:  # noqa: ARG002  gunicorn's signature
        sender = self._turns.end(conn)
        try:
            conn.sock.shutdown(socket.SHUT_WR)
            self._wait(conn, Waiting(monotonic() + LINGER_SECONDS, sender, None))
        except OSError:  # the browser is gone
            self._close(conn)

    def murder_pending(self) -> None:
        """Called by gunicorn's loop again and again: end connections that are overdue."""
        now = monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_EVERY
        for conn in [one for one, waiting in self._waiting.items() if waiting.until < now or self._may_go(waiting)]:
            self._end(conn)

    def _may_go(self, waiting: Waiting) -> bool:
        """When the process stops: a request that is arriving is still answered."""
        return not (self.alive or (waiting.request and waiting.request.data))

    def _make_room(self) -> None:
        """End the oldest connection of the sender that has most of them."""
        senders = Counter(waiting.sender for waiting in self._waiting.values())
        for busiest, _ in senders.most_common(1):
            self._end(next(conn for conn, waiting in self._waiting.items() if waiting.sender == busiest))

    def _end(self, conn: TConn) -> None:
        waiting = self._stop_waiting(conn)
        if waiting.is_in_line:
            self._turns.give_up(waiting.sender, conn)
        self._close(conn)

    def _stop_waiting(self, conn: TConn) -> Waiting:
        self.poller.unregister(conn.sock)
        return self._waiting.pop(conn)

    def _close(self, conn: TConn) -> None:
        self.nr_conns -= 1
        conn.close()
