"""The gunicorn worker class with one event loop for each process: deliveries are stored in groups, then answered.

The loop reads requests (see `receiver.server.buffering_worker`) and verifies deliveries without ever blocking. While
one group is being stored, admitted deliveries collect for the next. `receiver.server.group_commit` stores a group with
one round trip to Redis or one transaction of the spool. So the cost of a delivery falls as load rises, and an idle
process adds no delay. An answer is sent after its group is acknowledged, never before.

Only deliveries take this path, before Flask's routing. Everything else (health, wrong paths, malformed requests) is
served by the Flask app in a thread. `receiver.delivery.admission` decides about deliveries on both paths.
"""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

from receiver.contract.intake import Delivery
from receiver.delivery.admission import BodyUnreadable, IncomingDelivery, read_body
from receiver.delivery.answers import Answer, to_bytes
from receiver.delivery.pipeline import DeliveryPipeline
from receiver.delivery.storage import StoreResults
from receiver.inbox.accept_batch import GROUP_SIZE
from receiver.server.buffering_worker import BufferingWorker
from receiver.server.connection import Connection
from receiver.server.group_commit import GroupCommit
from receiver.server.request_head import PATH, read_head

GROUP_BYTES = 4 << 20
"""A group must be sent, stored and acknowledged well within the timeout of Redis."""

_DELIVERY = b"POST /webhooks"
_PATH = re.compile(PATH)


class PendingAnswer(NamedTuple):
    """A delivery that waits for its answer, and how to write it."""

    connection: Connection
    minor: int
    closes: bool


class LoopWorker(BufferingWorker):
    read_head = staticmethod(read_head)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._group: list[tuple[PendingAnswer, Delivery]] = []
        """Deliveries admitted while the group before them is being stored."""

    def load_wsgi(self) -> None:
        super().load_wsgi()
        pipeline: DeliveryPipeline = self.app.pipeline
        self._admission = pipeline.admission
        assert self.poller
        timeout = self.app.config.redis.timeout
        self._commit = GroupCommit(pipeline.storage, self.poller, self.method_queue.defer, timeout=timeout)

    # Verifying, in the loop

    def serve(self, ready: list[Connection]) -> None:
        """Each step for all requests, then the next step: the processor's caches then save a fifth of the work."""
        requests = [(connection, self._read(connection)) for connection in ready]
        super().serve([connection for connection, read in requests if read is None])
        for connection, read in requests:
            if read is not None:
                try:
                    self._admit(*read)
                except Exception:  # noqa: BLE001  logged there
                    self.io.abort(connection)

    def _admit(self, pending: PendingAnswer, incoming: IncomingDelivery) -> None:
        admitted = self._admission.admit(incoming)
        if isinstance(admitted, Answer):
            self._answer(pending, admitted)
        else:
            pending.connection.request = b""
            self._group.append((pending, admitted))

    def _read(self, connection: Connection) -> tuple[PendingAnswer, IncomingDelivery] | None:
        """A complete delivery; None for any other request, and for one that is malformed."""
        head, connection.head = connection.head, None
        if head is None and (not connection.complete or not connection.request.startswith(_DELIVERY)):
            return None
        try:
            if head := head or read_head(connection.request):
                body = connection.request[len(connection.request) - head.length :]
                incoming = IncomingDelivery(head.store, head.headers, body, connection.address, time.time())
                return PendingAnswer(connection, minor=1, closes=False), incoming
            return self._read_with_gunicorn(connection)
        except Exception:  # noqa: BLE001  the thread that serves it instead answers with the error
            return None

    def _read_with_gunicorn(self, connection: Connection) -> tuple[PendingAnswer, IncomingDelivery] | None:
        """Reads a delivery that `read_head` does not, with gunicorn's parser."""
        request = self.parser.parse(connection)
        path = _PATH.fullmatch(request.path)
        if path is None or request.method != "POST":
            return None
        headers, length = lower_case_headers(request)
        body = self._body(connection, request, length)
        incoming = IncomingDelivery(path[1] or "", headers, body, connection.address, time.time())
        return PendingAnswer(connection, request.version[1], request.should_close()), incoming

    def _body(self, connection: Connection, request: Any, length: str) -> bytes:
        """The last bytes of the request, by the length that the parser has verified; a chunked body must be read."""
        if length:
            return connection.request[len(connection.request) - int(length) :]
        body = read_body(request.body.read, length, self.limits.max_body)
        if request.unreader.read():
            raise BodyUnreadable("The chunked body ends too early.")
        return body

    # Storing, one group at a time

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        super().wait_for_and_dispatch_events(self._commit.poll_timeout(timeout))
        self._commit.check_deadline()
        self._store_next_group()

    def _store_next_group(self) -> None:
        if self._commit.busy or not self._group:
            return
        size = group_size([delivery for _, delivery in self._group[:GROUP_SIZE]])
        group, self._group = self._group[:size], self._group[size:]
        self._commit.store([delivery for _, delivery in group], lambda results: self._on_stored(group, results))

    def _on_stored(self, group: list[tuple[PendingAnswer, Delivery]], results: StoreResults) -> None:
        self._store_next_group()  # first, so that it is stored while the answers are sent
        for (pending, delivery), stored in zip(group, results, strict=True):
            try:
                self._answer(pending, self._admission.answer(delivery, stored))
            except Exception:  # noqa: BLE001  logged there
                self.io.abort(pending.connection)

    def _answer(self, pending: PendingAnswer, answer: Answer) -> None:
        closes = pending.closes or not self.alive
        data = to_bytes(answer, now=time.time(), close=closes, minor=pending.minor)
        self.io.reply(pending.connection, data, keep_alive=not closes)


def group_size(deliveries: list[Delivery]) -> int:
    """How many of the first deliveries form a group: at least one, and no more bytes than can be stored in time."""
    total = 0
    for count, one in enumerate(deliveries):
        total += len(one.event.body)
        if total > GROUP_BYTES and count:
            return count
    return len(deliveries)


def lower_case_headers(request: Any) -> tuple[dict[str, str], str]:
    """The headers as the Flask view reads them (names in lower case, repeated ones joined), and the content length."""
    found: dict[str, str] = {}
    content_type = length = ""
    for upper, value in request.headers:
        if upper == "CONTENT-LENGTH":
            length = value
        elif upper == "CONTENT-TYPE":
            content_type = value
        else:
            name = upper.lower()
            found[name] = f"{found[name]},{value}" if name in found else value
    if content_type:
        found["content-type"] = content_type
    return found, length
