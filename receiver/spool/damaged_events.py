"""Damaged files of spooled events: deliveries go to a new file, and what can be read in the old one is drained."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from receiver.spool.database import PAGE, connect
from receiver.spool.spooled_events import EVENTS_FILE, FILE_NAME, ROW, SCHEMA, SpooledRow, read_row, read_uptime


def is_damage(error: Exception) -> bool:
    """Whether the error says that the content of a file is not what SQLite has written."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def set_aside(damaged: Path) -> None:
    """Create the next file, if it does not exist. The damaged one keeps its name: other processes may be using it."""
    match = FILE_NAME.fullmatch(damaged.name)
    following = f"spool-{int(match[1] or 1) + 1}.sqlite3" if match else EVENTS_FILE
    damaged.with_name(following).touch(mode=0o600)


def kept_files(data_dir: Path) -> list[Path]:
    """Damaged files whose readable rows are in the inbox. They may have others, so only a person removes them."""
    return sorted(data_dir.glob("spool-damaged-*.sqlite3"))


def keep(damaged: Path) -> Path:
    """Rename a damaged file whose readable rows are in the inbox; returns its new name."""
    kept = damaged.with_name(f"spool-damaged-{time.time_ns() // 1_000_000}.sqlite3")
    for end in ("-wal", ""):
        with suppress(FileNotFoundError):
            os.rename(f"{damaged}{end}", f"{kept}{end}")
    Path(f"{damaged}-shm").unlink(missing_ok=True)
    return kept


@contextmanager
def open_damaged(file: Path) -> Iterator[DamagedEvents]:
    """A damaged file. Meanwhile other processes cannot add rows."""
    try:
        with closing(connect(file)) as connection:
            connection.execute("SELECT * FROM sqlite_master").fetchall()
    except sqlite3.Error:
        _replace_first_page(file)
    with closing(connect(file)) as connection:
        with suppress(sqlite3.Error):
            connection.execute("BEGIN IMMEDIATE")
        yield DamagedEvents(connection)


class DamagedEvents:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def numbers(self) -> list[int]:
        """The rows that are found: by the table and by an index, from both ends."""
        found: set[int] = set()
        for way in (
            "NOT INDEXED ORDER BY number",
            "NOT INDEXED ORDER BY number DESC",
            "INDEXED BY event_by_store ORDER BY store, number",
            "INDEXED BY event_by_store ORDER BY store DESC, number DESC",
        ):
            with suppress(sqlite3.Error):
                found.update(number for (number,) in self._db.execute(f"SELECT number FROM event {way}"))  # noqa: S608
        return sorted(found)

    def readable(self, numbers: Iterable[int]) -> list[SpooledRow]:
        """Those of the rows that can be read."""
        now, rows = read_uptime(), []
        for number in numbers:
            with suppress(sqlite3.Error):
                found = self._db.execute(f"SELECT {ROW} FROM event NOT INDEXED WHERE number = ?", (number,))  # noqa: S608
                rows += [read_row(now, *row) for row in found]
        return [row for row in rows if row.delivery]


def _replace_first_page(file: Path) -> None:
    """Write the first page anew, so that the other pages can be read.

    It has the file's header and the list of tables, and every file with this schema has each table at the same place.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
        empty.executescript(f"PRAGMA page_size = {PAGE}; PRAGMA auto_vacuum = INCREMENTAL; {SCHEMA}")
        page = bytearray(empty.serialize()[:PAGE])
    page[18:20] = b"\2\2"  # there is a write-ahead log
    page[92:96] = b"\1\1\1\1"  # so that the size of the file counts, and not the number of pages in this header
    with file.open("r+b") as pages:
        pages.write(page)
