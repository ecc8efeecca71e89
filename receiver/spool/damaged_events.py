"""Damaged files of spooled events: deliveries go to a new file, and what can be read in the old one is drained."""

from __future__ import annotations

import os
import sqlite3
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from receiver.spool.database import PAGE, DamagedFileError, connect
from receiver.spool.spooled_events import (
    EVENTS_FILE,
    EVENTS_FORMAT,
    FILE_NAME,
    READ_BYTES,
    ROW,
    SpooledRow,
    read_row,
)
from receiver.spool.uptime import Uptime, read_uptime

FIRST_PAGE = "-page1"
WRITE_VERSION, NEWEST_VERSION = 18, 2
"""A place in the header, and the largest number there: SQLite does not write a file with a larger one."""
CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY
DAMAGE = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CONSTRAINT,  # every value that is written here fits the tables,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_ERROR,  # and every statement
)


def is_damage(error: Exception, file: Path) -> bool:
    """Whether the error says that the content of a file is not what was written. Else it is the disk, or a lock."""
    code = getattr(error, "sqlite_errorcode", 0)
    only_by_its_header = code == sqlite3.SQLITE_READONLY and _forbids_writing(file)
    return isinstance(error, DamagedFileError) or code & 0xFF in DAMAGE or only_by_its_header


def _forbids_writing(file: Path) -> bool:
    """By a number in its header that SQLite never writes. A disk that became read-only after an error need not have the
    flag of one: it allows to open a file for writing."""
    try:
        with file.open("rb") as opened:
            return opened.read(WRITE_VERSION + 1)[WRITE_VERSION] > NEWEST_VERSION
    except (OSError, IndexError):
        return False


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
    rename(damaged, kept)
    return kept


def rename(damaged: Path, kept: Path) -> None:
    """Rename a file, with its journal and a first page that was replaced."""
    for end in ("-wal", FIRST_PAGE, ""):
        with suppress(FileNotFoundError):
            os.rename(f"{damaged}{end}", f"{kept}{end}")
    Path(f"{damaged}-shm").unlink(missing_ok=True)


@contextmanager
def open_damaged(file: Path) -> Iterator[DamagedEvents]:
    try:
        with closing(connect(file)) as connection:
            EVENTS_FORMAT.has_tables(connection, file)
            connection.execute(f"SELECT {ROW} FROM event LIMIT 0")  # noqa: S608
    except sqlite3.Error as error:
        if not is_damage(error, file):
            raise
        _replace_first_page(file)
    with closing(connect(file)) as connection:
        yield DamagedEvents(connection)


class DamagedEvents:
    """The rows of a damaged file, as far as they are found. Nothing is deleted there."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self.numbers = self._find_numbers()

    def lock(self) -> None:
        """Let other processes add no more rows, and go on with those that were added meanwhile."""
        with suppress(sqlite3.Error):
            self._db.execute("BEGIN IMMEDIATE")
        self.numbers = sorted({*self._find_numbers()} - {*self.numbers})

    def oldest(self, limit: int, *, after: int = 0, except_stores: Iterable[str] = ()) -> list[SpooledRow]:  # noqa: ARG002
        """The first rows after a number, of all stores."""
        start = bisect_right(self.numbers, after)
        wanted, found, now = self.numbers[start : start + limit], dict[int, SpooledRow](), read_uptime()
        for place, number in enumerate(wanted, 1):
            found |= self._read(now, "number = ?", number)
            if sum(row.size for row in found.values()) > READ_BYTES:
                wanted = wanted[:place]
                break
        for order in ("ASC", "DESC"):  # a damaged number next to a row hides it from a search, not from a walk
            missing = [number for number in wanted if number not in found]
            if missing:
                found |= self._read(
                    now, f"+number IN ({', '.join('?' * len(missing))}) ORDER BY number {order}", *missing
                )
        return [found.get(number) or SpooledRow(number, "", None) for number in wanted]

    def _read(self, now: Uptime, where: str, *values: int) -> dict[int, SpooledRow]:
        rows = {}
        with suppress(sqlite3.Error):
            for row in self._db.execute(f"SELECT {ROW} FROM event NOT INDEXED WHERE {where}", values):  # noqa: S608
                rows[row[0]] = read_row(now, *row)
        return rows

    def _find_numbers(self) -> list[int]:
        """By the table and by an index, from both ends."""
        found: set[int] = set()
        for way in (
            "NOT INDEXED ORDER BY number",
            "NOT INDEXED ORDER BY number DESC",
            "INDEXED BY event_by_store ORDER BY store, number",
            "INDEXED BY event_by_store ORDER BY store DESC, number DESC",
        ):
            with suppress(sqlite3.Error):
                for (number,) in self._db.execute(f"SELECT number FROM event {way}"):  # noqa: S608
                    found.add(number)
        return sorted(found)


def _replace_first_page(file: Path) -> None:
    """Write the first page anew, so that the other pages can be read. The old one is kept in a file of its own.

    It has the file's header and the list of tables, and every file with this schema has each table at the same place,
    unless a person has moved them.
    """
    page = bytearray(EVENTS_FORMAT.new_file[:PAGE])
    page[18:20] = b"\2\2"  # there is a write-ahead log
    page[92:96] = b"\1\1\1\1"  # so that the size of the file counts, and not the number of pages in this header
    with file.open("r+b") as pages:
        with suppress(FileExistsError), os.fdopen(os.open(f"{file}{FIRST_PAGE}", CREATE, 0o600), "wb") as old:
            old.write(pages.read(PAGE))
        pages.seek(0)
        pages.write(page)
