"""The spool file: its tables, and how it is opened."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

FILE = "spool.sqlite3"
BUSY_SECONDS = 5.0
WAL_BYTES = 4 << 20
PAGE = 4096
ROW_COST = 150
"""Bytes that a spooled delivery takes in addition to its content: numbers, indexes."""

SCHEMA = f"""
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
"""  # noqa: S608  built from constants


def open_spool(data_dir: Path, *, synchronous: Literal["NORMAL", "FULL"]) -> sqlite3.Connection:
    """Open the host's file. Creates it if it is missing, readable by its owner only."""
    data_dir.mkdir(parents=True, exist_ok=True)
    path = data_dir / FILE
    if not path.exists():
        # Only if it is missing: closing a descriptor of the file drops the locks that SQLite holds in this process.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has no effect after the first write
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    connection.executescript(SCHEMA)
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
