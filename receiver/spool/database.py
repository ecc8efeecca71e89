"""The SQLite files of this host: how they are created and opened, and how another format or damage is noticed."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from receiver.contract.errors import StorehooksError
from receiver.owned_files import create_file

BUSY_SECONDS = 5.0
FEW_ROWS = 100
FEW_TRY_EVERY, MANY_TRY_EVERY = 0.002, 0.03
"""Seconds between two tries to begin a transaction with few or with many rows, while another one writes."""
WAL_BYTES = 4 << 20
PAGE = 4096
SPARE_PAGES = 1024
"""Free pages that stay in a file for the next rows; all others are returned to the disk."""
VACUUM_PAGES, VACUUM_SECONDS = 4096, 0.25
"""Maximum number of pages returned to the disk at a time, and for how long."""
VACUUM_STEP = 32
"""Pages in one transaction: if many are free, SQLite searches for up to 2 ms to move one that is in use."""
LISTED = "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master"


class DamagedFileError(sqlite3.DatabaseError):
    """The content of a file is not what this version has written, and SQLite did not notice it."""


class OtherFormatError(StorehooksError, sqlite3.DatabaseError):
    """A newer or an older version of storehooks has written the file."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(
            f"{path} has format {found}, and this version of storehooks reads format {known}; "
            "start the version that wrote it, or move the file away if nothing in it is needed"
        )


@dataclass(frozen=True)
class Format:
    """The tables of a file. A change of them needs another number, and another number needs a change of them."""

    number: int
    """In `PRAGMA user_version`."""
    table: str
    """The one whose rows must not be lost."""
    schema: str
    synchronous: Literal["NORMAL", "FULL"]

    @cached_property
    def new_file(self) -> bytes:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as empty:
            empty.executescript(f"PRAGMA page_size = {PAGE}; PRAGMA auto_vacuum = INCREMENTAL; {self.schema}")
            return empty.serialize()

    @cached_property
    def _listed(self) -> set[tuple[Any, ...]]:
        """What a new file of this format says about its tables, and where they begin."""
        with closing(sqlite3.connect(":memory:")) as empty:
            empty.deserialize(self.new_file)
            return {*empty.execute(LISTED)}

    def has_tables(self, connection: sqlite3.Connection, path: Path) -> bool:
        """Whether the tables exist. Raises OtherFormatError, and DamagedFileError for a list of tables that is damaged.

        Only damage changes one entry of the list, or ends it early. VACUUM, ANALYZE or a restored dump change several
        or add some. In a file with exactly these tables, another number is damaged.
        """
        (version,) = connection.execute("PRAGMA user_version").fetchone()  # before the list, which follows it
        found = {*connection.execute(LISTED)}
        if not version and self.table not in {name for _, name, *_ in found}:
            return False
        missing, added = self._listed - found, found - self._listed
        if (missing or added) and version not in (0, self.number):  # a restored dump has none
            raise OtherFormatError(path, version, self.number)
        if len(missing) == 1 or (missing and not added):
            raise DamagedFileError("its list of tables is damaged")
        return True


class _Connection(sqlite3.Connection):
    def execute(self, *given: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*given)
        except UnicodeDecodeError as error:  # SQLite's message quotes what is damaged
            raise DamagedFileError("its list of tables is damaged") from error


def open_file(path: Path, fmt: Format) -> sqlite3.Connection:
    """Open a file. Creates it with its tables if it is missing, readable by its owner only.

    A file that has its tables is not written, so it can be read on a full or read-only disk.
    Raises OtherFormatError, and sqlite3.Error or OSError where the file cannot be used.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        # Only if it is missing: closing a descriptor of the file drops the locks that SQLite holds in this process.
        with suppress(FileExistsError):
            os.close(create_file(path))
    connection = connect(path)
    try:
        if connection.execute("PRAGMA page_count").fetchone() == (0,):  # later it has no effect, but is a write
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _use_wal(connection)
        connection.execute(f"PRAGMA synchronous = {fmt.synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        if not fmt.has_tables(connection, path):
            connection.executescript(f"BEGIN IMMEDIATE; {fmt.schema} PRAGMA user_version = {fmt.number}; COMMIT;")
    except BaseException:  # an interrupt, too, must not leave it open
        connection.close()
        raise
    return connection


def connect(path: Path) -> sqlite3.Connection:
    return _connect(path, "rw", BUSY_SECONDS)


def connect_read_only(path: Path) -> sqlite3.Connection:
    """For reads that never block: they raise sqlite3.Error where the file is missing or locked, or has no table."""
    return _connect(path, "ro", 0)


def _connect(path: Path, mode: str, timeout: float) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False, factory=_Connection
    )
    connection.text_factory = lambda text: text.decode(errors="replace")  # one damaged row must not stop the others
    return connection


def check_format(path: Path, fmt: Format) -> None:
    """Raise OtherFormatError for a file that another version has written, and empty an older one that has no rows.

    A missing or damaged file raises nothing: that is reported where the file is used.
    """
    for try_again in (True, False):
        try:
            with closing(connect(path)) as connection:
                fmt.has_tables(connection, path)
        except OtherFormatError:
            if not try_again:
                raise
            _empty_older_without_rows(path, fmt)  # or another process does, which starts at the same time
        except sqlite3.Error:
            return


def _empty_older_without_rows(path: Path, fmt: Format) -> None:
    with suppress(sqlite3.Error), closing(connect(path)) as connection:
        with transaction(connection):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version >= fmt.number or connection.execute(f"SELECT 1 FROM {fmt.table} LIMIT 1").fetchone():  # noqa: S608
                return
            tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            for (name,) in connection.execute(tables).fetchall():
                connection.execute(f'DROP TABLE "{name}"')
            connection.execute("PRAGMA user_version = 0")
        connection.execute("VACUUM")  # so that the new tables begin where they do in a new file


def _use_wal(connection: sqlite3.Connection) -> None:
    """Where several processes create the file at once, SQLite reports it as locked without waiting."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def free_disk_bytes(folder: Path) -> int:
    """Bytes that are free on the disk of a folder, which may not exist yet."""
    disk = os.statvfs(folder if folder.exists() else folder.parent)
    return disk.f_bavail * disk.f_frsize


def release_free_pages(connection: sqlite3.Connection) -> None:
    """Return free pages to the disk, except for a few; not many at a time, because others want to write."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    pages = min(free - SPARE_PAGES, VACUUM_PAGES)
    if pages <= 0:
        return
    deadline = time.monotonic() + VACUUM_SECONDS
    for done in range(0, pages, VACUUM_STEP):
        step = min(VACUUM_STEP, pages - done)
        connection.executescript(f"PRAGMA incremental_vacuum({step})")  # `execute` would free one page
        if time.monotonic() > deadline:
            break
        time.sleep(FEW_TRY_EVERY)  # one that waits to begin tries as often
    checkpoint(connection)  # only this shortens the file


def checkpoint(connection: sqlite3.Connection) -> None:
    """Write the write-ahead log to the file. Waits for no other process."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def truncate_wal(connection: sqlite3.Connection) -> int:
    """Empty the write-ahead log if it is over its limit; this may wait for others. Returns its bytes afterwards.

    SQLite begins it anew only at a moment when no other process reads or writes, which may never come under load.
    """
    journal = f"{connection.execute('PRAGMA database_list').fetchone()[2]}-wal"
    if os.stat(journal).st_size > WAL_BYTES:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return os.stat(journal).st_size


@contextmanager
def compact_afterwards(connection: sqlite3.Connection) -> Iterator[None]:
    """Return to the disk what journal and file do not need, also after an error; a later call does what cannot be done
    now."""
    try:
        yield
    finally:
        with suppress(sqlite3.Error, OSError):
            if truncate_wal(connection) <= WAL_BYTES:  # else a reader holds it, and moved pages would make it longer
                release_free_pages(connection)


@contextmanager
def transaction(db: sqlite3.Connection, *, rows: int = 1, wait: float = BUSY_SECONDS) -> Iterator[None]:
    """Writes about this number of rows. Waits for other writers for up to `wait` seconds.

    Of those that wait to begin, one with few rows comes before those with many."""
    _begin(db, MANY_TRY_EVERY if rows > FEW_ROWS else FEW_TRY_EVERY, wait)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:  # an interrupt, too, must roll back
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _begin(db: sqlite3.Connection, try_every: float, wait: float) -> None:
    """SQLite itself would try less and less often: one that has waited for long is overtaken again and again."""
    db.execute("PRAGMA busy_timeout = 0")
    deadline = time.monotonic() + wait
    try:
        while not _has_begun(db, last_try=time.monotonic() > deadline):
            time.sleep(try_every)
    finally:
        db.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")


def _has_begun(db: sqlite3.Connection, *, last_try: bool) -> bool:
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if last_try or not is_busy(error):
            raise
        return False
    return True


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY  # our own errors have none
