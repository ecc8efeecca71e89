"""The mover: writes settled events to the history, and only then replaces them by marks in Redis.

It may be killed at any moment, and any number of movers may work at once: writing an event again changes nothing, and
the mark is made only if the event is as it was read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from redis import Redis

from receiver.inbox.history_moves import BEGINNING, HistoryMoves
from workers.history.past_events import HistoryDatabase, PastEvent

BUSY, IN_USE = 0.8, 0.4
"""Parts of the machine, or of the server's thread, that others use: from these on, the mover pauses."""
PAUSES_WHEN_BUSY, PAUSES_IN_USE = 20.0, 1.0
"""How long the mover pauses after a slice, as a multiple of the time that the slice took."""
SHORT_OF_MEMORY = 0.7
"""Part of maxmemory. From here on events are moved as soon as they have settled, and without pauses; at 0.85 new
deliveries go to the spool."""
WALK_EVERY = 30.0
"""Events that could not be moved are tried again after this many seconds; until then the mover goes on after them."""


class Slice(NamedTuple):
    examined: int
    """0 if no event waits to be moved."""
    moved: int


class Mover:
    def __init__(self, client: Redis, database: HistoryDatabase) -> None:
        self._moves, self._database = HistoryMoves(client), database
        self._position, self._began = BEGINNING, time.monotonic()
        self._refused: dict[str, str] = {}
        self.left: dict[str, str] = {}
        """Events that the database could not store in the last walk through all, each with the reason."""

    def move(self, *, age: float, known_for: float) -> Slice:
        """Move a slice of the events that settled at least `age` seconds ago. Raises HistoryError, RedisError.

        Duplicates of an event are known for `known_for` seconds after it has settled.
        """
        page = self._moves.settled(age=age, position=self._position)
        self._position = page.position
        if not page.examined:
            self._begin_again()
            return Slice(0, 0)
        refused = {one.id: one.reason for one in self._database.write([PastEvent(*one) for one in page.events])}
        self._refused |= refused
        stored = (one for one in page.events if one.id not in refused)
        return Slice(page.examined, self._moves.replace_by_marks(stored, known_for=known_for))

    def _begin_again(self) -> None:
        """At the end. New events come after the position; those before it could not be moved, and are tried again."""
        if time.monotonic() - self._began >= WALK_EVERY:
            self.left, self._refused = self._refused, {}
            self._position, self._began = BEGINNING, time.monotonic()


class Load:
    """How much of this machine others use, and of the thread in which the Redis server runs scripts, since last asked.

    The processes of ingest and runs may be on this machine or on others. The server they share.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._before = self._read({})

    def share(self) -> float:
        """The larger of the two, from 0 to 1."""
        before, now = self._before, self._read(self._client.info("cpu"))
        self._before = now
        wall, busy, total, own, server = (new - old for new, old in zip(now, before, strict=True))
        machine = (busy - own) / total if total > 0 else 0.0
        return min(1.0, max(0.0, machine, server / wall if wall > 0 else 0.0))

    def _read(self, info: Mapping[str, float]) -> tuple[float, ...]:
        main_thread = sum(info.get(f"used_cpu_{kind}_main_thread", 0.0) for kind in ("sys", "user"))
        return time.monotonic(), *_processor_seconds(), time.process_time(), main_thread


def _processor_seconds() -> tuple[float, float]:
    """The time that the processors of this machine were busy, and all of their time; 0 where it is not known."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return 0.0, 0.0
    ticks = [int(part) for part in line.split()[1:9]]
    second = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / second, sum(ticks) / second


def pause_after(spent: float, load: float) -> float:
    """Seconds to pause after a slice that took `spent` seconds."""
    return spent * (PAUSES_WHEN_BUSY if load >= BUSY else PAUSES_IN_USE if load >= IN_USE else 0.0)
