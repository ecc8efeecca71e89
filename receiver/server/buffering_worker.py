"""The gunicorn worker class that waits for senders: a thread is taken only for a request that has arrived whole.

gunicorn's threads read from the socket themselves, so as many slow senders as there are threads stop the
service. Here the main loop does everything that waits for a sender, without blocking: it gathers each request under a
deadline and inside limits, sends the answer as fast as the sender reads it, and lingers until it has been read.
A thread is handed bytes and gives bytes back; it never sees a socket.

A connection is in one state at a time, and each state but `serving` has a deadline:

    gathering --whole--> serving --answer--> sending --keep-alive--> gathering
                                                     --close-------> lingering --> closed
"""

from __future__ import annotations

import errno
import gc
import selectors
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from gunicorn.http import errors
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader
from gunicorn.workers.gthread import ThreadWorker

from receiver.delivery.answers import protocol_error
from receiver.server.connection import Connection
from receiver.server.request_framing import MAX_HEAD, Framing

RECEIVE = 64 * 1024
PIECE = 4 * 1024
SEND_SECONDS = 5.0
LINGER_SECONDS = 2.0
CONNECTIONS = 1000
"""Of one process."""
SPARE = 100
"""Of them, for those that were given up and linger: the next one must not wait until they have read why."""
LINGER_BYTES = 8 << 20
PARTING_SECONDS = 0.2
"""At the end, how long a connection that has sent nothing stays: its request may be on the way."""
LOOK_SECONDS = 0.05
"""How often deadlines are looked at."""
NOTICE_SECONDS = 1.0
TURN = 128
"""Requests served in one turn of the loop, before it looks at the senders again."""
MAX_HELD = 64 << 20
"""Bytes of requests that one process holds; beyond it the one that has been arriving longest is given up."""
COLLECT_AFTER = 20_000
"""Objects made and not yet freed; a request makes a few hundred, and most end with it."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_REFUSED_AS: dict[type[Exception], HTTPStatus] = {
    errors.LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    errors.LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    errors.UnsupportedTransferCoding: HTTPStatus.NOT_IMPLEMENTED,
}


class PlainRequest(Request):
    """gunicorn's, which asks of each sender whether it may say how it was forwarded. Here nobody may."""

    def _peer_trusted_for_forwarded(self) -> tuple[dict[str, str], list[str]]:
        return {}, []


class Paper:
    """Stands in for the socket while a thread writes an answer."""

    def __init__(self) -> None:
        self.written = bytearray()

    def sendall(self, data: bytes) -> None:
        self.written += data


def in_pieces(request: bytes) -> Iterator[bytes]:
    """For a parser that copies, with each chunk, the rest of the piece it stands in."""
    return (request[at : at + PIECE] for at in range(0, len(request), PIECE))


class BufferingWorker(ThreadWorker):
    """gthread, but the main loop does the waiting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = self.app.config.receiver
        self._gathering: dict[Connection, None] = {}
        self._sending: dict[Connection, None] = {}
        self._lingering: dict[Connection, None] = {}
        self._ready: list[Connection] = []
        """Those whose next request is whole; each connection is served once in a turn of the loop."""
        self._held = 0
        self._next_look = self._next_notice = 0.0
        # gunicorn's settings look each value up through two calls, and the parser asks for twenty
        plain = {name: setting.get() for name, setting in self.cfg.settings.items()}
        self._parsing = SimpleNamespace(
            **plain, is_ssl=False, forwarded_allow_networks=self.cfg.forwarded_allow_networks
        )

    def load_wsgi(self) -> None:
        """What is loaded now stays, so the collector of cycles need not walk it again and again."""
        super().load_wsgi()
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)

    # Gathering

    def accept(self, listener: Any) -> None:
        try:
            sock, client = listener.accept()
        except OSError as error:  # another process was faster, the sender is gone, or there are no descriptors
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._close_the_first_that_lingers():
                self._give_up_the_longest()
            return
        self.nr_conns += 1
        sock.setblocking(False)
        self._gather(Connection(sock, client, listener.getsockname(), self._limits.max_body), self._limits.read_timeout)
        if self.nr_conns - len(self._lingering) > self.worker_connections - SPARE:
            self._give_up_the_longest()
        if self.nr_conns >= self.worker_connections:
            self._close_the_first_that_lingers()

    def _gather(self, connection: Connection, seconds: float) -> None:
        """Wait for a request; what came with the one before may be one already."""
        self._enter(self._gathering, connection, seconds)
        self._watch(connection, selectors.EVENT_READ)
        if connection.framing:
            self._go_on(connection)

    def _on_bytes(self, connection: Connection) -> None:
        data = self._receive(connection)
        if data is None:
            return
        if not data:
            self._on_end(connection)
            return
        self._held += len(data)
        self.take_in(connection, data)
        if self._held > MAX_HELD:
            self._give_up_the_longest(holding=True)

    def take_in(self, connection: Connection, data: bytes) -> None:
        """Bytes of a request."""
        if not connection.framing:
            connection.deadline = time.monotonic() + self._limits.read_timeout
        connection.framing.feed(data)
        self._go_on(connection)

    def _receive(self, connection: Connection) -> bytes | None:
        """What has come; nothing at the end, None where there is nothing yet."""
        try:
            return connection.sock.recv(RECEIVE)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""

    def _on_end(self, connection: Connection) -> None:
        """No more will come. What has come is answered: the sender may still listen."""
        if connection.framing:
            self._take(connection)
        else:
            self._close(connection)

    def _go_on(self, connection: Connection) -> None:
        framing = connection.framing
        if framing.too_long:
            self._refuse(connection, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif framing.ready:
            self._take(connection)
        elif framing.expects_continue:
            framing.expects_continue = False
            with suppress(OSError):  # it listens no more, and its deadline ends it
                connection.sock.send(CONTINUE)

    def _take(self, connection: Connection) -> None:
        connection.take()
        self.make_ready(connection)

    def make_ready(self, connection: Connection) -> None:
        """Its request is to be served in this turn of the loop."""
        self._leave(connection)
        self._ready.append(connection)

    def _give_up_the_longest(self, *, holding: bool = False) -> None:
        """Where bytes are to be freed, not one that holds none: it would cost its sender a connection for nothing."""
        if connection := next((one for one in self._gathering if one.framing or not holding), None):
            self._give_up(connection)

    def _close_the_first_that_lingers(self) -> bool:
        """It had the most time to read its answer."""
        if connection := next(iter(self._lingering), None):
            self._close(connection)
        return connection is not None

    def _give_up(self, connection: Connection) -> None:
        """Too slow. Where nothing has come there is nothing to answer."""
        if connection.framing:
            self._refuse(connection, HTTPStatus.REQUEST_TIMEOUT)
        else:
            self._close(connection)

    def _refuse(self, connection: Connection, status: HTTPStatus) -> None:
        self._held -= len(connection.framing)
        connection.framing = Framing(limit=connection.framing.limit)
        self.reply(connection, protocol_error(status), goes_on=False)

    # Serving: in a thread, from memory

    def serve(self, ready: list[Connection]) -> None:
        """Have whole requests answered; `reply` is called for each in the end, on this thread."""
        for connection in ready:
            self.enqueue_req(connection)

    def parse(self, connection: Connection) -> Any:
        """gunicorn's parser, which is the judge of what is a request."""
        pieces = in_pieces(connection.request) if connection.chunked else iter([connection.request])
        request = PlainRequest(self._parsing, IterUnreader(pieces), connection.client)
        request._expected_100_continue = False  # said already, where it was waited for
        if not connection.complete:
            request.force_close()
        return request

    def handle(self, conn: Connection) -> tuple[bytes, bool]:
        """The answer to a request, and whether the connection goes on. Never raises."""
        paper = Paper()
        try:
            place = SimpleNamespace(sock=paper, client=conn.client, server=conn.server)
            request = self.parse(conn)
            if conn.chunked and not self._ends_well(conn):
                request.force_close()
            goes_on = bool(self.handle_request(request, place))
            return bytes(paper.written), goes_on
        except errors.NoMoreData:
            too_long = len(conn.request) > MAX_HEAD
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if too_long else HTTPStatus.BAD_REQUEST
        except errors.ParseException as error:
            status = _REFUSED_AS.get(type(error), HTTPStatus.BAD_REQUEST)
        except Exception:
            self.log.exception("a request could not be answered")
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        return protocol_error(status), False

    def _ends_well(self, connection: Connection) -> bool:
        """Whether the parser, too, finds the end of a chunked body where the framing found it.

        If not, nobody knows where the next request begins. It is asked before the answer is written, which says
        whether the connection goes on, and whoever answers may not read the body at all.
        """
        trial = self.parse(connection)
        try:
            while trial.body.read(RECEIVE):
                pass
        except Exception:  # noqa: BLE001  whoever reads the body says what is wrong with it
            return False
        return not trial.unreader.read()

    def finish_request(self, conn: Connection, fs: Future[tuple[bytes, bool]]) -> None:
        """Back on the main thread, with the answer."""
        answer, goes_on = fs.result() if not fs.cancelled() else (b"", False)
        self.reply(conn, answer, goes_on=goes_on)

    # Answering

    def reply(self, connection: Connection, answer: bytes, *, goes_on: bool) -> None:
        """Send an answer as far as the sender takes it now, and the rest when it takes more."""
        self._held -= connection.held
        connection.request, connection.held = b"", 0
        connection.answer, connection.goes_on = answer, goes_on
        self._send(connection)
        if connection.answer:
            self._enter(self._sending, connection, SEND_SECONDS)
            self._watch(connection, selectors.EVENT_WRITE)
        else:
            self._after(connection)

    def _send(self, connection: Connection) -> None:
        try:
            sent = connection.sock.send(connection.answer)
            connection.answer = connection.answer[sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # it listens no more
            connection.answer, connection.goes_on = b"", False

    def _on_room(self, connection: Connection) -> None:
        self._send(connection)
        if not connection.answer:
            self._after(connection)

    def _after(self, connection: Connection) -> None:
        """An answer is out: wait for the next request, or end the connection."""
        if not connection.goes_on:
            self._linger(connection)
        elif connection.framing:
            self._gather(connection, self._limits.read_timeout)
        else:  # it was told that it may send another, so it may be doing so even when we are about to end
            self._gather(connection, self.cfg.keepalive if self.alive else PARTING_SECONDS)

    # Ending: closing at once could cost the sender the answer that is on its way

    def _linger(self, connection: Connection) -> None:
        self._held -= len(connection.framing)
        connection.framing = Framing(limit=connection.framing.limit)
        try:
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(connection)
            return
        self._enter(self._lingering, connection, LINGER_SECONDS)
        self._watch(connection, selectors.EVENT_READ)

    def _on_rest(self, connection: Connection) -> None:
        data = self._receive(connection)
        if data is None:
            return
        connection.drained += len(data)
        if not data or connection.drained > LINGER_BYTES:
            self._close(connection)

    def give_up_on(self, connection: Connection) -> None:
        """Called while an exception is handled: what goes wrong with one connection ends that one only."""
        self.log.exception("a connection could not be served")
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        self._leave(connection)
        self._watch(connection, 0)
        self._held -= len(connection.framing) + connection.held
        self.nr_conns -= 1
        with suppress(OSError):
            connection.sock.close()

    # The loop

    def _enter(self, state: dict[Connection, None], connection: Connection, seconds: float) -> None:
        self._leave(connection)
        connection.deadline = time.monotonic() + seconds
        connection.state = state
        state[connection] = None

    def _leave(self, connection: Connection) -> None:
        if connection.state is not None:
            del connection.state[connection]
            connection.state = None

    def _watch(self, connection: Connection, events: int) -> None:
        """What the poller looks for. It stays the same from request to request, since a change costs a call."""
        if events == connection.watched:
            return
        assert self.poller
        if not events:
            self.poller.unregister(connection.sock)
        elif not connection.watched:
            self.poller.register(connection.sock, events, partial(self._on_event, connection))
        else:
            self.poller.modify(connection.sock, events, partial(self._on_event, connection))
        connection.watched = events

    def _on_event(self, connection: Connection, _: Any) -> None:
        """Something can be read or written."""
        try:
            self._go(connection)
        except Exception:  # noqa: BLE001  logged there
            self.give_up_on(connection)

    def _go(self, connection: Connection) -> None:
        state = connection.state
        if state is self._gathering:
            self._on_bytes(connection)
        elif state is self._sending:
            self._on_room(connection)
        elif state is self._lingering:
            self._on_rest(connection)
        else:  # it sends more, or is gone; either is looked at when this request has been answered
            self._watch(connection, 0)

    def notify(self) -> None:
        """Tell the master that we live. gunicorn does in each turn, and that is a write to a file."""
        if time.monotonic() >= self._next_notice:
            self._next_notice = time.monotonic() + NOTICE_SECONDS
            super().notify()

    def murder_pending(self) -> None:
        """gunicorn calls this in each turn: whoever is late is given up."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        for connection in [one for one in self._gathering if one.deadline < now]:
            self._give_up(connection)
        for state in (self._sending, self._lingering):
            for connection in [one for one in state if one.deadline < now]:
                self._close(connection)

    def set_accept_enabled(self, enabled: bool) -> None:
        super().set_accept_enabled(enabled)
        if not self.alive:
            parting = time.monotonic() + PARTING_SECONDS
            for connection in self._gathering:
                if not connection.framing:
                    connection.deadline = min(connection.deadline, parting)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        longest = timeout if self.alive else PARTING_SECONDS / 4
        super().wait_for_and_dispatch_events(0 if self._ready else longest)
        ready, self._ready = self._ready[:TURN], self._ready[TURN:]
        self.serve(ready)
