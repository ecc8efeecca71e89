"""Spooled events: deliveries that were answered 2xx and that the inbox could not take yet."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path

import orjson

from receiver.contract.event import Event
from receiver.contract.intake import Delivery
from receiver.spool.database import ROW_COST, open_spool, transaction

SPARE_PAGES = 1024
"""Free pages that stay in the file, for the next rows; the others go back to the disk."""
VACUUM_PAGES = 4096
"""Given back in one transaction."""


@dataclass(frozen=True)
class SpooledRow:
    """A spooled delivery and its place. The delivery is None where the row cannot be read."""

    number: int
    store: str
    delivery: Delivery | None


def open_events(data_dir: Path) -> SpooledEvents:
    return SpooledEvents(open_spool(data_dir, synchronous="FULL"))


def glance_at_events(file: Path) -> SpooledEvents:
    """Only to look, and never to wait: raises sqlite3.Error where one would have to, or where there is no table."""
    connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=0, isolation_level=None)
    return SpooledEvents(connection)


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

    def oldest(self, many: int, *, after: int = 0, but_not_of: Iterable[str] = ()) -> list[SpooledRow]:
        """The first rows after a number, in order of arrival."""
        passed_over = list(but_not_of)
        holes = ", ".join("?" * len(passed_over))
        rows = self._db.execute(
            "SELECT number, store, about, body FROM event "  # noqa: S608
            f"WHERE number > ? AND store NOT IN ({holes}) ORDER BY number LIMIT ?",
            (after, *passed_over, many),
        )
        return [SpooledRow(number, store, _unpacked(about, body)) for number, store, about, body in rows]

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
