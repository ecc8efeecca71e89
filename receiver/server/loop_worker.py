"""The gunicorn worker class with one event loop for each process: deliveries are kept in groups, and then answered.

The loop gathers requests (see `receiver.server.buffering_worker`), has them judged, and waits for nobody. Deliveries
that are let in gather, too, while the ones before are kept. Then all of them are handed over at once (see
`receiver.server.group_commit`), in one round trip to Redis or one transaction of the spool: the busier it is, the
less each costs, and an idle one loses no time. An answer is sent when its group is acknowledged, and not before.

Only deliveries go this way, before Flask's routing. Everything else (health, wrong paths, what no parser would
take) is served by the Flask app in a thread; `receiver.delivery.admission` decides over deliveries in both.
"""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

from receiver.contract.intake import Delivery
from receiver.delivery.admission import Admission, BodyUnreadable, IncomingDelivery, read_body
from receiver.delivery.answers import Answer, on_the_wire
from receiver.server.buffering_worker import BufferingWorker
from receiver.server.connection import Connection
from receiver.server.group_commit import GroupCommit, Outcomes
from receiver.server.request_head import PATH, read_head

GROUP = 128
GROUP_BYTES = 4 << 20
"""A group must be sent, kept and acknowledged well inside the deadline of Redis."""

_DELIVERY = b"POST /webhooks"
_PATH = re.compile(PATH)


class PendingAnswer(NamedTuple):
    """A request whose answer is owed, and how to write it."""

    connection: Connection
    minor: int
    closes: bool


class LoopWorker(BufferingWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._group: list[tuple[PendingAnswer, Delivery]] = []
        """What comes while the group before is kept."""

    def load_wsgi(self) -> None:
        super().load_wsgi()
        self._door: Admission = self.wsgi.extensions["door"]
        assert self.poller
        keeping, timeout = self.wsgi.extensions["keeping"], self.app.config.redis.timeout
        self._handover = GroupCommit(keeping, self.poller, self.method_queue.defer, timeout=timeout)

    # Judging: in the loop

    def take_in(self, connection: Connection, data: bytes) -> None:
        """A delivery that comes in one piece, as nearly all do, need not be gathered."""
        head = None if connection.framing else read_head(data)
        if head is None or head.length > self._limits.max_body:
            super().take_in(connection, data)
            return
        connection.request, connection.complete, connection.chunked = data, True, False
        connection.held, connection.head = len(data), head
        self.make_ready(connection)

    def serve(self, ready: list[Connection]) -> None:
        """Step by step for all, not one after the other: the processor's caches then save a fifth of the work."""
        arrived = [(connection, self._read(connection)) for connection in ready]
        super().serve([connection for connection, read in arrived if read is None])
        for connection, read in arrived:
            if read is not None:
                try:
                    self._judge(*read)
                except Exception:  # noqa: BLE001  logged there
                    self.give_up_on(connection)

    def _judge(self, asked: PendingAnswer, arrival: IncomingDelivery) -> None:
        judged = self._door.judge(arrival)
        if isinstance(judged, Answer):
            self._say(asked, judged)
        else:
            asked.connection.request = b""
            self._group.append((asked, judged))

    def _read(self, connection: Connection) -> tuple[PendingAnswer, IncomingDelivery] | None:
        """A delivery that has arrived whole; None for whatever else it is, and for what must be refused."""
        head, connection.head = connection.head, None
        if head is None and (not connection.complete or not connection.request.startswith(_DELIVERY)):
            return None
        try:
            if head := head or read_head(connection.request):
                body = connection.request[len(connection.request) - head.length :]
                arrival = IncomingDelivery(head.store, head.headers, body, connection.address, time.time())
                return PendingAnswer(connection, minor=1, closes=False), arrival
            return self._read_carefully(connection)
        except Exception:  # noqa: BLE001  whatever is wrong with it, the other way of serving says so
            return None

    def _read_carefully(self, connection: Connection) -> tuple[PendingAnswer, IncomingDelivery] | None:
        """Whatever is not quite ordinary is read by gunicorn's parser."""
        request = self.parse(connection)
        path = _PATH.fullmatch(request.path)
        if path is None or request.method != "POST":
            return None
        headers, length = lower_case_headers(request)
        body = self._body(connection, request, length)
        arrival = IncomingDelivery(path[1] or "", headers, body, connection.address, time.time())
        return PendingAnswer(connection, request.version[1], request.should_close()), arrival

    def _body(self, connection: Connection, request: Any, length: str) -> bytes:
        """The end of a request is known by the length that its parser has now found good; chunks must be read."""
        if length:
            return connection.request[len(connection.request) - int(length) :]
        body = read_body(request.body.read, length, self._limits.max_body)
        if request.unreader.read():
            raise BodyUnreadable("It ends before it should.")
        return body

    # Keeping: a group at a time

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        super().wait_for_and_dispatch_events(self._handover.patience(timeout))
        self._handover.look()
        self._keep_the_next()

    def _keep_the_next(self) -> None:
        if self._handover.busy or not self._group:
            return
        many = group_size([delivery for _, delivery in self._group[:GROUP]])
        group, self._group = self._group[:many], self._group[many:]
        self._handover.keep([delivery for _, delivery in group], lambda kept: self._on_kept(group, kept))

    def _on_kept(self, group: list[tuple[PendingAnswer, Delivery]], outcomes: Outcomes) -> None:
        self._keep_the_next()  # before the answers: it is kept while they are sent
        for (asked, delivery), kept in zip(group, outcomes, strict=True):
            try:
                self._say(asked, self._door.answer(delivery, kept))
            except Exception:  # noqa: BLE001  logged there
                self.give_up_on(asked.connection)

    def _say(self, asked: PendingAnswer, answer: Answer) -> None:
        closes = asked.closes or not self.alive
        data = on_the_wire(answer, now=time.time(), close=closes, minor=asked.minor)
        self.reply(asked.connection, data, goes_on=not closes)


def group_size(deliveries: list[Delivery]) -> int:
    """How many of the first make a group: at least one, and no more bytes than can be kept in time."""
    total = 0
    for many, one in enumerate(deliveries):
        total += len(one.event.body)
        if total > GROUP_BYTES and many:
            return many
    return len(deliveries)


def lower_case_headers(request: Any) -> tuple[dict[str, str], str]:
    """What the Flask view reads from its environ: names in lower case, repeated ones joined; and the length."""
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
