"""History moves: settled events as a whole, which marks replace once the history has them; and their way back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from receiver.inbox import keys
from receiver.inbox.model import pairs, to_number
from receiver.inbox.queries.event_pages import WholeEvent
from receiver.inbox.queries.runs import page_after
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser, server_ms
from receiver.inbox.redis.raw_connection import Argument

MOVE_SLICE = 2000
"""Maximum number of events that are written to the history at once."""
STEP = 100
"""Number of events in one script, so that deliveries wait some milliseconds for it at most."""
MOVE_BYTES = 8 << 20
"""A page ends with the event whose body exceeds this size."""

KEPT_SECONDS = 600
"""Events that a process keeps in Redis may be moved again this long after it was killed."""
MARK_BYTES = 190
"""The memory of a mark, measured over 100,000."""
REPORT_SECONDS = 60
"""A housekeeper reports every few seconds. Its report no longer counts this long after the last."""

Position = tuple[float, str]
BEGINNING: Position = (-math.inf, "")


class SettledPage(NamedTuple):
    events: list[WholeEvent]
    position: Position
    """Where the next page begins."""
    examined: int
    """The number of events with the damaged ones, which are left out. 0 at the end."""


@dataclass(frozen=True)
class MoveReport:
    """How moving events to the history goes."""

    fault: str = ""
    """Why none are moved now."""
    left: int = 0
    """How many events the history could not store. They stay in Redis."""
    example: str = ""
    """One of those, and why."""


class HistoryMoves(ServerUser):
    def settled(self, *, age: float, position: Position = BEGINNING, many: int = MOVE_SLICE) -> SettledPage:
        """Events that settled at least `age` seconds ago, a page at a time, in the order in which they settled."""
        start, last = position
        until = server_ms(self.client) - age * 1000
        page = page_after(self.client, keys.DONE, start, until, last, many=many)
        if not page:
            return SettledPage([], position, 0)
        read: list[WholeEvent | None] = []
        size = 0
        for at in range(0, len(page), STEP):
            part = page[at : at + STEP]
            ids = (event_id for event_id, _ in part)
            replies = script_runner.run_one(self.client, "read_whole", MOVE_BYTES - size, *ids)
            read += (_whole(*one, reply) for one, reply in zip(part, replies, strict=False))
            size += sum(len(one.content or b"") for one in read[at:] if one)
            if size > MOVE_BYTES:
                break
        event_id, settled_at = page[len(read) - 1]
        return SettledPage([one for one in read if one], (settled_at, event_id), len(read))

    def waiting(self, *, age: float) -> int:
        """How many events settled at least `age` seconds ago and are still here."""
        return int(self.client.zcount(keys.DONE, "-inf", server_ms(self.client) - age * 1000))

    def replace_by_marks(self, events: Iterable[WholeEvent], *, known_for: float) -> int:
        """Replace events that the history has by marks, which expire `known_for` seconds after the event settled.

        Returns how many were replaced: those that have changed since they were read are left.
        """
        parts = [part for one in events for part in (one.id, one.settled_at, _marks_digest(one.once))]
        replaced = 0
        for at in range(0, len(parts), 3 * STEP):
            these = parts[at : at + 3 * STEP]
            replaced += int(script_runner.run_one(self.client, "mark_moved", int(known_for * 1000), *these))
        return replaced

    def settle_after(self, times: Mapping[str, int]) -> None:
        """Let events count as settled after these times (ms), at which the history has them as settled: the clock was
        set back, and what Redis has is newer. An event that Redis has no more was moved by another process."""
        if times:
            self.client.zadd(keys.DONE, {event_id: at + 1 for event_id, at in times.items()}, xx=True, gt=True)

    def publish(self, report: MoveReport) -> None:
        """Publish for a while how moving goes."""
        self.client.set(keys.HISTORY, orjson.dumps(report), ex=REPORT_SECONDS)

    def report(self) -> MoveReport | None:
        """The last report; None if there is none, or it is damaged."""
        found = self.client.get(keys.HISTORY)
        try:
            return MoveReport(**orjson.loads(found)) if found else None
        except (ValueError, TypeError):
            return None

    def past(self, event_ids: Sequence[str]) -> list[str]:
        """Those of the events that Redis does not have: there is only a mark, or nothing."""
        return self._with_field(event_ids, "store", False)

    def marked(self, event_ids: Sequence[str]) -> list[str]:
        """Those of the events of which there is a mark that they were moved."""
        return self._with_field(event_ids, "moved", True)

    def _with_field(self, event_ids: Sequence[str], field: str, wanted: bool) -> list[str]:
        """Those whose key has a field, or has not; neither if it is damaged."""
        pipeline = self.client.pipeline(transaction=False)
        for event_id in event_ids:
            pipeline.hexists(keys.EVENT + event_id, field)
        replies = pipeline.execute(raise_on_error=False)
        return [event_id for event_id, has in zip(event_ids, replies, strict=True) if has is wanted]

    @contextmanager
    def kept(self, event_ids: Iterable[str]) -> Iterator[None]:
        """None of these events is moved before the end: it would be gone for who has just seen that it is in Redis."""
        ids = list(dict.fromkeys(event_ids))
        for at in range(0, len(ids), STEP):
            script_runner.run_one(self.client, "keep", KEPT_SECONDS * 1000, *ids[at : at + STEP])
        yield
        if ids:
            self.client.unlink(*(keys.KEPT + event_id for event_id in ids))

    def restore(self, events: Iterable[WholeEvent]) -> int:
        """Write past events back, settled, so that they can be replayed. Returns how many were not here."""
        arguments: list[Argument] = []
        for one in events:
            arguments += (one.id, one.accepted_at, one.content or b"")
            for fields in (one.fields, one.once):
                arguments += (2 * len(fields), *(part for pair in fields.items() for part in pair))
        return sum(script_runner.run_one(self.client, "restore", *arguments)) if arguments else 0


def _whole(event_id: str, settled_at: float, reply: Any) -> WholeEvent | None:
    """None if there is only a mark, because another process has moved the event meanwhile; or if a part of the event is
    damaged: then it is left for a person to look at."""
    if not reply:
        return None
    accepted, fields, content, once = reply[0], pairs(reply[1]), reply[2], pairs(reply[3])
    if b"store" not in fields:
        return None
    accepted_at = to_number(fields.get(b"received")) * 1000 if accepted is None else int(float(accepted))
    return WholeEvent(event_id, accepted_at, int(settled_at), fields, content, once)


def _marks_digest(marks: Mapping[bytes, bytes]) -> str:
    """The same as in lua/mark_moved.lua."""
    if not marks:
        return ""
    lines = sorted(_sha1(field) + _sha1(value) for field, value in marks.items())
    return _sha1("".join(lines).encode())


def _sha1(value: bytes) -> str:
    return hashlib.sha1(value, usedforsecurity=False).hexdigest()
