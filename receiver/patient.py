"""The gunicorn worker class: a thread is taken only for a request that has arrived whole.

gunicorn's threads read from the socket themselves, so as many slow senders as there are threads stop the
service. Here the main loop gathers each request without blocking, under a deadline and inside limits,
and a thread is handed bytes, never a socket to read from. The lingering close that lets a sender read
its refusal waits in the loop, too, and not in a thread.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import orjson
from gunicorn.http import errors
from gunicorn.http.parser import RequestParser
from gunicorn.workers.gthread import TConn, ThreadWorker

from receiver.framing import MAX_HEAD, Framing

RECEIVE = 64 * 1024
SEND_SECONDS = 5.0
LINGER_SECONDS = 2.0
LINGER_BYTES = 8 << 20
PARTING_SECONDS = 0.2
"""At the end, how long a connection that has sent nothing stays: its request may be on the way."""
MAX_HELD = 64 << 20
"""Bytes of requests that one process holds; beyond it the one that has been arriving longest is given up."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_REFUSED_AS: dict[type[Exception], HTTPStatus] = {
    errors.LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    errors.LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    errors.UnsupportedTransferCoding: HTTPStatus.NOT_IMPLEMENTED,
}
_DETAILS = {
    HTTPStatus.BAD_REQUEST: "This is not a request that can be read.",
    HTTPStatus.REQUEST_TIMEOUT: "The request took too long to arrive.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too long.",
    HTTPStatus.REQUEST_URI_TOO_LONG: "The URL is too long.",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "The headers are too many or too long.",
    HTTPStatus.NOT_IMPLEMENTED: "This transfer coding is not known.",
}


class Connection(TConn):
    """One sender, and what has come of its next request."""

    def __init__(self, cfg: Any, sock: socket.socket, client: Any, server: Any, limit: int) -> None:
        super().__init__(cfg, sock, client, server)
        self.framing = Framing(limit=limit)
        self.deadline = 0.0
        self.request, self.complete = b"", False
        self.drained = 0

    def take(self) -> None:
        """Make what has come the request to serve; what follows it begins the next."""
        self.request, rest = self.framing.split()
        self.complete = self.framing.complete
        self.framing = Framing(rest, limit=self.framing.limit)


class PatientWorker(ThreadWorker):
    """gthread, but the main loop does the waiting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = self.app.config.receiver
        self._gathering: dict[Connection, None] = {}
        self._lingering: dict[Connection, None] = {}
        self._held = 0

    # Gathering: on the main thread, never blocking

    def accept(self, listener: Any) -> None:
        try:
            sock, client = listener.accept()
        except OSError as error:  # another process was faster, the sender is gone, or there are no descriptors
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._give_up_the_longest()
            return
        self.nr_conns += 1
        connection = Connection(self.cfg, sock, client, listener.getsockname(), self._limits.max_body)
        self._gather(connection, self._limits.read_timeout)
        if self.nr_conns >= self.worker_connections:
            self._give_up_the_longest()

    def _gather(self, connection: Connection, seconds: float) -> None:
        """Wait for a request; what came with the one before may be one already."""
        connection.sock.setblocking(False)
        connection.deadline = time.monotonic() + seconds
        self._gathering[connection] = None
        self._held += len(connection.framing)
        self._watch(connection, self._on_bytes)
        self._go_on(connection)

    def _on_bytes(self, connection: Connection) -> None:
        if connection not in self._gathering:
            return  # given up since the poller saw it
        try:
            data = connection.sock.recv(RECEIVE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._on_end(connection)
            return
        if not connection.framing:
            connection.deadline = time.monotonic() + self._limits.read_timeout
        self._held += len(data)
        connection.framing.feed(data)
        self._go_on(connection)
        if self._held > MAX_HELD:
            self._give_up_the_longest()

    def _on_end(self, connection: Connection) -> None:
        """No more will come. What has come is answered: the sender may still listen."""
        if connection.framing:
            self._dispatch(connection)
        else:
            self._forget(connection)
            self._close(connection)

    def _go_on(self, connection: Connection) -> None:
        framing = connection.framing
        if framing.too_long:
            self._refuse(connection, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        elif framing.ready:
            self._dispatch(connection)
        elif framing.expects_continue:
            framing.expects_continue = False
            self._say(connection, CONTINUE)

    def _dispatch(self, connection: Connection) -> None:
        self._forget(connection)
        connection.take()
        self._held += len(connection.request)
        self.enqueue_req(connection)

    def _forget(self, connection: Connection) -> None:
        self._gathering.pop(connection, None)
        self._held -= len(connection.framing)
        self._unwatch(connection)

    def _give_up_the_longest(self) -> None:
        if connection := next(iter(self._gathering), None):
            self._give_up(connection)

    def _give_up(self, connection: Connection) -> None:
        """Too slow. Where nothing has come there is nothing to answer."""
        if connection.framing:
            self._refuse(connection, HTTPStatus.REQUEST_TIMEOUT)
        else:
            self._forget(connection)
            self._close(connection)

    def _refuse(self, connection: Connection, status: HTTPStatus) -> None:
        self._forget(connection)
        self._say(connection, refusal(status))
        self._linger(connection)

    def _say(self, connection: Connection, answer: bytes) -> None:
        with suppress(OSError):  # it listens no more, and its deadline ends it
            connection.sock.send(answer)

    # Serving: in a thread, from memory

    def handle(self, conn: Connection) -> bool:
        """Answer one request; True where the connection goes on."""
        request = None
        try:
            conn.sock.settimeout(SEND_SECONDS)
            conn.parser = RequestParser(self.cfg, iter([conn.request]), conn.client)
            request = next(conn.parser)
            request._expected_100_continue = False  # said already, where it was waited for
            if not conn.complete:
                request.force_close()
            return bool(self.handle_request(request, conn))
        except errors.NoMoreData:
            why = errors.LimitRequestHeaders("") if len(conn.request) > MAX_HEAD else errors.ParseException()
            self.handle_error(request, conn.sock, conn.client, why)
        except (StopIteration, OSError):
            self.log.debug("the sender went away")
        except Exception as error:  # noqa: BLE001  whatever it is, it ends with an answer
            self.handle_error(request, conn.sock, conn.client, error)
        return False

    def handle_error(self, req: Any, client: Any, addr: Any, exc: Exception) -> None:  # noqa: ARG002  gunicorn's
        """One form for every refusal, and nothing of the sender's text in it or in the log."""
        if isinstance(exc, errors.ParseException):
            status = _REFUSED_AS.get(type(exc), HTTPStatus.BAD_REQUEST)
        else:
            self.log.exception("a request could not be answered")
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        try:
            client.sendall(refusal(status))
        except OSError:
            self.log.debug("the sender went away")

    def finish_request(self, conn: Connection, fs: Future[bool]) -> None:
        """Back on the main thread: wait for the next request, or end the connection."""
        self._held -= len(conn.request)
        conn.request = b""
        if fs.cancelled() or not fs.result():
            self._linger(conn)
        elif conn.framing:
            self._gather(conn, self._limits.read_timeout)
        else:  # it was told that it may send another, so it may be doing so even when we are about to end
            self._gather(conn, self.cfg.keepalive if self.alive else PARTING_SECONDS)

    # Ending: closing at once could cost the sender the answer that is on its way

    def _linger(self, connection: Connection) -> None:
        try:
            connection.sock.setblocking(False)
            connection.sock.shutdown(socket.SHUT_WR)
            self._watch(connection, self._on_rest)
        except (OSError, ValueError):
            self._close(connection)
            return
        connection.deadline = time.monotonic() + LINGER_SECONDS
        self._lingering[connection] = None

    def _on_rest(self, connection: Connection) -> None:
        if connection not in self._lingering:
            return
        try:
            many = len(connection.sock.recv(RECEIVE))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            many = 0
        connection.drained += many
        if not many or connection.drained > LINGER_BYTES:
            self._end_lingering(connection)

    def _end_lingering(self, connection: Connection) -> None:
        self._lingering.pop(connection)
        self._unwatch(connection)
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        self.nr_conns -= 1
        connection.close()

    def _watch(self, connection: Connection, callback: Callable[[Connection], None]) -> None:
        assert self.poller
        self.poller.register(connection.sock, selectors.EVENT_READ, lambda _: callback(connection))

    def _unwatch(self, connection: Connection) -> None:
        assert self.poller
        self.poller.unregister(connection.sock)

    def murder_pending(self) -> None:
        """gunicorn calls this at least each second: whoever is late is given up."""
        now = time.monotonic()
        for connection in [one for one in self._gathering if one.deadline < now]:
            self._give_up(connection)
        for connection in [one for one in self._lingering if one.deadline < now]:
            self._end_lingering(connection)

    def set_accept_enabled(self, enabled: bool) -> None:
        super().set_accept_enabled(enabled)
        if not self.alive:
            parting = time.monotonic() + PARTING_SECONDS
            for connection in self._gathering:
                if not connection.framing:
                    connection.deadline = min(connection.deadline, parting)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        super().wait_for_and_dispatch_events(timeout if self.alive else PARTING_SECONDS / 4)


def refusal(status: HTTPStatus) -> bytes:
    """An answer that ends the connection, as RFC 9457 has it."""
    content = {"type": "about:blank", "title": status.phrase, "status": status.value}
    body = orjson.dumps({**content, "detail": _DETAILS.get(status, status.phrase)})
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\nContent-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
