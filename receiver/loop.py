"""The gunicorn worker class with one event loop for each process: deliveries are kept in groups, and then answered.

The loop gathers requests (see `receiver.patient`), has them judged, and never waits for anything but its senders.
Deliveries that are let in gather, too: one thread keeps them, all that have come while it kept the ones before, in
one round trip to Redis or one transaction of the spool. So the busier it is, the less each costs, and an idle one
waits for nobody. An answer is sent when its group is acknowledged, and not before.

Only deliveries go this way, before Flask's routing. Everything else (health, wrong paths, what no parser would
take) is served by the Flask app in a thread; `receiver.door` decides over deliveries in both.
"""

from __future__ import annotations

import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from receiver.answers import Answer, on_the_wire
from receiver.contract.intake import Delivery
from receiver.door import Arrival, BodyUnreadable, Door, read_body
from receiver.keeping import Keeping, Kept, NowhereToKeep
from receiver.patient import Connection, PatientWorker

GROUP = 128
GROUP_BYTES = 4 << 20
"""A group must be sent, kept and acknowledged well inside the deadline of Redis."""

_DELIVERY = b"POST /webhooks"
_PATH = re.compile(r"/webhooks(?:/([a-z0-9][a-z0-9_-]{0,62}))?")
"""The paths of every store that can be configured, whether it is or not: how long an answer takes must not tell."""


class Asked(NamedTuple):
    """A request whose answer is owed, and how to write it."""

    connection: Connection
    minor: int
    closes: bool


class LoopWorker(PatientWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._group: list[tuple[Asked, Delivery]] = []
        self._keeps = False
        """A group is being kept; what comes meanwhile is the next."""

    def init_process(self) -> None:
        self._thread = ThreadPoolExecutor(1, "keeping")
        super().init_process()

    def load_wsgi(self) -> None:
        super().load_wsgi()
        self._door: Door = self.wsgi.extensions["door"]
        self._keeping: Keeping = self.wsgi.extensions["keeping"]

    # Judging: in the loop

    def serve(self, ready: list[Connection]) -> None:
        """Step by step for all, not one after the other: the processor's caches then save a fifth of the work."""
        arrived = [(connection, self._read(connection)) for connection in ready]
        super().serve([connection for connection, read in arrived if read is None])
        for connection, read in arrived:
            if read is not None:
                try:
                    self._judge(connection, *read)
                except Exception:  # noqa: BLE001  logged there
                    self.give_up_on(connection)

    def _judge(self, connection: Connection, request: Any, arrival: Arrival) -> None:
        asked = Asked(connection, request.version[1], request.should_close())
        judged = self._door.judge(arrival)
        if isinstance(judged, Answer):
            self._say(asked, judged)
        else:
            connection.request = b""
            self._group.append((asked, judged))

    def _read(self, connection: Connection) -> tuple[Any, Arrival] | None:
        """A delivery that has arrived whole; None for whatever else it is, and for what must be refused."""
        if not connection.complete or not connection.request.startswith(_DELIVERY):
            return None
        try:
            request = self.parse(connection)
            path = _PATH.fullmatch(request.path)
            if path is None or request.method != "POST":
                return None
            headers, length = lower_case_headers(request)
            body = self._body(connection, request, length)
        except Exception:  # noqa: BLE001  whatever is wrong with it, the other way of serving says so
            return None
        address = connection.client[0] if isinstance(connection.client, tuple) else str(connection.client)
        return request, Arrival(path[1] or "", headers, body, address, time.time())

    def _body(self, connection: Connection, request: Any, length: str) -> bytes:
        """The end of a request is known by the length that its parser has now found good; chunks must be read."""
        if length:
            return connection.request[len(connection.request) - int(length) :]
        body = read_body(request.body.read, length, self._limits.max_body)
        if request.unreader.take_buffered():
            raise BodyUnreadable("It ends before it should.")
        return body

    # Keeping: in one thread, a group at a time

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        super().wait_for_and_dispatch_events(timeout)
        self._keep_the_next()

    def _keep_the_next(self) -> None:
        if self._keeps or not self._group:
            return
        self._keeps = True
        many = group_size([delivery for _, delivery in self._group[:GROUP]])
        group, self._group = self._group[:many], self._group[many:]
        kept = self._thread.submit(self._keeping.keep_all, [delivery for _, delivery in group])
        kept.add_done_callback(lambda done: self.method_queue.defer(self._on_kept, group, done))

    def _on_kept(self, group: list[tuple[Asked, Delivery]], done: Future[list[Kept | NowhereToKeep]]) -> None:
        self._keeps = False
        self._keep_the_next()  # before the answers: it is kept while they are sent
        for (asked, delivery), kept in zip(group, done.result(), strict=True):
            try:
                self._say(asked, self._door.answer(delivery, kept))
            except Exception:  # noqa: BLE001  logged there
                self.give_up_on(asked.connection)

    def _say(self, asked: Asked, answer: Answer) -> None:
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
