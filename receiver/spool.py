"""Spool: one SQLite file for each host, in data_dir, for what the inbox does not hold.

Each kind of row has its tables and its own connection, because they want different care: a refused
delivery may be lost in a power cut (synchronous NORMAL), one that was answered 2xx may not (FULL).
`open_spool` makes every table, so that any process may be the first to come.

    event          deliveries answered 2xx that the inbox could not take yet, in order; their ids are unique
    event_held     for each store that waits there, the bytes its rows take; kept by triggers, so that asking is free
    refused        a line for every refusal: time, store, reason, length, hash, address
    refused_body   headers and raw body of those that are kept; deleted before their lines are
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson

from receiver.contract.event import Event
from receiver.contract.intake import Delivery
from receiver.contract.settings import Bounds

FILE = "spool.sqlite3"
UNKNOWN = "?"
BUSY_SECONDS = 5.0
WAL_BYTES = 4 << 20
LINE_COST = 400
"""What a line takes on disk, indexes included; rounded up, so that the bound is kept."""
ROW_COST = 150
"""What a spooled delivery takes beside its bytes: numbers, indexes."""
PAGE = 4096
SPARE_PAGES = 1024
"""Free pages that stay in the file, for the next rows; the others go back to the disk."""
VACUUM_PAGES = 4096
"""Given back in one transaction."""
LINES_SHARE = 4
"""One part in so many of the bytes is for lines, the others are for bodies."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, store TEXT NOT NULL, at INTEGER NOT NULL,
    about BLOB NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS event_by_store ON event (store, number);
CREATE TABLE IF NOT EXISTS event_held (store TEXT PRIMARY KEY, octets INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS event_comes AFTER INSERT ON event BEGIN
    INSERT INTO event_held VALUES (new.store, length(new.about) + length(new.body) + {ROW_COST})
        ON CONFLICT (store) DO UPDATE SET octets = octets + excluded.octets;
END;
CREATE TRIGGER IF NOT EXISTS event_goes AFTER DELETE ON event BEGIN
    UPDATE event_held SET octets = max(0, octets - length(old.about) - length(old.body) - {ROW_COST})
        WHERE store = old.store;
    DELETE FROM event_held WHERE store = old.store AND NOT EXISTS (SELECT 1 FROM event WHERE store = old.store);
END;
CREATE TABLE IF NOT EXISTS refused (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, store TEXT NOT NULL, named TEXT NOT NULL,
    reason TEXT NOT NULL, length INTEGER NOT NULL, hash TEXT NOT NULL, address TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS refused_by_store ON refused (store, id);
CREATE INDEX IF NOT EXISTS refused_by_time ON refused (at);
CREATE TABLE IF NOT EXISTS refused_body (
    id INTEGER PRIMARY KEY, store TEXT NOT NULL, cost INTEGER NOT NULL, headers BLOB NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS refused_body_by_store ON refused_body (store, id, cost);
"""  # noqa: S608  made of our own constants
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


def open_spool(data_dir: Path, *, synchronous: Literal["NORMAL", "FULL"]) -> sqlite3.Connection:
    """A connection to the host's file, which is made where it is missing, for its owner only."""
    data_dir.mkdir(parents=True, exist_ok=True)
    path = data_dir / FILE
    if not path.exists():
        # Only where it is missing: closing a descriptor of the file drops the locks SQLite holds on it in this process.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before anything is written, or it has no effect
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    connection.executescript(_SCHEMA)
    return connection


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def open_refusals(data_dir: Path) -> Refusals:
    return Refusals(open_spool(data_dir, synchronous="NORMAL"))


def look_at_refusals(data_dir: Path) -> Refusals:
    """For people: nothing where there is no file. A file made by whoever looks first could be the wrong user's."""
    if (data_dir / FILE).exists():
        return open_refusals(data_dir)
    nothing = sqlite3.connect(":memory:", isolation_level=None)
    nothing.executescript(_SCHEMA)
    return Refusals(nothing)


@dataclass(frozen=True)
class Row:
    """A spooled delivery and its place. The delivery is None where the row cannot be read."""

    number: int
    store: str
    delivery: Delivery | None


def open_events(data_dir: Path) -> SpooledEvents:
    return SpooledEvents(open_spool(data_dir, synchronous="FULL"))


class SpooledEvents:
    """Deliveries that were answered 2xx while the inbox was away. They are on disk before `add` returns."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def add(self, deliveries: Iterable[Delivery]) -> list[bool]:
        """Keep deliveries, all in one transaction; False for one that is here already."""
        rows = [
            (
                one.event.id,
                one.event.store,
                int(one.event.received_at.timestamp() * 1000),
                pack_delivery(one),
                one.event.body,
            )
            for one in deliveries
        ]
        insert = "INSERT INTO event (id, store, at, about, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
        with transaction(self._db):
            return [self._db.execute(insert, row).rowcount == 1 for row in rows]

    def holds(self, store: str) -> bool:
        """Whether rows of a store are waiting."""
        return self._db.execute("SELECT 1 FROM event WHERE store = ? LIMIT 1", (store,)).fetchone() is not None

    def waiting_of(self, store: str, at_most: int) -> int:
        """How many rows of a store are waiting; not counted beyond `at_most`."""
        counted = "SELECT count(*) FROM (SELECT 1 FROM event WHERE store = ? LIMIT ?)"
        return int(self._db.execute(counted, (store, at_most)).fetchone()[0])

    def held(self) -> dict[str, int]:
        """The bytes that each waiting store's rows take."""
        return dict(self._db.execute("SELECT store, octets FROM event_held"))

    def inside_shares(self, deliveries: Iterable[Delivery], free: int) -> list[bool]:
        """Which of them their stores may still add: a store may hold no more than is free. So whatever the others do,
        there is room for a store that has nothing here yet. Within one call only bodies count; the next knows all."""
        held, fit = self.held(), []
        for one in deliveries:
            store, cost = one.event.store, len(one.event.body) + ROW_COST
            fits = held.get(store, 0) + cost <= free
            if fits:
                held[store], free = held.get(store, 0) + cost, free - cost
            fit.append(fits)
        return fit

    def oldest(self, many: int, *, after: int = 0, but_not_of: Iterable[str] = ()) -> list[Row]:
        """The first rows after a number, in order of arrival."""
        passed_over = list(but_not_of)
        holes = ", ".join("?" * len(passed_over))
        rows = self._db.execute(
            "SELECT number, store, about, body FROM event "  # noqa: S608
            f"WHERE number > ? AND store NOT IN ({holes}) ORDER BY number LIMIT ?",
            (after, *passed_over, many),
        )
        return [Row(number, store, _unpacked(about, body)) for number, store, about, body in rows]

    def delete(self, numbers: Iterable[int]) -> None:
        """Forget rows that the inbox has acknowledged."""
        with transaction(self._db):
            self._db.executemany("DELETE FROM event WHERE number = ?", [(number,) for number in numbers])

    def count(self) -> int:
        return self.summary()[0]

    def summary(self) -> tuple[int, float]:
        """How many wait, and when the oldest arrived (0 if none)."""
        many, oldest = self._db.execute("SELECT count(*), min(at) FROM event").fetchone()
        return int(many), (oldest or 0) / 1000

    def used_bytes(self) -> int:
        """What rows take in the file. The file itself does not shrink when they go; its free pages are used again."""
        return (self._ask("page_count") - self._ask("freelist_count")) * self._ask("page_size")

    def give_back(self) -> None:
        """Return to the disk what rows have left, but for a little, and not much at a time: others want to write."""
        many = min(self._ask("freelist_count") - SPARE_PAGES, VACUUM_PAGES)
        if many > 0:
            self._db.executescript(f"PRAGMA incremental_vacuum({many})")  # `execute` takes one step: one page
            self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # only then is the file shorter

    def _ask(self, pragma: str) -> int:
        return int(self._db.execute(f"PRAGMA {pragma}").fetchone()[0])

    def close(self) -> None:
        self._db.close()


def pack_delivery(delivery: Delivery) -> bytes:
    """Everything of a delivery but its body."""
    event = delivery.event
    about = {item.name: getattr(event, item.name) for item in fields(event) if item.name != "body"}
    beside = {item.name: getattr(delivery, item.name) for item in fields(delivery) if item.name != "event"}
    return orjson.dumps({"event": {**about, "headers": dict(event.headers)}, **beside})


def unpack_delivery(about: bytes, body: bytes) -> Delivery:
    told = orjson.loads(about)
    event = told.pop("event")
    for name in ("received_at", "occurred_at"):
        event[name] = datetime.fromisoformat(event[name]) if event[name] else None
    return Delivery(event=Event(**event, body=body), **told)


def _unpacked(about: bytes, body: bytes) -> Delivery | None:
    try:
        return unpack_delivery(about, body)
    except Exception:  # noqa: BLE001  a row of another version, or a spoilt one: the rows after it must not wait for it
        return None


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
        oldest = int((now - bounds.seconds) * 1000)
        self._db.execute("DELETE FROM refused_body WHERE id IN (SELECT id FROM refused WHERE at < ?)", (oldest,))
        self._db.execute("DELETE FROM refused WHERE at < ?", (oldest,))
        lines = bounds.octets // LINES_SHARE
        self._fair_shares("refused_body", "cost", bounds.octets - lines, self._drop_oldest_bodies)
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
