"""Refused deliveries: a line for each, and headers and body for most of them, within bounds."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from receiver.config.values import Bounds
from receiver.contract.stores import UNKNOWN_STORE
from receiver.spool.database import PAGE, Format, compact_afterwards, open_file, transaction
from receiver.spool.released_deliveries import (
    Order,
    ReleasedEvent,
    delete_released_before,
    note_released,
    released_between,
)
from receiver.spool.spooled_events import LATEST, RESERVED_DISK_BYTES
from receiver.spool.uptime import Uptime, read_uptime

REFUSED_FILE = "refused.sqlite3"
LINE_COST = 400
"""Bytes that a line takes on disk, with its indexes; rounded up, so that the bound holds."""
SHARES_A_PAGE = PAGE // 2 - 100
"""Two rows of less than these bytes fit in a page."""
LINES_AT_ONCE, BODIES_AT_ONCE = 4_000, 2_000
"""Deleted in one transaction, whose journal takes disk space, too: up to a page for each."""
LINES_SHARE = 4
"""One part in four of the bytes is for lines, the rest is for bodies."""
NEEDED_DISK_BYTES = RESERVED_DISK_BYTES + (16 << 20)
"""With less free space on the disk no refusal is written, so that file and journal leave the spool its reserve."""
AMPLE_DISK_BYTES = 2 * RESERVED_DISK_BYTES
"""With less free space the bodies take no more than before: a new one takes the place of older ones."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS refused (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, store TEXT NOT NULL, named TEXT NOT NULL,
    reason TEXT NOT NULL, length INTEGER NOT NULL, hash TEXT NOT NULL, address TEXT NOT NULL,
    boot TEXT NOT NULL, uptime INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS refused_by_store ON refused (store, id);
CREATE INDEX IF NOT EXISTS refused_by_time ON refused (at);
CREATE TABLE IF NOT EXISTS refused_body (
    id INTEGER PRIMARY KEY, store TEXT NOT NULL, cost INTEGER NOT NULL, headers BLOB NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS refused_body_by_store ON refused_body (store, id, cost);
"""
REFUSED_FORMAT = Format(3, "refused", SCHEMA, "NORMAL")
REFUSED, TRY_AGAIN = 401, 503
"""What a delivery is answered: TRY_AGAIN while its secret may only be unknown yet."""
_TRY_AGAIN = f" {TRY_AGAIN}"
"""The end of the stored reason of one that was answered so. A column would be another format, which the version before
does not read."""
_REASON = f"replace(r.reason, '{_TRY_AGAIN}', '')"
_STATUS = f"CASE WHEN r.reason LIKE '%{_TRY_AGAIN}' THEN {TRY_AGAIN} ELSE {REFUSED} END"
_COLUMNS = f"r.id, r.at, r.store, r.named, {_REASON}, r.length, r.hash, r.address, r.boot, r.uptime, {_STATUS}"
_IS_READABLE = (
    "typeof(at) || typeof(length) || typeof(uptime) = 'integerintegerinteger' AND "
    "typeof(store) || typeof(named) || typeof(reason) || typeof(hash) || typeof(address) || typeof(boot) "
    f"= 'texttexttexttexttexttext' AND at BETWEEN 0 AND {LATEST - 1}"
)
_LINES = f"(SELECT * FROM refused WHERE {_IS_READABLE}) r"  # noqa: S608  built from constants
"""A damaged row is left out, so that it does not hide the others."""


@dataclass(frozen=True)
class Refusal:
    """One refused delivery. `store` is a configured name or `?`; `named` is the name in the URL."""

    at: float
    store: str
    named: str
    reason: str
    length: int
    hash: str
    address: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    """None where only the line is stored."""
    id: int = 0
    boot: str = ""
    uptime: int = 0
    """When it was written, in ms since that boot: by a clock of this host that is never set."""
    status: int = REFUSED
    """What it was answered."""

    @property
    def waited(self) -> float | None:
        """Seconds since it was written, by that clock; None if the host was booted since."""
        return read_uptime().seconds_since(self.boot, self.uptime)

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)

    @property
    def name(self) -> str:
        """The name to show for its store: the one in the URL, if the store is not configured."""
        return self.named if self.store == UNKNOWN_STORE and self.named else self.store

    @property
    def answer(self) -> str:
        return f"{self.status}, so that the sender tries again" if self.status == TRY_AGAIN else str(self.status)

    @property
    def has_body(self) -> bool:
        return self.body is not None

    @property
    def cost(self) -> int:
        """Bytes that headers and body take on disk; those that do not share a page with others fill whole pages."""
        if self.body is None:
            return 0
        size = len(self.body) + len(self.packed_headers)
        return LINE_COST + (size if size < SHARES_A_PAGE else -(-size // PAGE) * PAGE)

    @cached_property
    def packed_headers(self) -> bytes:
        """As they are stored, where a character may take up to six bytes."""
        return orjson.dumps(dict(self.headers))


@dataclass(frozen=True)
class StoreRefusals:
    """The refusals of one store: their number for each reason, how many have a body, and the first and last time."""

    store: str
    reasons: Mapping[str, int]
    with_body: int
    first: float
    last: float

    @property
    def total(self) -> int:
        return sum(self.reasons.values())


def open_refusals(data_dir: Path) -> Refusals:
    connection = open_file(data_dir / REFUSED_FILE, REFUSED_FORMAT)
    # Some builds of SQLite write zeros over all that is deleted, by way of the journal: it would fill a small disk.
    connection.execute("PRAGMA secure_delete = OFF")
    return Refusals(connection)


def open_existing_refusals(data_dir: Path) -> Refusals:
    """For commands: empty if there is no file. They never create it, because their user may not be the receiver's."""
    if (data_dir / REFUSED_FILE).exists():
        return open_refusals(data_dir)
    empty = sqlite3.connect(":memory:", isolation_level=None)
    empty.executescript(SCHEMA)
    return Refusals(empty)


class Refusals:
    """The refused deliveries of this host."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def close(self) -> None:
        self._db.close()

    # Writing, for the receiver

    def add(self, refusals: Iterable[Refusal], *, bounds: Bounds, now: float, may_grow: bool = True) -> None:
        """Write lines and bodies in one transaction, and enforce the bounds. If the file may not grow, bodies take no
        more than before."""
        uptime = read_uptime()
        with compact_afterwards(self._db), transaction(self._db):
            bodies = bounds.max_bytes - bounds.max_bytes // LINES_SHARE
            if not may_grow:
                bodies = min(bodies, sum(_bytes_by_store(self._db, "refused_body", "cost").values()))
            for one in refusals:
                _insert(self._db, one, uptime)
            more = self._trim(bounds, bodies, now)
        with suppress(sqlite3.Error):  # they are written, and the next call goes on with the trim
            while more:
                with compact_afterwards(self._db), transaction(self._db):
                    more = self._trim(bounds, bodies, now)
            delete_released_before(self._db, now - bounds.max_age)

    def delete(self, ids: Iterable[int], *, released: Sequence[ReleasedEvent] = ()) -> None:
        """Delete refusals, with their bodies. `released` are the events that some of them became."""
        rows = [(one,) for one in ids]
        try:
            _delete(self._db, rows, released)
        except sqlite3.DatabaseError as error:
            if not released or getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise
            _delete(self._db, rows, ())  # they are accepted events: they must not stay because of a damaged table

    # Reading, for commands and for the release

    def count(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM refused").fetchone()[0])

    def count_damaged(self) -> int:
        found = self._db.execute(f"SELECT count(*) FROM refused WHERE NOT ({_IS_READABLE})")  # noqa: S608
        return int(found.fetchone()[0])

    def newest(
        self, *, store: str | None = None, status: int = 0, before: int | None = None, limit: int = 50
    ) -> list[Refusal]:
        """The latest lines, newest first, without their bodies; with `before`, those with smaller ids."""
        values: list[int | str] = [1 << 62 if before is None else before]
        values += [store, store] if store else []
        where = "r.id < ? AND (r.store = ? OR r.named = ?)" if store else "r.id < ?"
        where += f" AND {_STATUS} = {status:d}" if status else ""
        return self._lines(f"{where} ORDER BY r.id DESC LIMIT ?", *values, limit)

    def last_id(self) -> int:
        """The id of the newest line; 0 if there is none. Ids are given in order and never again."""
        found = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'refused'").fetchone()
        return int(found[0]) if found else 0

    def stored_after(self, last: int, *, limit: int) -> list[Refusal]:
        """The next lines after an id, the oldest first, without their bodies."""
        return self._lines("r.id > ? ORDER BY r.id LIMIT ?", last, limit)

    def _lines(self, which: str, *values: int | str) -> list[Refusal]:
        rows = self._db.execute(
            f"SELECT {_COLUMNS}, b.id FROM {_LINES} LEFT JOIN refused_body b ON b.id = r.id WHERE {which}",  # noqa: S608
            values,
        )
        return [_line(row, body=None if row[-1] is None else b"") for row in rows]

    def get(self, refusal_id: int) -> Refusal | None:
        """One refusal with headers and body, as far as they are stored."""
        row = self._db.execute(
            f"SELECT {_COLUMNS}, b.headers, b.body FROM {_LINES} LEFT JOIN refused_body b ON b.id = r.id "  # noqa: S608
            "WHERE r.id = ?",
            (refusal_id,),
        ).fetchone()
        return _with_body(row) if row else None

    def released(self, after: Order, until: Order) -> list[ReleasedEvent]:
        """The events that refusals of this time became, in order of arrival."""
        return released_between(self._db, after, until)

    def with_body(self, *, batch: int = 200, since: float = 0, until: float = math.inf) -> Iterator[list[Refusal]]:
        """All refusals that have a body and arrived in this time, in order of arrival, one batch at a time. Their ids
        are in the order in which web processes wrote them."""
        last = (int(since * 1000) - 1, 0)
        while rows := self._db.execute(
            f"SELECT {_COLUMNS}, b.headers, b.body FROM refused_body b JOIN {_LINES} ON r.id = b.id "  # noqa: S608
            "WHERE (r.at, r.id) > (?, ?) AND r.at / 1000.0 <= ? ORDER BY r.at, r.id LIMIT ?",
            (*last, until, batch),
        ).fetchall():
            last = (rows[-1][1], rows[-1][0])
            yield [one for row in rows if (one := _with_body(row)).has_body]

    def by_store(self, *, named: bool = True, besides: Iterable[int] = ()) -> list[StoreRefusals]:
        """The refusals of each store, the most first, but not those with ids in `besides`; those of stores that are not
        configured by the name in their URL, or all together."""
        rows = self._db.execute(
            "SELECT CASE WHEN ? AND r.store = ? AND r.named <> '' THEN r.named ELSE r.store END AS name, "  # noqa: S608
            f"{_REASON} AS why, count(*), count(b.id), min(r.at), max(r.at) FROM {_LINES} "
            f"LEFT JOIN refused_body b ON b.id = r.id WHERE r.id NOT IN ({', '.join(map(str, besides))}) "
            "GROUP BY name, why ORDER BY name, count(*) DESC",
            (named, UNKNOWN_STORE),
        ).fetchall()
        stores = []
        for name in dict.fromkeys(row[0] for row in rows):
            own = [row for row in rows if row[0] == name]
            reasons = {row[1]: int(row[2]) for row in own}
            with_body = sum(row[3] for row in own)
            first, last = min(row[4] for row in own), max(row[5] for row in own)
            stores.append(StoreRefusals(name, reasons, with_body, first / 1000, last / 1000))
        return sorted(stores, key=lambda one: -one.total)

    def after(self, store: str, at: float, *, besides: Iterable[int] = ()) -> tuple[int, float]:
        """How many deliveries of a store were refused after `at`, and the seconds from the first to the last, but not
        those with ids in `besides`."""
        many, first, last = self._db.execute(
            f"SELECT count(*), min(at), max(at) FROM {_LINES} WHERE store = ? AND at > ? "  # noqa: S608
            f"AND r.id NOT IN ({', '.join(map(str, besides))})",
            (store, int(at * 1000)),
        ).fetchone()
        return int(many), (last - first) / 1000 if many else 0.0

    def count_with_body(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM refused_body").fetchone()[0])

    def _trim(self, bounds: Bounds, bodies: int, now: float) -> bool:
        """Delete what is over the bounds, or a part of it. Returns whether there may be more."""
        expired = "(SELECT id FROM refused WHERE at < ? ORDER BY at LIMIT ?)"
        values = (int((now - bounds.max_age) * 1000), BODIES_AT_ONCE)
        self._db.execute(f"DELETE FROM refused_body WHERE id IN {expired}", values)  # noqa: S608
        more = self._db.execute(f"DELETE FROM refused WHERE id IN {expired}", values).rowcount == BODIES_AT_ONCE  # noqa: S608
        more |= self._fair_shares("refused_body", "cost", bodies, self._drop_oldest_bodies)
        return more | self._fair_shares(
            "refused", str(LINE_COST), bounds.max_bytes // LINES_SHARE, self._drop_oldest_lines
        )

    def _fair_shares(self, table: str, cost: str, limit: int, drop: Callable[[str, int], bool]) -> bool:
        """Over the limit, cut the stores with the most bytes down to the same level, or towards it."""
        used = _bytes_by_store(self._db, table, cost)
        if sum(used.values()) <= limit:
            return False
        level = fair_level(list(used.values()), limit)
        unfinished = [drop(store, level) for store, size in used.items() if size > level]
        return any(unfinished)

    def _drop_oldest_bodies(self, store: str, level: int) -> bool:
        dropped = self._db.execute(
            "DELETE FROM refused_body WHERE id IN (SELECT id FROM "
            "(SELECT id, sum(cost) OVER (ORDER BY id DESC) AS used FROM refused_body WHERE store = ?) "
            "WHERE used > ? ORDER BY id LIMIT ?)",
            (store, level, BODIES_AT_ONCE),
        )
        return dropped.rowcount == BODIES_AT_ONCE

    def _drop_oldest_lines(self, store: str, level: int) -> bool:
        """Lines that still have a body stay: bodies have a bound of their own."""
        dropped = self._db.execute(
            "DELETE FROM refused WHERE id IN (SELECT id FROM "
            "(SELECT id FROM refused WHERE store = ? ORDER BY id DESC LIMIT -1 OFFSET ?) "
            "WHERE id NOT IN (SELECT id FROM refused_body) ORDER BY id LIMIT ?)",
            (store, level // LINE_COST, LINES_AT_ONCE),
        )
        return dropped.rowcount == LINES_AT_ONCE


def _insert(db: sqlite3.Connection, one: Refusal, uptime: Uptime) -> None:
    reason = one.reason + (_TRY_AGAIN if one.status == TRY_AGAIN else "")
    line = (int(one.at * 1000), one.store, one.named, reason, one.length, one.hash, one.address, *uptime)
    cursor = db.execute("INSERT INTO refused VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)", line)
    if one.body is not None:
        db.execute(
            "INSERT INTO refused_body (id, store, cost, headers, body) VALUES (?, ?, ?, ?, ?)",
            (cursor.lastrowid, one.store, one.cost, one.packed_headers, one.body),
        )


def _delete(db: sqlite3.Connection, rows: Sequence[tuple[int]], released: Sequence[ReleasedEvent]) -> None:
    with compact_afterwards(db), transaction(db):
        db.executemany("DELETE FROM refused_body WHERE id = ?", rows)
        db.executemany("DELETE FROM refused WHERE id = ?", rows)
        if released:
            note_released(db, released)


def _bytes_by_store(db: sqlite3.Connection, table: str, cost: str) -> dict[str, int]:
    return dict(db.execute(f"SELECT store, sum({cost}) FROM {table} GROUP BY store"))  # noqa: S608


def fair_level(sizes: list[int], limit: int) -> int:
    """The size to which the largest are cut so that all fit in the limit; sizes below it stay as they are."""
    left = limit
    for position, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - position)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def _line(row: tuple[Any, ...], body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Refusal:
    number, at, store, named, reason, length, digest, address, *rest = row[:11]
    return Refusal(at / 1000, store, named, reason, length, digest, address, headers or {}, body, number, *rest)


def _with_body(row: tuple[Any, ...]) -> Refusal:
    """Without headers and body if they are damaged."""
    headers, body = row[-2:]
    try:
        found = orjson.loads(headers) if isinstance(body, bytes) else None
    except ValueError:
        found = None
    is_whole = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    return _line(row, body, found) if is_whole else _line(row)
