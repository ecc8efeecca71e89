"""Deliveries: admits them in the loop, stores them in groups, and answers them. Everything else goes to the Flask app.

While one group is being stored, admitted deliveries collect for the next. `receiver.server.group_commit` stores a group
with one round trip to Redis or one transaction of the spool. So the cost of a delivery falls as load rises, and an idle
process adds no delay. An answer is sent after its group is acknowledged, never before.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import unquote

from gunicorn.util import split_request_uri

from receiver.contract.intake import Delivery, LongWork
from receiver.contract.signing.sources import query_fields
from receiver.delivery.admission import Admission, IncomingDelivery
from receiver.delivery.answers import Answer
from receiver.delivery.storage import Stored, StoreResults
from receiver.inbox.accept_batch import GROUP_SIZE
from receiver.server.group_commit import GroupCommit
from receiver.server.held_bytes import content_of
from receiver.server.http_connection import HttpConnection, Serve, fail
from receiver.server.request_reader import HttpRequest
from receiver.server.turn_lines import TurnLines
from receiver.server.turns import SMALL_BYTES

GROUP_BYTES = 1 << 20
"""Of large deliveries in a group: the small ones with them and after them must not wait long."""
BATCH_EVENTS = 100
"""Of one store's batches in a group, if it is not one batch that has more."""
MOST_BATCHES = 200
"""Of one store that wait. Anyone may send one again that was captured, faster than they are stored."""
_TARGET = re.compile(r"/webhooks(?:/([a-z0-9][a-z0-9_-]{0,62}))?(?:\?([^#]*))?")
_PATH = re.compile(r"/+webhooks(?:/([^/]+))?")
"""As Flask finds it. Both match every store name, configured or not: the time of an answer must not reveal which ones
are."""

Admitted = tuple[HttpConnection, Delivery]


class Deliveries:
    def __init__(
        self,
        admission: Admission,
        commit: GroupCommit,
        serve_others: Serve,
        serve_in_thread: Callable[[HttpConnection, HttpRequest, str], None],
    ) -> None:
        """`serve_in_thread` is called with the store, too, if the delivery is verified: stores take turns."""
        self._admission, self._commit = admission, commit
        self._serve_others, self._serve_in_thread = serve_others, serve_in_thread
        self._small: TurnLines[Admitted] = TurnLines()
        self._large: TurnLines[Admitted] = TurnLines()
        self._batches: TurnLines[Admitted] = TurnLines(MOST_BATCHES, "batches")
        """Deliveries admitted while the group before them is being stored."""

    def serve(self, connection: HttpConnection, request: HttpRequest) -> None:
        target = store_and_query(request.target) if request.method == "POST" else None
        known, sender, size = connection.known_senders, connection.sender, connection.request_bytes
        connection.is_other = target is None
        if target is None:
            known.add_other(sender, size)
            self._serve_others(connection, request)
            return
        store, query = target
        headers = {**request.headers, **query_fields(query)} if query else request.headers
        incoming = IncomingDelivery(store, headers, request.body, connection.address, time.time())
        try:
            admitted = self._admission.admit(incoming, in_loop=True)
        except LongWork as work:  # one that was verified is verified again there, in less time than it takes to read
            connection.is_other = not work.store and known.balance(sender) <= 0
            self._serve_in_thread(connection, request, work.store)
            return
        if isinstance(admitted, Answer):
            if admitted.status == HTTPStatus.UNAUTHORIZED:
                known.add_other(sender, size)
            connection.answer(admitted)
        else:
            is_small = len(admitted.event.body) <= SMALL_BYTES
            lines = self._batches if admitted.rest else self._small if is_small else self._large
            lines.add(admitted.event.store, sender, (connection, admitted))

    def store_next_group(self) -> None:
        """Store what was admitted, unless a group is being stored: then its acknowledgement does it."""
        if (self._small or self._large or self._batches) and not self._commit.busy:
            group = next_group(self._small, self._large, self._batches)
            self._commit.store([delivery for _, delivery in group], lambda results: self._on_stored(group, results))

    def _on_stored(self, group: list[Admitted], results: StoreResults) -> None:
        self.store_next_group()  # first, so that it is stored while the answers are sent
        for (connection, delivery), stored in zip(group, results, strict=True):
            if isinstance(stored, Stored) and stored.status == "accepted":  # anyone can repeat one that was captured
                for one in (delivery, *delivery.rest):
                    connection.known_senders.add_accepted(connection.sender, content_of(one.event.body))
            try:
                connection.answer(self._admission.answer(delivery, stored))
            except Exception:  # noqa: BLE001  logged there
                fail(connection)


def store_and_query(target: str) -> tuple[str, str] | None:
    """What the target of a delivery names; None for any other target.

    It may be a whole URL, or have escapes. Flask would serve these too, but in a thread, and one that works for long
    takes the interpreter from the loop.
    """
    if usual := _TARGET.fullmatch(target):
        return usual[1] or "", usual[2] or ""
    parts = split_request_uri(target)
    path = _PATH.fullmatch(unquote(parts.path))
    return (path[1] or "", parts.query) if path else None


def next_group(small: TurnLines[Admitted], large: TurnLines[Admitted], batches: TurnLines[Admitted]) -> list[Admitted]:
    """Take the deliveries that are stored next: small ones, some large ones and some batches, of each at least one.

    Stores take turns: many deliveries of one would delay the others' for seconds. So do the senders of a store. Storing
    a batch takes long, as it may have more events than a group, so batches have lines of their own.
    """
    group: list[Admitted] = []
    while small and len(group) < GROUP_SIZE - 2:
        group.append(small.take())
    left = GROUP_BYTES
    while large and left > 0 and len(group) < GROUP_SIZE - 1:
        group.append(large.take())
        left -= len(group[-1][1].event.body)
    return group + batches.take_some(_next_batches) if batches else group


def _next_batches(line: deque[Admitted]) -> list[Admitted]:
    """The next ones of a sender: one that is large, or many small ones, which take as long."""
    taken: list[Admitted] = []
    events = size = 0
    while line:
        parts = (line[0][1], *line[0][1].rest)
        events, size = events + len(parts), size + sum(len(one.event.body) for one in parts)
        if taken and (events > BATCH_EVENTS or size > GROUP_BYTES):
            break
        taken.append(line.popleft())
    return taken
