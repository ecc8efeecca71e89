"""Refusals: deliveries that were not let in, a line for each, and for most of them headers and body; within bounds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from receiver.config.values import Bounds
from receiver.spool.database import FILE, PAGE, SCHEMA, open_spool, transaction

UNKNOWN = "?"
LINE_COST = 400
"""What a line takes on disk, indexes included; rounded up, so that the bound is kept."""
LINES_SHARE = 4
"""One part in so many of the bytes is for lines, the others are for bodies."""
_COLUMNS = "r.id, r.at, r.store, r.named, r.reason, r.length, r.hash, r.address"


@dataclass(frozen=True)
class Refusal:
    """One delivery that was not let in. `store` is a configured name or `?`; `named` is what the URL said."""

    at: float
    store: str
    named: str
    reason: str
    length: int
    hash: str
    address: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    """None where only the line was kept."""
    id: int = 0

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)

    @property
    def name(self) -> str:
        """What to call its store: what the URL said, where nobody had configured it."""
        return self.named if self.store == UNKNOWN and self.named else self.store

    @property
    def kept(self) -> bool:
        return self.body is not None

    @property
    def cost(self) -> int:
        """The bytes that headers and body take on disk; long ones fill whole pages."""
        if self.body is None:
            return 0
        size = len(self.body) + sum(len(name) + len(value) + 6 for name, value in self.headers.items())
        return LINE_COST + (size if size < PAGE // 2 else -(-size // PAGE) * PAGE)


@dataclass(frozen=True)
class RefusedOf:
    """The refusals of one store: how many for which reason, how many with their body, and from when to when."""

    store: str
    reasons: Mapping[str, int]
    kept: int
    first: float
    last: float

    @property
    def many(self) -> int:
        return sum(self.reasons.values())


def open_refusals(data_dir: Path) -> Refusals:
    return Refusals(open_spool(data_dir, synchronous="NORMAL"))


def look_at_refusals(data_dir: Path) -> Refusals:
    """For people: nothing where there is no file. A file made by whoever looks first could be the wrong user's."""
    if (data_dir / FILE).exists():
        return open_refusals(data_dir)
    nothing = sqlite3.connect(":memory:", isolation_level=None)
    nothing.executescript(SCHEMA)
    return Refusals(nothing)


class Refusals:
    """The refused deliveries of this host."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def close(self) -> None:
        self._db.close()

    # Writing: the receiver's side

    def add(self, refusals: Iterable[Refusal], *, bounds: Bounds, now: float) -> None:
        """Write lines and bodies, and stay inside the bounds, in one transaction."""
        with transaction(self._db):
            for one in refusals:
                self._insert(one)
            self._trim(bounds, now)

    def trim(self, *, bounds: Bounds, now: float) -> None:
        """Delete what is too old or too much."""
        with transaction(self._db):
            self._trim(bounds, now)

    def delete(self, ids: Iterable[int]) -> None:
        """Forget refusals that have been let in after all."""
        every = [(one,) for one in ids]
        with transaction(self._db):
            self._db.executemany("DELETE FROM refused_body WHERE id = ?", every)
            self._db.executemany("DELETE FROM refused WHERE id = ?", every)

    # Reading: for people, and for the release

    def count(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM refused").fetchone()[0])

    def newest(self, *, store: str | None = None, limit: int = 50) -> list[Refusal]:
        """The latest lines, newest first, without their bodies."""
        where, values = ("WHERE r.store = ? OR r.named = ?", (store, store)) if store else ("", ())
        rows = self._db.execute(
            f"SELECT {_COLUMNS}, b.id FROM refused r LEFT JOIN refused_body b ON b.id = r.id {where} "  # noqa: S608
            "ORDER BY r.id DESC LIMIT ?",
            (*values, limit),
        )
        return [_line(row[:8], body=None if row[8] is None else b"") for row in rows]

    def get(self, refusal_id: int) -> Refusal | None:
        """One refusal with headers and body, as far as they are kept."""
        row = self._db.execute(
            f"SELECT {_COLUMNS}, b.headers, b.body FROM refused r LEFT JOIN refused_body b ON b.id = r.id "  # noqa: S608
            "WHERE r.id = ?",
            (refusal_id,),
        ).fetchone()
        return _whole(row) if row else None

    def kept(self, *, batch: int = 200) -> Iterator[list[Refusal]]:
        """Everything that has its body, in the order of arrival, a batch at a time."""
        last = 0
        while rows := self._db.execute(
            f"SELECT {_COLUMNS}, b.headers, b.body FROM refused_body b JOIN refused r ON r.id = b.id "  # noqa: S608
            "WHERE b.id > ? ORDER BY b.id LIMIT ?",
            (last, batch),
        ).fetchall():
            last = rows[-1][0]
            yield [_whole(row) for row in rows]

    def by_store(self) -> list[RefusedOf]:
        """What is here of each store, under the name one would look for, the largest first."""
        rows = self._db.execute(
            "SELECT CASE WHEN r.store = ? AND r.named <> '' THEN r.named ELSE r.store END AS name, r.reason, count(*), "
            "count(b.id), min(r.at), max(r.at) FROM refused r LEFT JOIN refused_body b ON b.id = r.id "
            "GROUP BY name, r.reason ORDER BY name, count(*) DESC",
            (UNKNOWN,),
        ).fetchall()
        found = []
        for name in dict.fromkeys(row[0] for row in rows):
            mine = [row for row in rows if row[0] == name]
            times = [row[4] for row in mine], [row[5] for row in mine]
            reasons = {row[1]: int(row[2]) for row in mine}
            kept = sum(row[3] for row in mine)
            found.append(RefusedOf(name, reasons, kept, min(times[0]) / 1000, max(times[1]) / 1000))
        return sorted(found, key=lambda one: -one.many)

    def count_kept(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM refused_body").fetchone()[0])

    def _insert(self, one: Refusal) -> None:
        line = (int(one.at * 1000), one.store, one.named, one.reason, one.length, one.hash, one.address)
        cursor = self._db.execute(
            "INSERT INTO refused (at, store, named, reason, length, hash, address) VALUES (?, ?, ?, ?, ?, ?, ?)", line
        )
        if one.body is not None:
            self._db.execute(
                "INSERT INTO refused_body (id, store, cost, headers, body) VALUES (?, ?, ?, ?, ?)",
                (cursor.lastrowid, one.store, one.cost, orjson.dumps(dict(one.headers)), one.body),
            )

    def _trim(self, bounds: Bounds, now: float) -> None:
        oldest = int((now - bounds.max_age) * 1000)
        self._db.execute("DELETE FROM refused_body WHERE id IN (SELECT id FROM refused WHERE at < ?)", (oldest,))
        self._db.execute("DELETE FROM refused WHERE at < ?", (oldest,))
        lines = bounds.max_bytes // LINES_SHARE
        self._fair_shares("refused_body", "cost", bounds.max_bytes - lines, self._drop_oldest_bodies)
        self._fair_shares("refused", str(LINE_COST), lines, self._drop_oldest_lines)

    def _fair_shares(self, table: str, cost: str, limit: int, drop: Callable[[str, int], None]) -> None:
        """Where there is too much, the stores with the most give way, each down to the same level."""
        taken = dict(self._db.execute(f"SELECT store, sum({cost}) FROM {table} GROUP BY store"))  # noqa: S608
        if sum(taken.values()) <= limit:
            return
        level = fair_level(list(taken.values()), limit)
        for store, size in taken.items():
            if size > level:
                drop(store, level)

    def _drop_oldest_bodies(self, store: str, level: int) -> None:
        self._db.execute(
            "DELETE FROM refused_body WHERE id IN (SELECT id FROM "
            "(SELECT id, sum(cost) OVER (ORDER BY id DESC) AS kept FROM refused_body WHERE store = ?) WHERE kept > ?)",
            (store, level),
        )

    def _drop_oldest_lines(self, store: str, level: int) -> None:
        """Lines whose body is kept stay: the body has its own bound."""
        self._db.execute(
            "DELETE FROM refused WHERE id NOT IN (SELECT id FROM refused_body) AND id IN "
            "(SELECT id FROM refused WHERE store = ? ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (store, level // LINE_COST),
        )


def fair_level(sizes: list[int], limit: int) -> int:
    """The level to which the largest are cut so that all fit: nobody below it gives anything."""
    left = limit
    for position, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - position)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def _line(row: tuple[Any, ...], body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Refusal:
    number, at, store, named, reason, length, digest, address = row
    return Refusal(at / 1000, store, named, reason, length, digest, address, headers or {}, body, number)


def _whole(row: tuple[Any, ...]) -> Refusal:
    *line, headers, body = row
    return _line(tuple(line), body, orjson.loads(headers) if headers is not None else None)
