"""Accept batches: deliveries as arguments of `lua/accept.lua`, in groups, and its replies. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import orjson
from redis.exceptions import RedisError, ResponseError

from receiver.contract.failure_groups import group_id
from receiver.contract.intake import Delivery
from receiver.contract.topics import PROBE
from receiver.inbox import keys
from receiver.inbox.model import pack, resource_digest
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
    """For a batch: "duplicate" if all of its events are, and the id of the first."""

    status: AcceptStatus
    id: str
    items: tuple[AcceptResult, ...] = ()
    """The results for each event of a batch, in order."""


def groups_of(deliveries: Iterable[Delivery]) -> Iterator[list[Delivery]]:
    """As few groups as the limits allow. A batch is a group of its own, whatever its size."""
    group: list[Delivery] = []
    size = 0
    for one in deliveries:
        if len(group) >= GROUP_SIZE or size >= ACCEPT_BYTES or (one.rest and group):
            yield group
            group, size = [], 0
        if one.rest:
            yield [one]
            continue
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
        self._groups = groups

    def read(self, replies: Iterable[Any]) -> list[AcceptResult | RedisError]:
        """The result for each delivery. An error affects only the delivery that caused it."""
        return [one for reply, group in zip(replies, self._groups, strict=True) for one in _results(reply, group)]


def empty_call(*, write: bool) -> ScriptCall:
    """A call that accepts nothing, to find out whether the server would accept a delivery."""
    return ScriptCall("accept", (0, MAX_EVENT_NAMES, "write" if write else 0))


def _accept_call(
    group: Sequence[Delivery], repeat_window: float, quotas: Mapping[str, int], waited: Mapping[str, float]
) -> ScriptCall:
    """The call for a group. A batch is the only one in its group."""
    rest = group[0].rest
    arguments: list[Argument] = [int(repeat_window * 1000), MAX_EVENT_NAMES, 1 if rest else 0]
    for one in (*group, *rest) if rest else group:
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
        event.signed_digest,
        delivery.first_id,
        int(waited * 1000),
        1 if delivery.others_count else 0,
        delivery.signed_with,
        resource_digest(event.store, event.topic, event.resource_id) if event.resource_id else "",
    ]


@lru_cache(maxsize=64)  # the events of a batch often have one problem
def unreadable_detail(problem: str) -> bytes:
    """What is stored as the result of "intake" for an event that cannot be read."""
    group = group_id(keys.INTAKE, "unreadable", problem)
    return orjson.dumps({"error": problem, "reason": "unreadable", "group": group})


def _results(reply: Any, group: Sequence[Delivery]) -> list[AcceptResult | RedisError]:
    """The results of one call. An error of the whole call is the result for each of its deliveries."""
    if isinstance(reply, RedisError):
        return [reply] * len(group)
    results: list[AcceptResult | RedisError] = [
        AcceptResult(_STATUSES[status], text.decode()) if status in _STATUSES else ResponseError(text.decode())
        for status, text in reply
    ]
    return [_of_batch(results)] if group[0].rest else results


def _of_batch(results: Sequence[AcceptResult | RedisError]) -> AcceptResult:
    items = tuple(one for one in results if isinstance(one, AcceptResult))
    statuses = {one.status for one in items}
    status: AcceptStatus = next(one for one in ("full", "accepted", "duplicate") if one in statuses)
    return AcceptResult(status, items[0].id, items)
