"""State: what the sandbox store knows, in one SQLite file. Records are JSON, by kind, id and parent."""

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
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY, subscription INTEGER, topic TEXT, data BLOB, delivery TEXT, twist TEXT, due REAL,
    attempts INTEGER DEFAULT 0, state TEXT DEFAULT 'waiting', answered TEXT DEFAULT '', occurred REAL DEFAULT 0);
CREATE INDEX IF NOT EXISTS by_due ON outbox (state, due, id);
CREATE INDEX IF NOT EXISTS by_subscription ON outbox (subscription, id);
"""


class SandboxState:
    """One connection for all threads, one thread at a time; a change and its events are one transaction."""

    def __init__(self, path: Path | str) -> None:
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + _SCHEMA)
        if "occurred" not in {column[1] for column in self._db.execute("PRAGMA table_info(outbox)")}:  # an older file
            self._db.execute("ALTER TABLE outbox ADD COLUMN occurred REAL DEFAULT 0")
        self._lock = threading.RLock()
        self._depth = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing; may be nested."""
        with self._lock:
            if self._depth == 0:
                self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:  # an interrupt, too, must leave no half of it
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
        """Forget everything."""
        with self.transaction():
            for table in ("records", "counters", "once", "tokens", "outbox"):
                self.execute(f"DELETE FROM {table}")  # noqa: S608

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # Counters

    def add(self, name: str, by: int = 1) -> int:
        """Count up; gives the new count."""
        with self.transaction():
            self.execute("INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n", name, by)
            return self.number(name)

    def number(self, name: str) -> int:
        found = self.execute("SELECT n FROM counters WHERE name = ?", name)
        return int(found[0][0]) if found else 0

    # Records

    def insert(self, kind: str, body: Mapping[str, Any], parent: int = 0) -> Json:
        """Keep a new record; gives it with its id, which is never used again."""
        return self.insert_many(kind, [body], parent)[0]

    def insert_many(self, kind: str, bodies: Iterable[Mapping[str, Any]], parent: int = 0) -> list[Json]:
        with self.transaction():
            first = self.number(f"last {kind}") + 1
            made = [{"id": first + at, **body} for at, body in enumerate(bodies)]
            rows = [(kind, one["id"], parent, orjson.dumps(one)) for one in made]
            self._db.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)
            self.add(f"last {kind}", len(made))
            self.add(f"{kind} of {parent}", len(made))
        return made

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
                self.add(f"{kind} of {parent}", -1)

    def count(self, kind: str, parent: int = 0) -> int:
        return self.number(f"{kind} of {parent}")

    def every(self, kind: str, parent: int = 0) -> list[Json]:
        found = self.execute("SELECT body FROM records WHERE kind = ? AND parent = ? ORDER BY id", kind, parent)
        return [orjson.loads(body) for (body,) in found]

    def place(self, kind: str, body: Json) -> None:
        """Have a record under the id it names, whatever was there: for whoever sets a scene."""
        with self.transaction():
            if self.get(kind, body["id"]) is not None:
                self.put(kind, body)
                return
            self.execute("INSERT INTO records VALUES (?, ?, 0, ?)", kind, body["id"], orjson.dumps(body))
            self.add(f"{kind} of 0")
            self.add(f"last {kind}", max(0, body["id"] - self.number(f"last {kind}")))

    def records(self) -> dict[str, list[Json]]:
        """Everything of the store itself, by kind: what two runs of something can be compared by."""
        found = self.execute("SELECT kind, body FROM records WHERE kind <> 'webhook' ORDER BY kind, id")
        kinds: dict[str, list[Json]] = {}
        for kind, body in found:
            kinds.setdefault(kind, []).append(orjson.loads(body))
        return kinds

    def page(self, kind: str, parent: int, *, offset: int, limit: int, newest_first: bool) -> list[Json]:
        order = "DESC" if newest_first else "ASC"
        found = self.execute(
            f"SELECT body FROM records WHERE kind = ? AND parent = ? ORDER BY id {order} LIMIT ? OFFSET ?",  # noqa: S608
            kind,
            parent,
            limit,
            offset,
        )
        return [orjson.loads(body) for (body,) in found]

    def after(self, kind: str, parent: int, *, id_: int, limit: int) -> list[Json]:
        found = self.execute(
            "SELECT body FROM records WHERE kind = ? AND parent = ? AND id > ? ORDER BY id LIMIT ?",
            kind,
            parent,
            id_,
            limit,
        )
        return [orjson.loads(body) for (body,) in found]
