"""History moves: settled events as a whole, which marks replace once the history has them; and their way back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import RedisError

from receiver.inbox import keys
from receiver.inbox.model import to_number
from receiver.inbox.queries.damage import is_wrong_type
from receiver.inbox.queries.event_pages import WholeEvent
from receiver.inbox.queries.runs import page_after
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import server_ms
from receiver.inbox.redis.raw_connection import Argument

MOVE_SLICE = 500
MOVE_BYTES = 8 << 20
"""Maximum size of the bodies in one page, if it has more than one event."""

Position = tuple[float | str, str]
BEGINNING: Position = ("-inf", "")


class SettledPage(NamedTuple):
    events: list[WholeEvent]
    position: Position
    """Where the next page begins."""
    examined: int
    """The number of events with the damaged ones, which are left out. 0 at the end."""


class HistoryMoves:
    def __init__(self, client: Redis) -> None:
        self.client = client

    def settled(self, *, age: float, position: Position = BEGINNING) -> SettledPage:
        """Events that settled at least `age` seconds ago, a page at a time, in the order in which they settled."""
        start, last = position
        until = server_ms(self.client) - age * 1000
        page = page_after(self.client, keys.DONE, start, until, last, many=MOVE_SLICE)
        if not page:
            return SettledPage([], position, 0)
        pipeline = self.client.pipeline(transaction=False)
        for event_id, _ in page:
            pipeline.strlen(keys.BODY + event_id)
        page = page[: _fitting(pipeline.execute(raise_on_error=False))]
        for event_id, _ in page:
            pipeline.hgetall(keys.EVENT + event_id)
            pipeline.get(keys.BODY + event_id)
            pipeline.hgetall(keys.ONCE + event_id)
            pipeline.zscore(keys.INDEX, event_id)
        replies = pipeline.execute(raise_on_error=False)
        read = (_whole(*one, replies[4 * at : 4 * at + 4]) for at, one in enumerate(page))
        return SettledPage([one for one in read if one], (page[-1][1], page[-1][0]), len(page))

    def waiting(self, *, age: float) -> int:
        """How many events settled at least `age` seconds ago and are still here."""
        return int(self.client.zcount(keys.DONE, "-inf", server_ms(self.client) - age * 1000))

    def replace_by_marks(self, events: Iterable[WholeEvent], *, known_for: float) -> int:
        """Replace events that the history has by marks, which expire `known_for` seconds after the event settled.

        Returns how many were replaced: those that have changed since they were read are left.
        """
        parts = [part for one in events for part in (one.id, one.settled_at, _marks_digest(one.once))]
        return int(script_runner.run_one(self.client, "mark_moved", int(known_for * 1000), *parts)) if parts else 0

    def past(self, event_ids: Sequence[str]) -> list[str]:
        """Those of the events that Redis does not have: there is only a mark, or nothing."""
        pipeline = self.client.pipeline(transaction=False)
        for event_id in event_ids:
            pipeline.hexists(keys.EVENT + event_id, "store")
        replies = pipeline.execute(raise_on_error=False)
        return [event_id for event_id, found in zip(event_ids, replies, strict=True) if found is False]

    def restore(self, events: Iterable[WholeEvent]) -> int:
        """Write past events back, settled, so that they can be replayed. Returns how many were not here."""
        arguments: list[Argument] = []
        for one in events:
            arguments += (one.id, one.accepted_at, one.content or b"")
            for fields in (one.fields, one.once):
                arguments += (2 * len(fields), *(part for pair in fields.items() for part in pair))
        return sum(script_runner.run_one(self.client, "restore", *arguments)) if arguments else 0


def _fitting(sizes: Sequence[int | RedisError]) -> int:
    """How many events, from the first on, have bodies that fit into one page."""
    total = 0
    for at, size in enumerate(sizes):
        total += size if isinstance(size, int) else 0
        if at and total > MOVE_BYTES:
            return at
    return len(sizes)


def _whole(event_id: str, settled_at: float, replies: Sequence[Any]) -> WholeEvent | None:
    """None if a part of the event is damaged or missing: such an event is left for a person to look at."""
    for reply in replies:
        if isinstance(reply, RedisError) and not is_wrong_type(reply):
            raise reply
    fields, content, once, accepted = replies
    if any(isinstance(reply, RedisError) for reply in replies) or not fields:
        return None
    accepted_at = to_number(fields.get(b"received")) * 1000 if accepted is None else int(accepted)
    return WholeEvent(event_id, accepted_at, int(settled_at), fields, content, once)


def _marks_digest(marks: Mapping[bytes, bytes]) -> str:
    """The same as in lua/mark_moved.lua."""
    if not marks:
        return ""
    lines = sorted(_sha1(field) + _sha1(value) for field, value in marks.items())
    return _sha1("".join(lines).encode())


def _sha1(value: bytes) -> str:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest()
