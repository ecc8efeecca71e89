"""The SQLite files of this host: how they are created and opened, and the version of their format."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from receiver.contract.errors import StorehooksError

FORMAT = 3
"""Version of the tables, in `PRAGMA user_version`. 0 is a file without tables, or from before versions had numbers."""
BUSY_SECONDS = 5.0
WAL_BYTES = 4 << 20
PAGE = 4096


class OtherFormatError(StorehooksError, sqlite3.DatabaseError):
    """A newer or an older version of storehooks has written the file."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(
            f"{path} has format {version}, and this version of storehooks reads format {FORMAT}; "
            "start the version that wrote it, or move the file away if nothing in it is needed"
        )


def open_file(path: Path, schema: str, *, synchronous: Literal["NORMAL", "FULL"]) -> sqlite3.Connection:
    """Open a file. Creates it with its tables if it is missing, readable by its owner only.

    A file that has its tables is not written, so it can be read on a full or read-only disk.
    Raises OtherFormatError, and sqlite3.Error or OSError where the file cannot be used.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        # Only if it is missing: closing a descriptor of the file drops the locks that SQLite holds in this process.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = connect(path)
    try:
        if connection.execute("PRAGMA page_count").fetchone() == (0,):  # later it has no effect, but is a write
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _use_wal(connection)
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        if not _has_tables(connection, path):
            connection.executescript(f"BEGIN IMMEDIATE; {schema} PRAGMA user_version = {FORMAT}; COMMIT;")
    except BaseException:  # an interrupt, too, must not leave it open
        connection.close()
        raise
    return connection


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda text: text.decode(errors="replace")  # one damaged row must not stop the others
    return connection


def check_format(path: Path) -> None:
    """Raise OtherFormatError for a file that another version has written. A missing or damaged file raises nothing."""
    try:
        with closing(connect_read_only(path)) as connection:
            _has_tables(connection, path)
    except OtherFormatError:
        raise
    except sqlite3.Error:  # reported where the file is used
        return


def connect_read_only(path: Path) -> sqlite3.Connection:
    """For reads that never block: they raise sqlite3.Error where the file is missing or locked, or has no table."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0, isolation_level=None)


def _has_tables(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the tables exist. Raises OtherFormatError.

    Tables and version are written together, so the version is read last: another process may write them meanwhile.
    """
    tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name IN ('event', 'refused')").fetchone()
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version != FORMAT and (tables or version):
        raise OtherFormatError(path, version)
    return version == FORMAT


def _use_wal(connection: sqlite3.Connection) -> None:
    """Where several processes create the file at once, SQLite reports it as locked without waiting."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def truncate_wal(connection: sqlite3.Connection) -> None:
    """Empty the write-ahead log if it is over its limit; this may wait for others.

    SQLite begins it anew only at a moment when no other process reads or writes, which may never come under load.
    """
    file = connection.execute("PRAGMA database_list").fetchone()[2]
    if os.stat(f"{file}-wal").st_size > WAL_BYTES:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:  # an interrupt, too, must roll back
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
