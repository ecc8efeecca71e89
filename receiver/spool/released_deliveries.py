"""Released deliveries: what a later release must know of those that were released, to recognise what repeats them.

They are hashes and ids, and nothing of what was sent. They are in the file of refused deliveries, so that one
transaction removes a refusal and notes what became of it. The table is no part of that file's format: a version that
does not know it uses the same file. Without it, or if it is damaged, nothing is known of earlier releases.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

MOST = 40_000
"""Rows; the oldest are deleted. They take up to 10 MB."""
_TABLE = """CREATE TABLE IF NOT EXISTS released (
    at REAL NOT NULL, id INTEGER NOT NULL, place INTEGER NOT NULL, boot TEXT NOT NULL, uptime INTEGER NOT NULL,
    store TEXT NOT NULL, hash TEXT NOT NULL, resource TEXT NOT NULL, occurred REAL, event TEXT NOT NULL,
    PRIMARY KEY (at, id, place)) WITHOUT ROWID"""
_IS_READABLE = (
    "typeof(at) || typeof(id) || typeof(place) || typeof(uptime) = 'realintegerintegerinteger' AND "
    "typeof(boot) || typeof(store) || typeof(hash) || typeof(resource) || typeof(event) = 'texttexttexttexttext' "
    "AND typeof(occurred) IN ('real', 'null')"
)

Order = tuple[float, int]
"""When a refused delivery arrived, and its id: the order in which a release judges them."""


class ReleasedEvent(NamedTuple):
    """One event of a refused delivery that was released."""

    at: float
    id: int
    """Of the refusal."""
    place: int
    """In the delivery: 1, or more in a batch."""
    boot: str
    uptime: int
    store: str
    hash: str
    """Of the content, as duplicates are recognised by it."""
    resource: str
    """The digest of the resource."""
    occurred: float | None
    event: str
    """The event's id."""

    @property
    def order(self) -> Order:
        return self.at, self.id

    def is_near(self, other: ReleasedEvent, seconds: float) -> bool:
        """Whether they arrived less than this apart, by both clocks. Where those disagree it is not known, and what may
        be an update must not be lost."""
        written_apart = abs(self.uptime - other.uptime) / 1000 if self.boot == other.boot else seconds
        return max(abs(self.at - other.at), written_apart) < seconds


def note_released(db: sqlite3.Connection, released: Iterable[ReleasedEvent]) -> None:
    db.execute(_TABLE)
    db.executemany("INSERT OR REPLACE INTO released VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", released)
    oldest = "SELECT at, id, place FROM released ORDER BY at DESC, id DESC, place DESC LIMIT 1 OFFSET ?"
    db.execute(f"DELETE FROM released WHERE (at, id, place) <= ({oldest})", (MOST,))  # noqa: S608


def released_between(db: sqlite3.Connection, after: Order, until: Order) -> list[ReleasedEvent]:
    with suppress(sqlite3.Error):
        rows = db.execute(
            f"SELECT * FROM released WHERE {_IS_READABLE} AND (at, id) > (?, ?) AND (at, id) <= (?, ?) "  # noqa: S608
            "ORDER BY at, id, place",
            (*after, *until),
        )
        return [ReleasedEvent(*row) for row in rows.fetchall()]
    return []


def delete_released_before(db: sqlite3.Connection, at: float) -> None:
    db.execute("DELETE FROM released WHERE at < ?", (at,))
