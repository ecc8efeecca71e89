"""SQLite history: past events in one file for each month, in `history/` of the data directory of one host.

A file is complete by itself: it is opened for each call and closed after it, and has no write-ahead log. So a month can
be moved away and back, and be read by other programs.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from receiver.owned_files import create_file, make_folder
from workers.history.call_limit import HistoryLimit
from workers.history.event_filter import EventFilter
from workers.history.past_events import (
    SETTLED_LATER,
    HistoryDatabase,
    HistoryElsewhere,
    HistoryError,
    HistorySizes,
    NotMoved,
    PastEvent,
    Position,
)
from workers.history.payload_search import body_may_match
from workers.history.row_format import COLUMNS, compressed, day_of, decompressed, event_of, row_of, searched

VIEWS_VERSION = 1
"""The version of the views `events` and `runs`, which people use: it grows when a column is renamed or removed."""
BUSY_SECONDS = 5.0
SLICE = 5_000
"""Maximum number of rows that are deleted at once, and of pages that are given back."""
CACHE_KB = 32 << 10
_MONTH = re.compile(r"\d{4}-\d{2}\.sqlite")
_READ = "r.id, r.accepted_at, r.settled_at, r.record, r.problem, {} FROM records AS r"
_READ_RECORD = _READ.format("NULL")
_READ_ALL = _READ.format("c.content") + " LEFT JOIN contents AS c USING (number)"
_CHANGED = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in ("id", "accepted_at"))
_UPSERT = (
    f"INSERT INTO records ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))}) "
    f"ON CONFLICT (id, accepted_at) DO UPDATE SET {_CHANGED} WHERE records.settled_at <= excluded.settled_at"
)
_UPSERT_CONTENT = (
    "INSERT OR REPLACE INTO contents (number, settled_at, content) "
    "SELECT number, ?1, ?2 FROM records WHERE id = ?3 AND accepted_at = ?4 AND settled_at <= ?1"
)
_NEWER = "SELECT settled_at FROM records WHERE id = ? AND accepted_at = ? AND settled_at > ?"
_DELETE_CONTENT = "DELETE FROM contents WHERE number IN (SELECT number FROM records WHERE id = ? AND accepted_at = ?)"
DAMAGED = "; it is damaged: stop the workers, move it away, restore it from a backup, and start them"
_FIXES = {
    sqlite3.SQLITE_FULL: "; free space on its disk",
    sqlite3.SQLITE_READONLY: "; change its owner or its mode, or make its disk writable",
    sqlite3.SQLITE_BUSY: "; another process is using it for longer than usual",
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_NOTADB: DAMAGED,
}
UPGRADES = (
    """
    CREATE TABLE records (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL, accepted_at INTEGER NOT NULL, settled_at INTEGER NOT NULL,
        received_at INTEGER NOT NULL, occurred_at TEXT NOT NULL, store TEXT NOT NULL, topic TEXT NOT NULL,
        theirs TEXT NOT NULL, delivery_id TEXT NOT NULL, resource_id TEXT NOT NULL, source TEXT NOT NULL,
        reason TEXT NOT NULL, problem TEXT NOT NULL, runs TEXT NOT NULL, record BLOB NOT NULL
    );
    CREATE UNIQUE INDEX by_id ON records (id, accepted_at);
    CREATE INDEX by_time ON records (accepted_at, id);
    CREATE INDEX by_store ON records (store, accepted_at);
    CREATE INDEX by_topic ON records (topic, accepted_at);
    CREATE INDEX by_resource ON records (resource_id, accepted_at) WHERE resource_id <> '';
    CREATE INDEX by_delivery ON records (delivery_id, accepted_at) WHERE delivery_id <> '';
    CREATE INDEX by_age ON records (settled_at);
    CREATE TABLE contents (number INTEGER PRIMARY KEY, settled_at INTEGER NOT NULL, content BLOB NOT NULL);
    CREATE INDEX contents_by_age ON contents (settled_at);
    CREATE VIEW events AS SELECT
        id, store, topic, theirs AS store_topic, delivery_id, resource_id, source,
        strftime('%Y-%m-%dT%H:%M:%fZ', received_at / 1000.0, 'unixepoch') AS received_at,
        nullif(occurred_at, '') AS occurred_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', accepted_at / 1000000.0, 'unixepoch') AS accepted_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', settled_at / 1000.0, 'unixepoch') AS settled_at,
        nullif(reason, '') AS reason, json_array_length(runs) AS runs, nullif(problem, '') AS problem
        FROM records;
    CREATE VIEW runs AS SELECT
        records.id AS event_id, store, topic, resource_id,
        strftime('%Y-%m-%dT%H:%M:%fZ', accepted_at / 1000000.0, 'unixepoch') AS accepted_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', settled_at / 1000.0, 'unixepoch') AS settled_at,
        json_extract(run.value, '$.handler') AS handler, json_extract(run.value, '$.version') AS version,
        json_extract(run.value, '$.status') AS status, json_extract(run.value, '$.attempts') AS attempts,
        json_extract(run.value, '$.replays') AS replays, run.value -> '$.result' AS result,
        json_extract(run.value, '$.error') AS error, json_extract(run.value, '$.reason') AS reason
        FROM records, json_each(records.runs) AS run;
    """,
)
"""Each upgrades a file from the version before; the first creates it."""
SCHEMA_VERSION = len(UPGRADES)


OtherHost = Callable[[str, bool], str]
"""The host that has the history, if it is not in the directory with this id; True to begin one if there is none."""


class SqliteHistory(HistoryDatabase):
    def __init__(
        self, directory: Path, other_host: OtherHost = lambda *_: "", *, limit: HistoryLimit | None = None
    ) -> None:
        self.directory, self._other_host, self._limit = directory, other_host, limit
        self._is_here = False

    def check(self) -> None:
        with _explained(self.directory):
            make_folder(self.directory)
        if not os.access(self.directory, os.W_OK):
            raise HistoryError(f"{self.directory} cannot be written by this user; change its owner or its mode")
        self._require_here(claim=True)
        for path in self._files():
            with self._transaction(path):
                pass

    def write(self, events: Sequence[PastEvent]) -> list[NotMoved]:
        months: dict[str, list[PastEvent]] = defaultdict(list)
        refused = []
        for event in events:
            try:
                months[_month(event.accepted_at)].append(event)
            except ValueError as error:
                refused.append(NotMoved(event.id, str(error)))
        for month, in_month in months.items():
            with self._transaction(self.directory / f"{month}.sqlite") as db:
                refused += _write(db, in_month)
        return refused

    def events(self, event_ids: Sequence[str], *, every: bool = False) -> list[PastEvent]:
        query = f"SELECT {_READ_ALL} WHERE r.id = ? ORDER BY r.accepted_at DESC LIMIT ?"
        found: list[PastEvent] = []
        missing = dict.fromkeys(event_ids)
        for path in self._files():
            with self._open(path) as db:
                for event_id in list(missing):
                    rows = db.execute(query, (event_id, -1 if every else 1)).fetchall()
                    found += [event_of(*row) for row in rows]
                    if rows and not every:
                        del missing[event_id]
            if not missing:
                break
        return found

    def delete_older(self, *, bodies: datetime, records: datetime) -> bool:
        old_records = int(records.timestamp() * 1000)
        old_bodies = max(old_records, int(bodies.timestamp() * 1000))
        most = 0
        for path in self._files():
            with self._transaction(path) as db:
                for table, before in (("contents", old_bodies), ("records", old_records)):
                    old = f"SELECT number FROM {table} WHERE settled_at < ? LIMIT {SLICE}"
                    many = db.execute(f"DELETE FROM {table} WHERE number IN ({old})", (before,)).rowcount
                    most = max(most, many)
            self._shrink(path)
        return most >= SLICE

    def forget(self, event_ids: Sequence[str]) -> int:
        many = 0
        for path in self._files():
            with self._transaction(path) as db:
                for event_id in event_ids:
                    db.execute(
                        "DELETE FROM contents WHERE number IN (SELECT number FROM records WHERE id = ?)", (event_id,)
                    )
                    many += db.execute("DELETE FROM records WHERE id = ?", (event_id,)).rowcount
        return many

    def rows(self, store: str, after: Position, many: int) -> list[tuple[Any, ...]]:
        query = (
            f"SELECT {_READ_ALL} WHERE r.store = ? AND r.accepted_at >= ? AND (r.accepted_at, r.id) > (?, ?) "
            "ORDER BY r.accepted_at, r.id LIMIT ?"
        )
        found: list[tuple[Any, ...]] = []
        for path in reversed(self._files()):
            if path.stem >= _month(max(0, after.accepted_at)) and len(found) < many:
                with self._open(path) as db:
                    values = (searched(store), after.accepted_at, *after, many - len(found))
                    found += db.execute(query, values).fetchall()
        return found

    def compact(self, days: Iterable[str]) -> None:  # noqa: ARG002  any file may have deleted rows
        for path in self._files():
            with self._open(path) as db:
                db.execute("VACUUM")

    def sizes(self) -> HistorySizes:
        events, size, oldest = 0, 0, None
        files = self._files()
        for path in files:
            with self._open(path) as db:
                many, first = db.execute("SELECT count(*), min(accepted_at) FROM records").fetchone()
                events, oldest = events + many, first or oldest
                size += path.stat().st_size
        return HistorySizes(events, size, oldest and datetime.fromtimestamp(oldest / 1e6, UTC), len(files))

    def close(self) -> None:
        """Nothing is open between calls."""

    def newest_before(self, before: Position) -> int | None:
        query = "SELECT accepted_at FROM records WHERE (accepted_at, id) < (?, ?) ORDER BY 1 DESC LIMIT 1"
        for path in self._files():
            with self._open(path) as db:
                for (accepted_at,) in db.execute(query, before):
                    return int(accepted_at)
        return None

    def candidates(
        self, wanted: EventFilter, *, oldest: int, before: Position, limit: int, seconds: float, content: bool
    ) -> Sequence[PastEvent] | None:
        conditions, values = _conditions(wanted)
        if wanted.where:
            conditions += " AND may_match(c.content)"
        columns = _READ_ALL if content else _READ_RECORD
        query = (
            f"SELECT {columns} WHERE r.accepted_at >= ? AND (r.accepted_at, r.id) < (?, ?) {conditions} "
            "ORDER BY r.accepted_at DESC, r.id DESC LIMIT ?"
        )
        deadline = time.monotonic() + seconds
        found: list[PastEvent] = []
        for path in self._files():
            if path.stem < _month(oldest):
                break
            with self._open(path) as db:
                db.create_function("may_match", 1, lambda packed: _may_match(packed, wanted.where), deterministic=True)
                db.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
                try:
                    rows = db.execute(query, (oldest, *before, *values, limit - len(found)))
                    found += [event_of(*row) for row in rows]
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                        return None
                    raise
            if len(found) >= limit:
                break
        return found

    def _files(self) -> list[Path]:
        """The files of all months, the newest first."""
        self._require_here(claim=False)
        with _explained(self.directory):
            names = os.listdir(self.directory) if self.directory.exists() else []
        return [self.directory / name for name in sorted(filter(_MONTH.fullmatch, names), reverse=True)]

    def _require_here(self, *, claim: bool) -> None:
        """The directory has an id, so that it may be moved to another host."""
        if self._is_here and not claim:
            return
        path = self.directory / "place"
        with _explained(path):
            if claim and not path.exists():
                _create_once(path, secrets.token_hex(8))
            place = path.read_text() if path.exists() else "none"
        if host := self._other_host(place, claim):
            raise HistoryElsewhere(
                f'the files of the history are on {host}, and [history] url = "sqlite" is for one host: set the URL of '
                f"a PostgreSQL server on every host, or if that host is gone: storehooks hosts forget {host}"
            )
        self._is_here = True

    def _shrink(self, path: Path) -> None:
        """Give space back, or the whole file if it is empty and of a past month."""
        with self._open(path) as db:
            db.execute(f"PRAGMA incremental_vacuum({SLICE})").fetchall()
            if path.stem < _month(time.time() * 1e6) and _is_empty(db):
                db.execute("BEGIN EXCLUSIVE")
                if _is_empty(db):
                    path.unlink()  # while it is locked: a process that waits to write to it notices that it is gone

    @contextmanager
    def _open(self, path: Path) -> Iterator[sqlite3.Connection]:
        with self._limit.place() if self._limit else nullcontext(), _explained(path), closing(_connect(path)) as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise HistoryError(
                    f"{path} has schema {version}, and this version of storehooks knows schemas up to "
                    f"{SCHEMA_VERSION}; update storehooks"
                )
            if version < SCHEMA_VERSION:
                _upgrade(db)
            yield db

    @contextmanager
    def _transaction(self, path: Path) -> Iterator[sqlite3.Connection]:
        """Changes of one file, which is created if it is missing."""
        with _explained(path):
            with suppress(FileExistsError):
                os.close(create_file(path))
            there = path.stat()
        with self._open(path) as db:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        if not path.exists() or not os.path.samestat(there, path.stat()):
            raise HistoryError(f"{path} was moved away while it was written; what was written is written again")


def _create_once(path: Path, text: str) -> None:
    """With its text, or not at all; another process may do the same."""
    new = path.with_name(f"{path.name}.{text}")
    with open(create_file(new), "w") as file:
        file.write(text)
    with suppress(FileExistsError):
        os.link(new, path)
    new.unlink()


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=rw"
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    db.execute(f"PRAGMA cache_size = -{CACHE_KB}")
    return db


def _upgrade(db: sqlite3.Connection) -> None:
    """Other processes wait for the lock and find the work done."""
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # without effect unless the file is new
    db.execute("BEGIN IMMEDIATE")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    for upgrade in UPGRADES[version:]:
        for statement in upgrade.split(";\n"):
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")


def _write(db: sqlite3.Connection, events: Sequence[PastEvent]) -> list[NotMoved]:
    rows, left = [row_of(event) for event in events], []
    if db.executemany(_UPSERT, rows).rowcount < len(rows):
        newer = ((one.id, db.execute(_NEWER, (one.id, one.accepted_at, one.settled_at)).fetchone()) for one in events)
        left = [NotMoved(event_id, SETTLED_LATER, *row) for event_id, row in newer if row]
    gone = [(one.id, one.accepted_at) for one in events if one.is_erased]
    db.executemany(_DELETE_CONTENT, gone)
    contents = [(one.settled_at, compressed(one.content), one.id, one.accepted_at) for one in events if one.content]
    db.executemany(_UPSERT_CONTENT, contents)
    return left


def _conditions(wanted: EventFilter) -> tuple[str, list[str]]:
    """The part of the filter that SQLite decides, as SQL and its values."""
    parts, values = [], []
    for column, text in (
        ("store", wanted.store),
        ("resource_id", wanted.resource_id),
        ("delivery_id", wanted.delivery_id),
    ):
        if text:
            # Of two indexes, SQLite would take the one of the store. A sign keeps a column out of its choice.
            sign = "+" if column == "store" and wanted.names_few else ""
            parts.append(f"AND {sign}r.{column} = ? AND r.{column} <> ''")
            values.append(searched(text))
    if wanted.topic:
        parts.append("AND r.topic = ?" if wanted.has_exact_topic else "AND instr(r.topic, ?) = 1")
        values.append(searched(wanted.topic_begins))
    of_run = []
    if wanted.handler:
        of_run.append("json_extract(run.value, '$.handler') = ?")
        values.append(wanted.handler)
    for name, text in (("result", wanted.result), ("error", wanted.error)):
        if text:
            of_run.append(f"instr(lower(json_extract(run.value, '$.{name}')), lower(?))")
            values.append(text)
    if of_run:
        parts.append(f"AND EXISTS (SELECT 1 FROM json_each(r.runs) AS run WHERE {' AND '.join(of_run)})")
    return " ".join(parts), values


def _may_match(content: bytes | None, conditions: Sequence[tuple[str, Any]]) -> bool:
    return content is not None and body_may_match(decompressed(content).partition(b"\n")[2], conditions)


def _month(accepted_at: float) -> str:
    return f"{day_of(accepted_at):%Y-%m}"


def _is_empty(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM records LIMIT 1").fetchone() is None


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Errors as a sentence with the file and the fix."""
    try:
        yield
    except OSError as error:
        raise HistoryError(f"{path} cannot be used: {error.strerror}") from error
    except sqlite3.Error as error:
        kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        raise HistoryError(f"{path} cannot be used: {error}{_FIXES.get(kind, '')}") from error
