"""Accept batches: deliveries as arguments of `lua/accept.lua`, in groups, and its replies. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import orjson
from redis.exceptions import RedisError, ResponseError

from receiver.contract.failure_groups import group_id
from receiver.contract.intake import Delivery
from receiver.contract.topics import PROBE
from receiver.inbox import keys
from receiver.inbox.model import pack
from receiver.inbox.redis.raw_connection import Argument
from receiver.inbox.redis.script_runner import ScriptCall

GROUP_SIZE = 128
"""Deliveries in one group, which one script accepts: the server does nothing else meanwhile."""
ACCEPT_BYTES = 256 * 1024
"""Bytes of bodies after which the next event begins a new call, for the same reason."""
MAX_EVENT_NAMES = 200
"""Maximum number of event names of a store that are counted one by one."""

AcceptStatus = Literal["accepted", "duplicate", "full"]
_STATUSES: dict[bytes, AcceptStatus] = {b"accepted": "accepted", b"duplicate": "duplicate", b"full": "full"}


class AcceptResult(NamedTuple):
    status: AcceptStatus
    id: str


def groups_of(deliveries: Iterable[Delivery]) -> Iterator[list[Delivery]]:
    """As few groups as the limits allow."""
    group: list[Delivery] = []
    size = 0
    for one in deliveries:
        if len(group) >= GROUP_SIZE or size >= ACCEPT_BYTES:
            yield group
            group, size = [], 0
        group.append(one)
        size += len(one.event.body)
    if group:
        yield group


class AcceptBatch:
    """The calls that accept deliveries, and the results for each delivery from the replies."""

    def __init__(
        self,
        deliveries: Iterable[Delivery],
        repeat_window: float,
        quotas: Mapping[str, int],
        waited: Mapping[str, float] | None = None,
    ) -> None:
        """`waited` has the seconds since arrival for each event id; a delivery without has just arrived."""
        groups = list(groups_of(deliveries))
        self.calls = [_accept_call(group, repeat_window, quotas, waited or {}) for group in groups]
        self._sizes = [len(group) for group in groups]

    def read(self, replies: Iterable[Any]) -> list[AcceptResult | RedisError]:
        """The result for each delivery. An error affects only the delivery that caused it."""
        return [one for reply, size in zip(replies, self._sizes, strict=True) for one in _results(reply, size)]


def empty_call() -> ScriptCall:
    """A call that accepts nothing, to find out whether the server would accept a delivery."""
    return _accept_call((), 0.0, {}, {})


def _accept_call(
    deliveries: Iterable[Delivery], repeat_window: float, quotas: Mapping[str, int], waited: Mapping[str, float]
) -> ScriptCall:
    arguments: list[Argument] = [int(repeat_window * 1000), MAX_EVENT_NAMES]
    for one in deliveries:
        arguments += _accept_arguments(
            one, repeat_window, quotas.get(one.event.store, 0), waited.get(one.event.id, 0.0)
        )
    return ScriptCall("accept", arguments)


def _accept_arguments(delivery: Delivery, repeat_window: float, quota: int, waited: float) -> list[Argument]:
    event = delivery.event
    problem = unreadable_detail(delivery.unreadable) if delivery.unreadable else ""
    return [
        event.id,
        event.store,
        event.topic,
        delivery.theirs if event.topic != PROBE else "",
        event.delivery_id,
        event.resource_id,
        int(event.received_at.timestamp() * 1000),
        event.occurred_at.isoformat() if event.occurred_at else "",
        event.source,
        event.data_path,
        pack(event),
        delivery.content_hash if repeat_window else "",
        quota,
        problem,
        hashlib.sha256(event.body).hexdigest()[:16],
        delivery.first_id,
        int(waited * 1000),
    ]


def unreadable_detail(problem: str) -> bytes:
    """What is stored as the result of "intake" for an event that cannot be read."""
    group = group_id(keys.INTAKE, "unreadable", problem)
    return orjson.dumps({"error": problem, "reason": "unreadable", "group": group})


def _results(reply: Any, size: int) -> list[AcceptResult | RedisError]:
    """The results of one call. An error of the whole call is the result for each of its deliveries."""
    if isinstance(reply, RedisError):
        return [reply] * size
    return [
        AcceptResult(_STATUSES[status], text.decode()) if status in _STATUSES else ResponseError(text.decode())
        for status, text in reply
    ]
