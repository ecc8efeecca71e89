"""Past events: what the history stores of an event, and what each of its databases can do."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

from receiver.contract.errors import StorehooksError
from receiver.contract.event import Event
from receiver.inbox.model import read_event
from receiver.inbox.queries.event_pages import WholeEvent
from receiver.inbox.queries.events import EventRecord, read_record
from workers.history.event_filter import EventFilter

FIRST_WINDOW = 3_600_000_000
"""A search begins with an hour (us), and each further window is GROWTH times as long: frequent values are found in the
first ones, and rare ones in few steps."""
GROWTH = 4
PAGE = 500
"""Maximum number of events that are read at once to be compared."""
LAST_TIME = 2**63 - 1
SETTLED_LATER = "the history has a state of it that settled later"


class HistoryError(StorehooksError):
    """The database cannot be used: it is away, full, read-only, too slow, damaged, or of a newer version."""


class HistoryElsewhere(HistoryError):
    """Another host has the files."""


class Position(NamedTuple):
    """A place in the order of past events: a search goes on with the events before it."""

    accepted_at: int
    id: str


class NotMoved(NamedTuple):
    """An event that the database has not stored, so that it must stay in Redis, and why."""

    id: str
    reason: str
    newer: int = 0
    """Set if a state of the event is stored that settled later: when it did (ms)."""


class HistorySizes(NamedTuple):
    events: int
    """An estimate in PostgreSQL."""
    bytes: int
    oldest: datetime | None
    """When the oldest event was accepted."""
    parts: int
    """Files of months, or partitions of days."""


@dataclass(frozen=True)
class PastEvent:
    """A settled event as Redis has it: writing these fields back gives the same event."""

    id: str
    accepted_at: int
    """Its score in `ix` (us): the order of all events."""
    settled_at: int
    """Its score in `done` (ms)."""
    fields: Mapping[bytes, bytes] = field(repr=False)
    """The hash `e:{id}`, complete."""
    content: bytes | None = field(default=None, repr=False)
    """The value of `b:{id}`: headers and body. None if it was removed by age, or not read."""
    once: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    """The hash `o:{id}`: its once marks."""
    problem: str = ""
    """Why a part of it cannot be searched, if the database could not take it. Nothing of the event is lost."""

    @property
    def is_erased(self) -> bool:
        return b"erased" in self.fields

    @property
    def position(self) -> Position:
        return Position(self.accepted_at, self.id)

    @property
    def whole(self) -> WholeEvent:
        return WholeEvent(self.id, self.accepted_at, self.settled_at, self.fields, self.content, self.once)

    @cached_property
    def record(self) -> EventRecord:
        """The event and its runs as people see them. Raises ValueError for a damaged record."""
        return read_record(self.id, self.fields, self.content, self.accepted_at)

    @cached_property
    def event(self) -> Event:
        """The event as a handler gets it."""
        return read_event(self.id, self.fields, self.content)


@dataclass(frozen=True)
class Found:
    """The result of a search: events, the newest first, and how far it looked."""

    events: tuple[PastEvent, ...]
    position: Position | None
    """Where to go on; None if there are no further events."""
    out_of_time: bool = False
    """Whether the search ended because its time was over: there may be matches before `position`."""

    @property
    def looked_back_to(self) -> datetime | None:
        """The time of acceptance up to which all events were compared; None if that is all of them."""
        return datetime.fromtimestamp(self.position.accepted_at / 1e6, UTC) if self.position else None


class HistoryDatabase(ABC):
    """One database of past events. All methods raise HistoryError where it cannot be used.

    An event is identified by id and time of acceptance: a store may deliver the same again after the duplicate window.
    An instance may be used by one thread at a time.
    """

    @abstractmethod
    def check(self) -> None:
        """Create or upgrade the tables, under a lock. Refuses those of a newer version. To be called before writing."""

    @abstractmethod
    def write(self, events: Sequence[PastEvent]) -> list[NotMoved]:
        """Store events, those that are stored already again. All are committed on return, except those returned.

        A stored event that has settled later stays as it is: a process that hung must not write an old run over it.
        Then the given one is returned.
        The content of one that was erased is deleted, and does not come back with an older record.
        """

    def event(self, event_id: str) -> PastEvent | None:
        """One event with its content."""
        return next(iter(self.events([event_id])), None)

    @abstractmethod
    def events(self, event_ids: Sequence[str], *, every: bool = False) -> list[PastEvent]:
        """Those of the events that there are, with their content; the one accepted last, if several have an id, or
        every one."""

    @abstractmethod
    def delete_older(self, *, bodies: datetime, records: datetime) -> bool:
        """Delete content and records of events that settled before these times; whether there is more to delete."""

    @abstractmethod
    def forget(self, event_ids: Sequence[str]) -> int:
        """Delete events. Returns how many there were."""

    @abstractmethod
    def rows(self, store: str, after: Position, many: int) -> list[tuple[Any, ...]]:
        """The next events of a store after a position, in order of acceptance, as `row_format.event_of` takes them."""

    @abstractmethod
    def compact(self, days: Iterable[str]) -> None:
        """Write files anew in which events that were accepted on these days were changed (as `row_format.day_name`
        names them), so that they have nothing of the old content. Others wait, and it takes as long as it takes."""

    @abstractmethod
    def sizes(self) -> HistorySizes: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def newest_before(self, before: Position) -> int | None:
        """A time up to which there is no event before a position, as far as is quickly known; None if there is none."""

    @abstractmethod
    def candidates(
        self, wanted: EventFilter, *, oldest: int, before: Position, limit: int, seconds: float, content: bool
    ) -> Sequence[PastEvent] | None:
        """The newest events in a window that may match, at most `limit`; None if that takes longer than `seconds`."""

    def find(
        self,
        wanted: EventFilter,
        *,
        before: Position | None = None,
        limit: int = 50,
        seconds: float = 10.0,
        content: bool = False,
    ) -> Found:
        """Search the events before a position, the newest first, until `limit` match or the time is over.

        Without `content`, headers and bodies may be left out.
        """
        deadline = time.monotonic() + seconds
        position = before or Position(LAST_TIME, "")
        if wanted.until is not None:
            position = min(position, Position(wanted.until, ""))
        found: list[PastEvent] = []
        span = LAST_TIME if wanted.names_few else FIRST_WINDOW
        end = Position(wanted.since, "")
        while position > end and (newest := self.newest_before(position)) is not None and newest >= wanted.since:
            position = min(position, Position(newest + 1, ""))
            left = deadline - time.monotonic()
            if left <= 0:
                return Found(tuple(found), position, out_of_time=True)
            oldest = max(wanted.since, newest - span)
            page = PAGE if wanted.needs_comparing else limit - len(found)
            read = self.candidates(
                wanted, oldest=oldest, before=position, limit=page, seconds=left, content=content or bool(wanted.where)
            )
            if read is None:
                return Found(tuple(found), position, out_of_time=True)
            for one in read:
                position = one.position
                if wanted.is_met_by(one.event):
                    found.append(one)
                    if len(found) >= limit:
                        return Found(tuple(found), position)
            if len(read) < page:
                position, span = Position(oldest, ""), span * GROWTH
        return Found(tuple(found), None)
