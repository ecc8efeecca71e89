"""Deliveries: admits them in the loop, stores them in groups, and answers them. Everything else goes to the Flask app.

While one group is being stored, admitted deliveries collect for the next. `receiver.server.group_commit` stores a group
with one round trip to Redis or one transaction of the spool. So the cost of a delivery falls as load rises, and an idle
process adds no delay. An answer is sent after its group is acknowledged, never before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from receiver.contract.intake import Delivery
from receiver.delivery.admission import Admission, IncomingDelivery
from receiver.delivery.answers import Answer
from receiver.delivery.storage import StoreResults
from receiver.inbox.accept_batch import GROUP_SIZE
from receiver.server.group_commit import GroupCommit
from receiver.server.http_connection import HttpConnection
from receiver.server.request_reader import Request

GROUP_BYTES = 4 << 20
"""A group must be sent, stored and acknowledged well within the timeout of Redis."""

_TARGET = re.compile(r"/webhooks(?:/([a-z0-9][a-z0-9_-]{0,62}))?(?:\?[^#]*)?")
"""Matches every valid store name, configured or not: the time of an answer must not reveal which ones are."""


class Deliveries:
    def __init__(
        self, admission: Admission, commit: GroupCommit, serve_others: Callable[[HttpConnection, Request], None]
    ) -> None:
        self._admission, self._commit, self._serve_others = admission, commit, serve_others
        self._group: list[tuple[HttpConnection, Delivery]] = []
        """Deliveries admitted while the group before them is being stored."""

    def serve(self, connection: HttpConnection, request: Request) -> None:
        target = _TARGET.fullmatch(request.target) if request.method == "POST" else None
        if target is None:
            self._serve_others(connection, request)
            return
        incoming = IncomingDelivery(target[1] or "", request.headers, request.body, connection.address, time.time())
        admitted = self._admission.admit(incoming)
        if isinstance(admitted, Answer):
            connection.answer(admitted)
        else:
            self._group.append((connection, admitted))

    def store_next_group(self) -> None:
        """Store what was admitted, unless a group is being stored: then its acknowledgement does it."""
        if self._commit.busy or not self._group:
            return
        size = group_size([delivery for _, delivery in self._group[:GROUP_SIZE]])
        group, self._group = self._group[:size], self._group[size:]
        self._commit.store([delivery for _, delivery in group], lambda results: self._on_stored(group, results))

    def _on_stored(self, group: list[tuple[HttpConnection, Delivery]], results: StoreResults) -> None:
        self.store_next_group()  # first, so that it is stored while the answers are sent
        for (connection, delivery), stored in zip(group, results, strict=True):
            try:
                connection.answer(self._admission.answer(delivery, stored))
            except Exception:  # noqa: BLE001  logged there
                connection.fail()


def group_size(deliveries: list[Delivery]) -> int:
    """How many of the first deliveries form a group: at least one, and no more bytes than can be stored in time."""
    total = 0
    for count, one in enumerate(deliveries):
        total += len(one.event.body)
        if total > GROUP_BYTES and count:
            return count
    return len(deliveries)
