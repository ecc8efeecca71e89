"""The mover: writes settled events to the history, and only then replaces them by marks in Redis.

It may be killed at any moment, and any number of movers may work at once: writing an event again changes nothing, and
the mark is made only if the event is as it was read.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from redis import Redis

from receiver.inbox.history_moves import BEGINNING, MOVE_SLICE, HistoryMoves
from workers.history.past_events import HistoryDatabase, PastEvent

IN_USE, BUSY = 0.4, 0.8
"""Parts of the machine, or of the server's thread, that others use: from the first on the mover works a smaller part of
the time, and from the second on LEAST_PART of it."""
LEAST_PART = 0.05
LOOK_SECONDS = 0.05
"""It pauses at least this long after each slice, to see how much others use without it."""
SMALL_SLICE = 200
"""Number of events moved at once while others are at work: they wait for it where all processors are busy."""
MAX_PAUSE = 10.0
"""Seconds: a slice may have waited for a database that hung, and memory may be short meanwhile."""
SHORT_OF_MEMORY = 0.7
"""Part of maxmemory. From here on events are moved as soon as they have settled, and without pauses; at 0.85 new
deliveries go to the spool."""
WALK_EVERY = 30.0
"""Events that could not be moved are tried again after this many seconds; until then the mover goes on after them, also
while it always finds new ones."""


class Slice(NamedTuple):
    examined: int
    """0 if no event waits to be moved."""
    moved: int


class Mover:
    def __init__(self, client: Redis, database: HistoryDatabase) -> None:
        self._moves, self._database = HistoryMoves(client), database
        self._position = self._reached = BEGINNING
        self._began = time.monotonic()
        self._refused: dict[str, str] = {}
        self.left: dict[str, str] = {}
        """Events that the database could not store in the last walk through all, each with the reason."""

    def move(self, *, age: float, known_for: float, many: int = MOVE_SLICE) -> Slice:
        """Move a slice of the events that settled at least `age` seconds ago. Raises HistoryError, RedisError.

        Duplicates of an event are known for `known_for` seconds after it has settled.
        """
        page = self._moves.settled(age=age, position=self._position, many=many)
        self._position = page.position
        if not page.examined:
            self._begin_again(is_end=True)
            return Slice(0, 0)
        left = {one.id: one for one in self._database.write([PastEvent(*one) for one in page.events])}
        self._refused |= {one.id: one.reason for one in left.values() if not one.newer}
        self._moves.settle_after({one.id: one.newer for one in left.values() if one.newer})
        stored = (one for one in page.events if one.id not in left)
        moved = self._moves.replace_by_marks(stored, known_for=known_for)
        self._begin_again(is_end=False)
        return Slice(page.examined, moved)

    def _begin_again(self, *, is_end: bool) -> None:
        """New events come after the position; those before it could not be moved, or came there later, and are tried
        again. The time counts from where the last walk was broken off, so that new events are not held up, however long
        it takes to get there."""
        if self._position < self._reached and not is_end:
            self._began = time.monotonic()
        elif time.monotonic() - self._began >= WALK_EVERY:
            self.left, self._refused = self._refused, {}
            self._reached = BEGINNING if is_end else self._position
            self._position, self._began = BEGINNING, time.monotonic()


class Load:
    """How much of this machine is in use, and of the thread in which the Redis server runs scripts.

    The processes of ingest and runs may be on this machine or on others. The server they share. It is measured from
    `start` on, while the mover pauses: what it causes itself, in the server and in the database, is not that of others.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._before: tuple[float, ...] = ()

    def start(self) -> None:
        self._before = self._read()

    def share(self) -> float:
        """The larger of the two since the start, from 0 to 1; all of it if it was not started."""
        if not self._before:
            return 1.0
        wall, busy, total, server = (new - old for new, old in zip(self._read(), self._before, strict=True))
        return min(1.0, max(0.0, busy / total if total > 0 else 0.0, server / wall if wall > 0 else 0.0))

    def _read(self) -> tuple[float, ...]:
        info = self._client.info("cpu")
        main_thread = sum(float(info.get(f"used_cpu_{kind}_main_thread", 0.0)) for kind in ("sys", "user"))
        return time.monotonic(), *_processor_seconds(), main_thread


def _processor_seconds() -> tuple[float, float]:
    """The time that the processors of this machine were busy, and all of their time; 0 where it is not known."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return 0.0, 0.0
    ticks = [int(part) for part in line.split()[1:9]]
    second = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / second, sum(ticks) / second


def slice_at(load: float) -> int:
    return SMALL_SLICE if load >= IN_USE else MOVE_SLICE


def pause_after(spent: float, load: float) -> float:
    """Seconds to pause after a slice that took `spent` seconds."""
    over = (min(max(load, IN_USE), BUSY) - IN_USE) / (BUSY - IN_USE)
    part = 1 - over * (1 - LEAST_PART)
    return min(max(LOOK_SECONDS, spent * (1 / part - 1)), MAX_PAUSE)
