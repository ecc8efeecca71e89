"""State: the records of the sandbox store in one SQLite file, as JSON, by kind, id and parent."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

Json = dict[str, Any]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    kind TEXT, id INTEGER, parent INTEGER, body BLOB, PRIMARY KEY (kind, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_parent ON records (kind, parent, id);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS once (key TEXT PRIMARY KEY, status INTEGER, body BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (token TEXT PRIMARY KEY, ends REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS webhook_outbox (
    id INTEGER PRIMARY KEY, subscription INTEGER, topic TEXT, data BLOB, delivery TEXT, defect TEXT, due REAL,
    attempts INTEGER DEFAULT 0, state TEXT DEFAULT 'waiting', answered TEXT DEFAULT '', occurred REAL DEFAULT 0);
CREATE INDEX IF NOT EXISTS webhook_outbox_by_due ON webhook_outbox (state, due, id);
CREATE INDEX IF NOT EXISTS webhook_outbox_by_subscription ON webhook_outbox (subscription, id);
"""


class SandboxState:
    """One connection, which threads use one at a time. A change and its webhooks are one transaction."""

    def __init__(self, path: Path | str) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + _SCHEMA)
        self._lock = threading.RLock()
        self._depth = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end, or roll back on an error. May be nested."""
        with self._lock:
            if self._depth == 0:
                self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:  # an interrupt, too, must roll back
                self._depth -= 1
                if self._depth == 0:
                    self._db.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                self._db.execute("COMMIT")

    def execute(self, statement: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._db.execute(statement, values).fetchall()

    def clear(self) -> None:
        with self.transaction():
            for table in ("records", "counters", "once", "tokens", "webhook_outbox"):
                self.execute(f"DELETE FROM {table}")  # noqa: S608

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # Counters

    def increment(self, name: str, by: int = 1) -> int:
        """Increase a counter; return its new value."""
        with self.transaction():
            self.execute("INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n", name, by)
            return self.counter(name)

    def counter(self, name: str) -> int:
        found = self.execute("SELECT n FROM counters WHERE name = ?", name)
        return int(found[0][0]) if found else 0

    # Records

    def insert(self, kind: str, body: Mapping[str, Any], parent: int = 0) -> Json:
        """Store a new record; return it with its id. Ids are never reused."""
        return self.insert_many(kind, [body], parent)[0]

    def insert_many(self, kind: str, bodies: Iterable[Mapping[str, Any]], parent: int = 0) -> list[Json]:
        with self.transaction():
            first = self.last_id(kind) + 1
            records = [{"id": first + at, **body} for at, body in enumerate(bodies)]
            rows = [(kind, record["id"], parent, orjson.dumps(record)) for record in records]
            self._db.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)
            self.increment(f"last {kind}", len(records))
            self.increment(f"{kind} of {parent}", len(records))
        return records

    def get(self, kind: str, id_: int, parent: int | None = None) -> Json | None:
        found = self.execute("SELECT body, parent FROM records WHERE kind = ? AND id = ?", kind, id_)
        if not found or (parent is not None and found[0][1] != parent):
            return None
        body: Json = orjson.loads(found[0][0])
        return body

    def put(self, kind: str, body: Json) -> Json:
        self.execute("UPDATE records SET body = ? WHERE kind = ? AND id = ?", orjson.dumps(body), kind, body["id"])
        return body

    def delete(self, kind: str, id_: int) -> None:
        with self.transaction():
            for (parent,) in self.execute("SELECT parent FROM records WHERE kind = ? AND id = ?", kind, id_):
                self.execute("DELETE FROM records WHERE kind = ? AND id = ?", kind, id_)
                self.increment(f"{kind} of {parent}", -1)

    def last_id(self, kind: str) -> int:
        """The id of the newest record, even if that is deleted; 0 if there was never one."""
        return self.counter(f"last {kind}")

    def count(self, kind: str, parent: int = 0, *, until: int | None = None) -> int:
        """The number of records, or of those up to an id."""
        if until is None:
            return self.counter(f"{kind} of {parent}")
        which = "kind = ? AND parent = ? AND id <= ?"
        return int(self.execute(f"SELECT count(*) FROM records WHERE {which}", kind, parent, until)[0][0])  # noqa: S608

    def all_of(self, kind: str, parent: int = 0) -> list[Json]:
        return self._bodies("kind = ? AND parent = ? ORDER BY id", kind, parent)

    def place(self, kind: str, body: Json) -> None:
        """Insert or replace a record under the id it names, for tests."""
        with self.transaction():
            if self.get(kind, body["id"]) is not None:
                self.put(kind, body)
                return
            self.execute("INSERT INTO records VALUES (?, ?, 0, ?)", kind, body["id"], orjson.dumps(body))
            self.increment(f"{kind} of 0")
            self.increment(f"last {kind}", max(0, body["id"] - self.last_id(kind)))

    def records(self) -> dict[str, list[Json]]:
        """Every record except subscriptions, by kind: tests compare two runs with it."""
        found = self.execute("SELECT kind, body FROM records WHERE kind <> 'webhook' ORDER BY kind, id")
        kinds: dict[str, list[Json]] = {}
        for kind, body in found:
            kinds.setdefault(kind, []).append(orjson.loads(body))
        return kinds

    def page(self, kind: str, parent: int, *, offset: int, limit: int, newest_first: bool) -> list[Json]:
        order = "DESC" if newest_first else "ASC"
        return self._bodies(
            f"kind = ? AND parent = ? ORDER BY id {order} LIMIT ? OFFSET ?", kind, parent, limit, offset
        )

    def after(self, kind: str, parent: int, *, id_: int, limit: int) -> list[Json]:
        return self._bodies("kind = ? AND parent = ? AND id > ? ORDER BY id LIMIT ?", kind, parent, id_, limit)

    def _bodies(self, which: str, *values: Any) -> list[Json]:
        return [orjson.loads(body) for (body,) in self.execute(f"SELECT body FROM records WHERE {which}", *values)]  # noqa: S608
