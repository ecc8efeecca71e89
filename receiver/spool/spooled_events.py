"""Spooled events: deliveries that were answered 2xx and are not yet in the inbox."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, fields, replace
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

import orjson

from receiver.contract.event import Event, other_event_id
from receiver.contract.intake import Delivery
from receiver.spool.database import (
    BUSY_SECONDS,
    DamagedFileError,
    Format,
    checkpoint,
    connect_read_only,
    open_file,
    release_free_pages,
    transaction,
)
from receiver.spool.uptime import Uptime, read_uptime

EVENTS_FILE = "spool.sqlite3"
FILE_NAME = re.compile(r"spool(?:-(\d+))?\.sqlite3")
ROW = "number, store, boot, uptime, checksum, about, body"
READ_BYTES = 2 << 20
"""Of bodies that are read at once, and go to the inbox in one round trip: it accepts no other deliveries meanwhile."""
ROW_COST = 150
"""Bytes that a spooled delivery takes in addition to its content: numbers, indexes."""
ATTEMPT_BYTES = 16 << 10
RESERVED_DISK_BYTES = 32 << 20
"""With less free space on the disk nothing is spooled."""
MAX_FIRSTS = 10_000
"""Deliveries without an id of which a connection knows that they were spooled here."""
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, store TEXT NOT NULL, at INTEGER NOT NULL,
    boot TEXT NOT NULL, uptime INTEGER NOT NULL, duplicates INTEGER NOT NULL DEFAULT 0, checksum INTEGER NOT NULL,
    about BLOB NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS event_by_store ON event (store, number);
CREATE TABLE IF NOT EXISTS store_usage (
    store TEXT PRIMARY KEY, events INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS event_inserted AFTER INSERT ON event BEGIN
    INSERT INTO store_usage VALUES (new.store, 1, length(new.about) + length(new.body) + {ROW_COST})
        ON CONFLICT (store) DO UPDATE SET events = events + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER IF NOT EXISTS event_deleted AFTER DELETE ON event BEGIN
    UPDATE store_usage SET events = events - 1,
        bytes = max(0, bytes - length(old.about) - length(old.body) - {ROW_COST}) WHERE store = old.store;
    DELETE FROM store_usage WHERE store = old.store AND events = 0;
END;
CREATE TABLE IF NOT EXISTS attempt (number INTEGER PRIMARY KEY, padding BLOB NOT NULL);
"""  # noqa: S608  built from constants
EVENTS_FORMAT = Format(3, "event", SCHEMA, "FULL")
LATEST = 253_402_300_800_000
"""No time is later, in milliseconds: the year 10000."""


RowKey = tuple[int, str]


@dataclass(frozen=True)
class SpooledRow:
    """A spooled delivery and its place in the order. The delivery is None where the row cannot be read."""

    number: int
    store: str
    delivery: Delivery | None
    waited: float = 0.0
    """Seconds since it was spooled, not by the clock that can be set. If the host was booted since, they are not known:
    then the delivery has no content_hash, because it cannot be judged whether it repeats another."""

    @property
    def id(self) -> str:
        """The id of its event; empty where the row cannot be read."""
        return self.delivery.event.id if self.delivery else ""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.delivery.event.body) if self.delivery else 0

    @property
    def key(self) -> RowKey:
        """One that is spooled again has another number, or another id if its file was replaced."""
        return self.number, self.id


class SpoolResult(NamedTuple):
    """What became of a delivery. The id leads to an event: which one it becomes, or repeats, is judged by the inbox.

    A batch is a duplicate if all of its events are, and has the id of the first.
    """

    status: Literal["accepted", "duplicate", "full"]
    id: str
    items: tuple[SpoolResult, ...] = ()
    """The results for each event of a batch, in order."""


def events_files(data_dir: Path) -> list[Path]:
    """The newest takes deliveries. A file before it is damaged, and is to be drained as far as it can be read."""
    found = {int(match[1] or 1): path for path in data_dir.glob("spool*") if (match := FILE_NAME.fullmatch(path.name))}
    return [found[number] for number in sorted(found)]


def newest_events_file(data_dir: Path) -> Path:
    return (events_files(data_dir) or [data_dir / EVENTS_FILE])[-1]


def open_events(data_dir: Path, *, repeat_window: float = 0.0) -> SpooledEvents:
    return SpooledEvents(open_file(newest_events_file(data_dir), EVENTS_FORMAT), repeat_window)


def open_events_read_only(file: Path) -> SpooledEvents:
    """For reads that never block: they raise sqlite3.Error where the file is locked or has no table."""
    return SpooledEvents(connect_read_only(file))


class _First(NamedTuple):
    """A delivery without an id that was spooled here, and the row of the last one that repeats it."""

    id: str
    uptime: int
    latest: RowKey | None = None


class SpooledEvents:
    """The spooled deliveries of this host. They are on disk before `add` returns.

    Only the inbox can judge whether a delivery without an id repeats another: it may have an event from before, whose
    window ends between the two. If the latest repeat is outside that window it is an event, and if not, neither is one
    before it, as far as this host decides. So of equal ones within a `repeat_window`, in seconds, the first and the
    latest have rows, and who sends a captured delivery again and again does not fill the file.
    """

    def __init__(self, connection: sqlite3.Connection, repeat_window: float = 0.0) -> None:
        self._db = connection
        self._window_ms = repeat_window * 1000
        self._firsts: dict[tuple[str, str], _First] = {}
        """By store and hash of the content, of this connection only: each thread has its own first and latest."""

    def add(self, deliveries: Iterable[Delivery], *, wait: float = BUSY_SECONDS) -> list[SpoolResult]:
        """Write deliveries in one transaction, each event of a batch as a row of its own.

        One whose id is here already is counted in its row as a duplicate. Waits this long for other writers.
        """
        packed = [[(one, pack_delivery(one)) for one in (delivery, *delivery.rest)] for delivery in deliveries]
        uptime = read_uptime()
        try:
            with transaction(self._db, rows=sum(map(len, packed)), wait=wait):
                added = [[self._add(one, about, uptime) for one, about in rows] for rows in packed]
        except BaseException:
            self._firsts.clear()  # some may be of rows that are not there now
            raise
        return [rows[0] if len(rows) == 1 else _of_batch(rows) for rows in added]

    def _add(self, delivery: Delivery, about: bytes, uptime: Uptime) -> SpoolResult:
        event, content = delivery.event, (delivery.event.store, delivery.content_hash)
        first = self._firsts.get(content)
        if first and uptime.ms - first.uptime < self._window_ms:
            replaced = self._remove_repeat(*first.latest) if first.latest else 0
            number = self._insert(delivery, about, uptime, duplicates=replaced)
            self._firsts[content] = first._replace(latest=(number, event.id) if number else None)
            return SpoolResult("duplicate", first.id)
        if self._insert(delivery, about, uptime):
            if delivery.content_hash and self._window_ms:
                self._remember(content, _First(event.id, uptime.ms))
            return SpoolResult("accepted", event.id)
        equal = "SELECT 1 FROM event WHERE id = ? AND body = ?"
        may_differ = delivery.others_count and not delivery.first_id  # the other id is made from the body
        if may_differ and not self._db.execute(equal, (event.id, event.body)).fetchone():
            # Another body under an id that counts alone. The inbox decides whether it is another event.
            other = replace(delivery, event=replace(event, id=other_event_id(event)), first_id=event.id)
            return self._add(other, pack_delivery(other), uptime)
        self._db.execute("UPDATE event SET duplicates = duplicates + 1 WHERE id = ?", (event.id,))
        return SpoolResult("duplicate", event.id)

    def _insert(self, delivery: Delivery, about: bytes, uptime: Uptime, duplicates: int = 0) -> int | None:
        """The number of the new row; None if there is one with this id."""
        event = delivery.event
        at = int(event.received_at.timestamp() * 1000)
        row = (event.id, event.store, at, *uptime, duplicates, _checksum(about, event.body), about, event.body)
        done = self._db.execute(
            "INSERT INTO event (id, store, at, boot, uptime, duplicates, checksum, about, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
            row,
        )
        return done.lastrowid if done.rowcount == 1 else None

    def _remove_repeat(self, number: int, id_: str) -> int:
        """The number of duplicates that the row stands for, with itself; 0 if it was drained."""
        found = self._db.execute("SELECT duplicates FROM event WHERE number = ? AND id = ?", (number, id_)).fetchone()
        if found is None:
            return 0
        self._db.execute("DELETE FROM event WHERE number = ?", (number,))
        return int(found[0]) + 1

    def _remember(self, content: tuple[str, str], first: _First) -> None:
        self._firsts.pop(content, None)
        self._firsts[content] = first
        if len(self._firsts) > MAX_FIRSTS:
            del self._firsts[next(iter(self._firsts))]

    def has_rows(self, store: str) -> bool:
        return self._db.execute("SELECT 1 FROM event WHERE store = ? LIMIT 1", (store,)).fetchone() is not None

    def bytes_by_store(self) -> dict[str, int]:
        """The bytes that each store's rows take."""
        return dict(self._db.execute("SELECT store, CAST(total(bytes) AS INTEGER) FROM store_usage GROUP BY store"))

    def within_limits(self, deliveries: Iterable[Delivery], free: float, quotas: Mapping[str, int]) -> list[bool]:
        """Which deliveries their stores may still add: up to a store's quota of rows, and no more bytes than are free.

        So there is always space for a store that has no rows yet. Within one call only bodies are counted; the next
        call reads the exact sizes. For a batch there is one decision: it fits as a whole, and a store below its quota
        may add all of it.
        """
        rows = dict(self._db.execute("SELECT store, events FROM store_usage"))
        used, fits = self.bytes_by_store(), []
        for one in deliveries:
            store, cost = one.event.store, sum(len(each.event.body) + ROW_COST for each in (one, *one.rest))
            has_quota = rows.get(store, 0) < quotas.get(store, inf)
            fits.append(has_quota and used.get(store, 0) + cost <= free)
            if fits[-1]:
                used[store], free = used.get(store, 0) + cost, free - cost
                rows[store] = rows.get(store, 0) + 1 + len(one.rest)
        return fits

    def oldest(self, limit: int, *, after: int = 0, except_stores: Iterable[str] = ()) -> list[SpooledRow]:
        """The first rows after a number, in order of arrival: at most this number, and READ_BYTES and one more."""
        excluded = list(except_stores)
        placeholders = ", ".join("?" * len(excluded))
        where = f"number > ? AND store NOT IN ({placeholders})"
        return _read_rows(self._db, where, [after, *excluded], after=after, limit=limit)

    def oldest_of_each(
        self, limit: int, *, after: Mapping[str, int], except_stores: Set[str]
    ) -> Iterator[list[SpooledRow]]:
        """The first rows of each store after a number of its own, up to `limit`; those of small stores together."""
        found = list[SpooledRow]()
        for (store,) in self._db.execute("SELECT store FROM store_usage").fetchall():
            if store not in except_stores:
                last = after.get(store, 0)
                found += _read_rows(self._db, "number > ? AND store = ?", [last, store], after=last, limit=limit)
            if len(found) >= limit or sum(row.size for row in found) > READ_BYTES:
                yield found
                found = []
        if found:
            yield found

    def delete(self, rows: Sequence[SpooledRow]) -> dict[str, int]:
        """Delete rows that were read here and that the inbox has acknowledged. Some may be gone: erased, or replaced by
        a later repeat, which then counts as one duplicate more than there was.

        Returns the number of duplicates of these rows that were found here, by store.
        """
        these = ", ".join("?" * len(rows))
        of_ids, ids = f"FROM event WHERE id IN ({these})", [row.id for row in rows]
        by_number = f"SELECT 1 FROM event WHERE number IN ({these})"  # noqa: S608
        with transaction(self._db):
            duplicates = self._db.execute(
                f"SELECT store, sum(duplicates) {of_ids} AND duplicates > 0 GROUP BY store", ids
            ).fetchall()
            self._db.execute(f"DELETE {of_ids}", ids)
            if self._db.execute(by_number, [row.number for row in rows]).fetchone():
                raise DamagedFileError("a row that is there is not found by its id")
        return dict(duplicates)

    def try_commit(self, *, wait: float = BUSY_SECONDS) -> None:
        """Write about as much as a delivery takes, as a row that is replaced each time. Raises as `add` would."""
        with transaction(self._db, wait=wait):
            self._db.execute("REPLACE INTO attempt VALUES (1, randomblob(?))", (ATTEMPT_BYTES,))

    def count(self) -> int:
        return self.summary()[0]

    def summary(self) -> tuple[int, float]:
        """The number of rows, and when the first arrived (0 if there is none). Costs the same at any number of rows."""
        count, at = self._db.execute(  # in one statement, so that no row is added or deleted in between
            "SELECT (SELECT CAST(total(events) AS INTEGER) FROM store_usage), "
            "(SELECT at FROM event ORDER BY number LIMIT 1)"
        ).fetchone()
        if (count, at) == (0, None):
            return 0, 0.0
        if not (count > 0 and isinstance(at, int) and 0 <= at < LATEST):
            raise DamagedFileError("the number of its rows or the time of the first is damaged")
        return count, at / 1000

    def used_bytes(self) -> int:
        """The bytes of the pages in use. Deleting rows does not shrink the file; its free pages are used again."""
        pages, free = self._pragma("page_count"), self._pragma("freelist_count")
        if not 0 <= free <= pages:
            raise DamagedFileError("the number of its free pages is damaged")
        return (pages - free) * self._pragma("page_size")

    def release_free_pages(self) -> None:
        """Return free pages to the disk, except for a few; not many at a time, because others want to write."""
        release_free_pages(self._db)

    def checkpoint(self) -> None:
        """Write the write-ahead log to the file. Waits for no other process."""
        checkpoint(self._db)

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def close(self) -> None:
        self._db.close()


def _of_batch(rows: Sequence[SpoolResult]) -> SpoolResult:
    is_new = any(one.status == "accepted" for one in rows)
    return SpoolResult("accepted" if is_new else "duplicate", rows[0].id, tuple(rows))


_NOT_PACKED = ("body", "record_map", "merged")


def pack_delivery(delivery: Delivery) -> bytes:
    """Everything of a delivery except its body, the record map, which is config, and the other events of its batch,
    which have rows of their own."""
    event = delivery.event
    about = {item.name: getattr(event, item.name) for item in fields(event) if item.name not in _NOT_PACKED}
    other = {item.name: getattr(delivery, item.name) for item in fields(delivery) if item.name not in ("event", "rest")}
    return orjson.dumps({"event": {**about, "headers": dict(event.headers)}, **other})


def unpack_delivery(about: bytes, body: bytes) -> Delivery:
    values = orjson.loads(about)
    event = values.pop("event")
    for name in ("received_at", "occurred_at"):
        event[name] = datetime.fromisoformat(event[name]) if event[name] else None
    return Delivery(event=Event(**event, body=body), **values)


def _checksum(about: bytes, body: bytes) -> int:
    """SQLite has none for its pages, so it would not notice a damaged body."""
    return crc32(body, crc32(about))


def _read_rows(
    database: sqlite3.Connection, where: str, values: Sequence[int | str], *, after: int, limit: int
) -> list[SpooledRow]:
    query = f"SELECT {ROW} FROM event WHERE {where} ORDER BY number LIMIT ?"  # noqa: S608
    now, found, size = read_uptime(), list[SpooledRow](), 0
    with closing(database.execute(query, (*values, limit))) as rows:
        for row in rows:
            found.append(read_row(now, *row))
            size += found[-1].size
            if size > READ_BYTES:
                break
    numbers = [after, *(row.number for row in found)]
    if numbers != sorted(set(numbers)):
        raise DamagedFileError("its rows are not in order")
    return found


def read_row(
    now: Uptime, number: int, store: str, boot: str, uptime: int, checksum: int, about: bytes, body: bytes
) -> SpooledRow:
    delivery = _unpack_or_none(checksum, about, body)
    store = delivery.event.store if delivery else str(store)
    waited = now.seconds_since(boot, uptime)
    if waited is None:
        return SpooledRow(number, store, delivery and replace(delivery, content_hash=""))
    return SpooledRow(number, store, delivery, waited)


def _unpack_or_none(checksum: int, about: bytes, body: bytes) -> Delivery | None:
    try:
        return unpack_delivery(about, body) if _checksum(about, body) == checksum else None
    except Exception:  # noqa: BLE001  a damaged row, or one of another version: the rows after it must not wait for it
        return None
