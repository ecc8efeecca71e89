"""PostgreSQL schema: tables, indexes and views of the history, their upgrades, and the partitions of days."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from psycopg import Connection

from workers.history.past_events import HistoryError

LOCK = 0x73746F7265686F6F
"""The key of the advisory lock under which tables and partitions are created and dropped."""
VIEWS_VERSION = 1
"""The version of the views `events` and `runs`, which people use: it grows when a column is renamed or removed."""
UPGRADES = (
    """
    CREATE SCHEMA IF NOT EXISTS storehooks;
    CREATE TABLE storehooks.version (schema integer NOT NULL, views integer NOT NULL);
    INSERT INTO storehooks.version VALUES (0, 0);
    CREATE TABLE storehooks.records (
        id text COLLATE "C", accepted_at timestamptz, settled_at timestamptz NOT NULL, received_at timestamptz NOT NULL,
        occurred_at text NOT NULL, store text COLLATE "C" NOT NULL, topic text COLLATE "C" NOT NULL,
        theirs text NOT NULL, delivery_id text COLLATE "C" NOT NULL, resource_id text COLLATE "C" NOT NULL,
        source text NOT NULL, reason text NOT NULL, problem text NOT NULL, runs jsonb NOT NULL, record bytea NOT NULL,
        PRIMARY KEY (id, accepted_at)
    ) PARTITION BY RANGE (accepted_at);
    CREATE INDEX ON storehooks.records (accepted_at, id);
    CREATE INDEX ON storehooks.records (store, accepted_at);
    CREATE INDEX ON storehooks.records (topic, accepted_at);
    CREATE INDEX ON storehooks.records (resource_id, accepted_at) WHERE resource_id <> '';
    CREATE INDEX ON storehooks.records (delivery_id) WHERE delivery_id <> '';
    CREATE TABLE storehooks.contents (
        id text COLLATE "C", accepted_at timestamptz, settled_at timestamptz NOT NULL, content bytea NOT NULL,
        data jsonb, PRIMARY KEY (id, accepted_at)
    ) PARTITION BY RANGE (accepted_at);
    CREATE INDEX ON storehooks.contents USING gin (data jsonb_path_ops);
    CREATE VIEW storehooks.events AS SELECT
        r.id, r.store, r.topic, r.theirs AS store_topic, r.delivery_id, r.resource_id, r.source, r.received_at,
        nullif(r.occurred_at, '') AS occurred_at, r.accepted_at, r.settled_at, nullif(r.reason, '') AS reason,
        jsonb_array_length(r.runs) AS runs, nullif(r.problem, '') AS problem, c.data
        FROM storehooks.records AS r LEFT JOIN storehooks.contents AS c USING (id, accepted_at);
    CREATE VIEW storehooks.runs AS SELECT
        r.id AS event_id, r.store, r.topic, r.resource_id, r.accepted_at, r.settled_at, run.*
        FROM storehooks.records AS r, jsonb_to_recordset(r.runs) AS run (
            handler text, version text, status text, attempts integer, replays integer, result jsonb, error text,
            reason text
        );
    """,
)
"""Each upgrades the tables from the version before; the first creates them."""
SCHEMA_VERSION = len(UPGRADES)
TABLES = ("records", "contents")


def version_of(db: Connection[Any]) -> int:
    """The version of the tables; 0 if there are none. Raises HistoryError if it is newer than this one."""
    # Not to_regclass: its answer may be from before another session has created the tables.
    query = "SELECT 1 FROM pg_tables WHERE schemaname = 'storehooks' AND tablename = 'version'"
    if db.execute(query).fetchone() is None:
        return 0
    row = db.execute("SELECT max(schema) FROM storehooks.version").fetchone()
    version = int(row[0] or 0) if row else 0
    if version > SCHEMA_VERSION:
        raise HistoryError(
            f"the history has schema {version}, and this version of storehooks knows schemas up to {SCHEMA_VERSION}; "
            "update storehooks on this host"
        )
    return version


def upgrade(db: Connection[Any]) -> None:
    """Processes that come at the same time wait for the lock, and find the work done."""
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        for script in UPGRADES[version_of(db) :]:
            for statement in script.split(";\n"):
                db.execute(statement.encode())
        db.execute("UPDATE storehooks.version SET schema = %s, views = %s", (SCHEMA_VERSION, VIEWS_VERSION))


def add_days(db: Connection[Any], days: Iterable[datetime]) -> None:
    """Create the partitions of these days that are missing."""
    named = {f"{day:%Y%m%d}": day for day in days}
    query = "SELECT day FROM unnest(%s::text[]) AS day WHERE to_regclass('storehooks.contents_' || day) IS NULL"
    for (name,) in db.execute(query, (list(named),)).fetchall():
        day = named[name]
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            for table in TABLES:
                db.execute(
                    f"CREATE TABLE IF NOT EXISTS storehooks.{table}_{name} PARTITION OF storehooks.{table} "
                    f"FOR VALUES FROM ('{day.isoformat()}') TO ('{(day + timedelta(days=1)).isoformat()}')".encode()
                )


def drop_days(db: Connection[Any], table: str, before: datetime) -> None:
    """Drop the days of a table whose events all settled before a time. Of a day in which some settled later, only the
    others are deleted."""
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass(%s) ORDER BY 1"
    last = f"storehooks.{table}_{before - timedelta(days=1):%Y%m%d}"
    for (name,) in db.execute(query, (f"storehooks.{table}",)).fetchall():
        if name > last:
            break
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            newer = db.execute(f"SELECT 1 FROM {name} WHERE settled_at >= %s LIMIT 1".encode(), (before,)).fetchone()
            if newer:
                db.execute(f"DELETE FROM {name} WHERE settled_at < %s".encode(), (before,))
            else:
                db.execute(f"DROP TABLE {name}".encode())


def rewrite_days(db: Connection[Any], days: Iterable[str]) -> None:
    """Write the tables of these days anew, so that they have nothing of rows that were changed or deleted."""
    for name in (f"storehooks.{table}_{day}" for day in days for table in TABLES):
        if db.execute("SELECT 1 WHERE to_regclass(%s) IS NOT NULL", (name,)).fetchone():
            db.execute(f"VACUUM FULL {name}".encode())
