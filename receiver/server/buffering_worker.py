"""The gunicorn worker class that gives a thread only complete requests.

gunicorn's own threads read from the socket, so as many slow senders as there are threads stop the service. Here the
main loop does everything that waits for a sender, without blocking (see `receiver.server.connection_io`). A thread is
given bytes and returns bytes; it never uses a socket.
"""

from __future__ import annotations

import errno
import gc
import time
from concurrent.futures import Future
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from gunicorn.http import errors
from gunicorn.workers.gthread import ThreadWorker

from receiver.delivery.answers import protocol_error
from receiver.server.connection import Connection
from receiver.server.connection_io import IDLE_SECONDS_AT_STOP, ConnectionIO, ReadHead
from receiver.server.request_framing import MAX_HEAD
from receiver.server.request_parser import RequestParser

CONNECTIONS = 1000
"""Maximum for one process."""
LINGERING_CONNECTIONS = 100
"""Of them, reserved for connections that linger after a refusal, so that new ones need not wait for them."""
NOTIFY_EVERY = 1.0
REQUESTS_PER_TURN = 128
"""Served in one turn of the loop, before it handles new events."""
COLLECT_AFTER = 20_000
"""Objects allocated between garbage collections. A request allocates a few hundred, and most are freed with it."""

_STATUS_OF_ERROR: dict[type[Exception], HTTPStatus] = {
    errors.LimitRequestLine: HTTPStatus.REQUEST_URI_TOO_LONG,
    errors.LimitRequestHeaders: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    errors.UnsupportedTransferCoding: HTTPStatus.NOT_IMPLEMENTED,
}


class AnswerBuffer:
    """Takes the place of the socket while gunicorn writes an answer in a thread."""

    def __init__(self) -> None:
        self.written = bytearray()

    def sendall(self, data: bytes) -> None:
        self.written += data


class BufferingWorker(ThreadWorker):
    """gthread, with the waiting in the main loop."""

    read_head: ReadHead | None = None
    """Set by a worker class that reads the head of a delivery while bytes arrive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = self.app.config.receiver
        self.parser = RequestParser(self.cfg)
        self._notify_at = 0.0

    def load_wsgi(self) -> None:
        """Called when the poller exists. What is loaded now stays, so the garbage collector need not scan it again."""
        super().load_wsgi()
        assert self.poller
        self.io = ConnectionIO(
            self.poller,
            read_timeout=self.limits.read_timeout,
            max_body=self.limits.max_body,
            keepalive=self.cfg.keepalive,
            read_head=self.read_head,
            on_close=self._on_close,
            log=self.log,
        )
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)

    # The main loop; gunicorn calls these

    def accept(self, listener: Any) -> None:
        try:
            sock, client = listener.accept()
        except OSError as error:  # another process was faster, the sender is gone, or there are no descriptors
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self.io.lingering.close_oldest():
                self.io.time_out_oldest()
            return
        self.nr_conns += 1
        sock.setblocking(False)
        self.io.add(sock, client, listener.getsockname())
        if self.nr_conns - len(self.io.table.lingering) > self.worker_connections - LINGERING_CONNECTIONS:
            self.io.time_out_oldest()
        if self.nr_conns >= self.worker_connections:
            self.io.lingering.close_oldest()

    def _on_close(self) -> None:
        self.nr_conns -= 1

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        longest = timeout if self.alive else IDLE_SECONDS_AT_STOP / 4
        super().wait_for_and_dispatch_events(0 if self.io.ready else longest)
        ready, self.io.ready = self.io.ready[:REQUESTS_PER_TURN], self.io.ready[REQUESTS_PER_TURN:]
        self.serve(ready)

    def notify(self) -> None:
        """Report to the master that this process is alive: a write to a file, so not in each turn."""
        if time.monotonic() >= self._notify_at:
            self._notify_at = time.monotonic() + NOTIFY_EVERY
            super().notify()

    def murder_pending(self) -> None:
        self.io.close_overdue()

    def set_accept_enabled(self, enabled: bool) -> None:
        super().set_accept_enabled(enabled)
        if not self.alive:
            self.io.stop()

    # Serving, in a thread, from memory

    def serve(self, ready: list[Connection]) -> None:
        """Answer complete requests; `io.reply` is called for each in the end, on this thread."""
        for connection in ready:
            self.enqueue_req(connection)

    def handle(self, conn: Connection) -> tuple[bytes, bool]:
        """The answer to a request, and whether the connection stays open. Never raises."""
        buffer = AnswerBuffer()
        try:
            place = SimpleNamespace(sock=buffer, client=conn.client, server=conn.server)
            request = self.parser.parse(conn)
            if conn.chunked and not self.parser.ends_as_framed(conn):
                request.force_close()
            keep_alive = bool(self.handle_request(request, place))
            return bytes(buffer.written), keep_alive
        except errors.NoMoreData:
            too_long = len(conn.request) > MAX_HEAD
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if too_long else HTTPStatus.BAD_REQUEST
        except errors.ParseException as error:
            status = _STATUS_OF_ERROR.get(type(error), HTTPStatus.BAD_REQUEST)
        except Exception:
            self.log.exception("a request could not be answered")
            status = HTTPStatus.INTERNAL_SERVER_ERROR
        return protocol_error(status), False

    def finish_request(self, conn: Connection, fs: Future[tuple[bytes, bool]]) -> None:
        """Back on the main thread, with the answer."""
        answer, keep_alive = fs.result() if not fs.cancelled() else (b"", False)
        self.io.reply(conn, answer, keep_alive=keep_alive)
