"""PostgreSQL history: past events in partitions of days, with an index on the payload. For any number of hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import orjson
import psycopg
from psycopg import Connection, errors

from workers.history.call_limit import HistoryLimit
from workers.history.event_filter import EventFilter
from workers.history.past_events import (
    SETTLED_LATER,
    HistoryDatabase,
    HistoryError,
    HistorySizes,
    NotMoved,
    PastEvent,
    Position,
)
from workers.history.payload_search import contained, without_nul
from workers.history.postgres_connection import connect, time_limit, was_ended
from workers.history.postgres_schema import (
    LOCK,
    SCHEMA_VERSION,
    TABLES,
    add_days,
    drop_days,
    rewrite_days,
    upgrade,
    version_of,
)
from workers.history.row_format import COLUMNS, compressed, day_of, event_of, row_of, searched

CALL_SECONDS = 30.0
"""A call that takes longer is ended, also if the server no longer answers at all."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = (datetime(9999, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_US, _MS = timedelta(microseconds=1), timedelta(milliseconds=1)
_KEY = ("id", "accepted_at")
_CONTENT_COLUMNS = ("id", "accepted_at", "settled_at", "content", "data")
_READ = "r.id, r.accepted_at, r.settled_at, r.record, r.problem"
_CONTENT = (
    "(SELECT content FROM storehooks.contents AS c WHERE c.id = r.id AND c.accepted_at = r.accepted_at "
    "AND c.accepted_at BETWEEN %s AND %s)"
)
_ROW_FAULTS = (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded, errors.StatementTooComplex)
"""What PostgreSQL does not take of one row. Others can be stored."""
_FIXES = {
    "53100": "; free space on its disk",
    "53300": "; raise its max_connections",
    "25006": "; it is read-only: set the primary in [history] url, or make it writable",
    "57014": "; it took too long: look for locks and load on it",
    "55P03": "; another session holds a lock for too long",
    "42501": "; grant its user the rights in docs/history.md",
    "28P01": "; correct user and password in [history] url",
    "3D000": "; create the database, or correct [history] url",
}


def _upsert(table: str, columns: Sequence[str]) -> bytes:
    """One statement for any number of rows, each column an array: one statement for each row takes half as long again
    in the server."""
    times, packed = ("accepted_at", "settled_at", "received_at"), ("record", "content")
    kinds = {**dict.fromkeys(times, "timestamptz"), **dict.fromkeys(packed, "bytea")}
    arrays = ", ".join(f"%b::{kinds.get(name, 'text')}[]" for name in columns)
    values = ", ".join(f"{name}::jsonb" if name in ("runs", "data") else name for name in columns)
    changed = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in _KEY)
    # The content of an older record than is stored, which may have been erased, is left out.
    newer = "r.id = given.id AND r.accepted_at = given.accepted_at AND r.settled_at > given.settled_at"
    unless = f" WHERE NOT EXISTS (SELECT 1 FROM storehooks.records AS r WHERE {newer})" if table == "contents" else ""
    return (
        f"INSERT INTO storehooks.{table} ({', '.join(columns)}) "
        f"SELECT {values} FROM unnest({arrays}) AS given ({', '.join(columns)}){unless} "
        f"ON CONFLICT (id, accepted_at) DO UPDATE SET {changed} WHERE {table}.settled_at <= excluded.settled_at"
    ).encode()


_UPSERTS = {table: _upsert(table, columns) for table, columns in (("records", COLUMNS), ("contents", _CONTENT_COLUMNS))}


_NEWER = (
    b"SELECT r.id, r.settled_at FROM storehooks.records AS r "
    b"JOIN unnest(%s::text[], %s::timestamptz[], %s::timestamptz[]) AS given (id, accepted_at, settled_at) "
    b"USING (id, accepted_at) WHERE r.settled_at > given.settled_at"
)


class PostgresHistory(HistoryDatabase):
    def __init__(self, url: str, *, call_seconds: float = CALL_SECONDS, limit: HistoryLimit | None = None) -> None:
        self._url, self._limit = url, limit
        self._call_seconds = call_seconds
        self._connection: Connection[Any] | None = None
        self._version = 0

    def check(self) -> None:
        with self._using() as db:
            if self._version < SCHEMA_VERSION:
                upgrade(db)
                self._version = SCHEMA_VERSION
            if db.execute("SHOW transaction_read_only").fetchone() == ("on",):
                raise errors.ReadOnlySqlTransaction("it takes no writes")

    def write(self, events: Sequence[PastEvent]) -> list[NotMoved]:
        if self._version < SCHEMA_VERSION:
            self.check()
        refused, rows = [], []
        for event in sorted(events, key=lambda one: one.position):  # two writers must not wait for each other
            try:
                rows.append(_rows_of(event))
            except ValueError as error:
                refused.append(NotMoved(event.id, str(error)))
        with self._using() as db:
            self._version = version_of(db)  # another process may have upgraded since
            add_days(db, {one.day for one in rows})
            try:
                with _writing(db):
                    newer = _insert(db, rows)
            except _ROW_FAULTS:
                with _writing(db):
                    newer = [one for row in rows for one in _insert_what_fits(db, row)]
        return refused + newer

    def events(self, event_ids: Sequence[str], *, every: bool = False) -> list[PastEvent]:
        records = self._rows(
            f"SELECT {'' if every else 'DISTINCT ON (r.id)'} {_READ} FROM storehooks.records AS r WHERE r.id = ANY(%s) "
            "ORDER BY r.id, r.accepted_at DESC",
            (list(map(searched, event_ids)),),
        )
        if not records:
            return []
        # Their days are known now: planning a query over all days of both tables takes longer than running it.
        query = "SELECT id, accepted_at, content FROM storehooks.contents WHERE id = ANY(%s) AND accepted_at = ANY(%s)"
        keys = [[row[0] for row in records], [row[1] for row in records]]
        contents = {(row[0], row[1]): row[2] for row in self._rows(query, keys)}
        return [_event((*row, contents.get((row[0], row[1])))) for row in records]

    def delete_older(self, *, bodies: datetime, records: datetime) -> bool:
        with self._using() as db:
            if self._version:
                drop_days(db, "contents", max(bodies, records))
                drop_days(db, "records", records)
        return False

    def forget(self, event_ids: Sequence[str]) -> int:
        many = 0
        with self._using() as db:
            if self._version:
                with db.transaction():
                    for table in TABLES:
                        query = f"DELETE FROM storehooks.{table} WHERE id = ANY(%s)".encode()
                        many = max(many, db.execute(query, (list(map(searched, event_ids)),)).rowcount)
        return many

    def rows(self, store: str, after: Position, many: int) -> list[tuple[Any, ...]]:
        query = (
            f"SELECT {_READ}, c.content FROM storehooks.records AS r LEFT JOIN storehooks.contents AS c "
            "USING (id, accepted_at) WHERE r.store = %s AND (r.accepted_at, r.id) > (%s, %s) "
            "ORDER BY r.accepted_at, r.id LIMIT %s"
        )
        found = self._rows(query, (searched(store), _moment(after.accepted_at), after.id, many))
        return [(row[0], (row[1] - EPOCH) // _US, (row[2] - EPOCH) // _MS, *row[3:]) for row in found]

    def compact(self, days: Iterable[str]) -> None:
        with self._using(None) as db:
            rewrite_days(db, days)

    def sizes(self) -> HistorySizes:
        partitions = (
            "SELECT count(*) FILTER (WHERE inhparent = 'storehooks.records'::regclass), "
            "coalesce(sum(greatest(reltuples, 0)) FILTER (WHERE inhparent = 'storehooks.records'::regclass), 0), "
            "coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits JOIN pg_class ON oid = inhrelid "
            "WHERE inhparent IN ('storehooks.records'::regclass, 'storehooks.contents'::regclass)"
        )
        for days, events, size in self._rows(partitions):
            ((oldest,),) = self._rows("SELECT min(accepted_at) FROM storehooks.records")
            return HistorySizes(int(events), int(size), oldest, days)
        return HistorySizes(0, 0, None, 0)

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def newest_before(self, before: Position) -> int | None:
        query = (
            "SELECT max(right(relname, 8)) FROM pg_inherits JOIN pg_class ON oid = inhrelid "
            "WHERE inhparent = 'storehooks.records'::regclass AND right(relname, 8) <= %s"
        )
        end = _moment(before.accepted_at)  # planning a query over all days would take longer than running it
        for (day,) in self._rows(query, (f"{end:%Y%m%d}",)):
            if day:
                after = datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC) + timedelta(days=1)
                return (min(end, after) - EPOCH) // _US
        return None

    def candidates(
        self, wanted: EventFilter, *, oldest: int, before: Position, limit: int, seconds: float, content: bool
    ) -> Sequence[PastEvent] | None:
        window = (_moment(oldest), _moment(before.accepted_at))
        hits, values = _hits(wanted, window)
        conditions, more_values = _conditions(wanted)
        body = _CONTENT if content else "NULL"
        query = (
            f"{hits} SELECT {_READ}, {body} FROM storehooks.records AS r "
            f"{'JOIN hits USING (id, accepted_at)' if hits else ''} WHERE r.accepted_at BETWEEN %s AND %s "
            f"AND (r.accepted_at, r.id) < (%s, %s) {conditions} ORDER BY r.accepted_at DESC, r.id DESC LIMIT %s"
        )
        try:
            given = [*values, *(window if content else ()), *window, window[1], before.id, *more_values, limit]
            rows = self._rows(query, given, seconds=seconds)
        except HistoryError as error:
            if isinstance(error.__cause__, errors.QueryCanceled):
                return None
            raise
        return [_event(row) for row in rows]

    def _rows(self, query: str, values: Sequence[Any] = (), *, seconds: float = CALL_SECONDS) -> list[tuple[Any, ...]]:
        with self._using(seconds) as db:
            # Not prepared: a plan for any values would have all partitions, and not know which index is good.
            return db.execute(query.encode(), values, prepare=False).fetchall() if self._version else []

    @contextmanager
    def _using(self, seconds: float | None = CALL_SECONDS) -> Iterator[Connection[Any]]:
        """The connection, for one call that is ended after a time, or None. Errors are explained, and end it."""
        with self._limit.place() if self._limit else nullcontext(), self._connected(seconds) as db:
            yield db

    @contextmanager
    def _connected(self, seconds: float | None) -> Iterator[Connection[Any]]:
        try:
            if self._connection and was_ended(self._connection):
                self.close()
            if self._connection is None:
                self._connection = connect(self._url)
            db = self._connection
            with time_limit(db, seconds and min(seconds, self._call_seconds)):
                if not self._version:
                    self._version = version_of(db)
                yield db
        except psycopg.Error as error:
            self.close()
            text = error.diag.message_primary or " ".join(str(error).split())  # its details may quote an event
            raise HistoryError(f"the history cannot be used: {text}{_FIXES.get(error.sqlstate or '', '')}") from error


@contextmanager
def _writing(db: Connection[Any]) -> Iterator[None]:
    """A transaction during which no partition is dropped."""
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock_shared(%s)", (LOCK,))
        yield


class _Rows(NamedTuple):
    """An event as rows of both tables."""

    id: str
    day: datetime
    record: dict[str, Any]
    content: dict[str, Any] | None
    is_erased: bool = False


def _rows_of(event: PastEvent) -> _Rows:
    """Raises ValueError for an event whose times are none."""
    day = day_of(event.accepted_at)
    record = row_of(event)._asdict()
    for name, unit in (("accepted_at", 1), ("settled_at", 1000), ("received_at", 1000)):
        record[name] = _moment(record[name] * unit)
    if not event.content:
        return _Rows(event.id, day, record, None, event.is_erased)
    data, fault = _data(event)
    if fault:
        record["problem"] = f"its payload cannot be searched: {fault}"
    content = {"content": compressed(event.content), "data": data}
    return _Rows(event.id, day, record, {**{name: record[name] for name in (*_KEY, "settled_at")}, **content})


def _data(event: PastEvent) -> tuple[str | None, str]:
    """The payload as JSON, or why there is none."""
    try:
        data = event.event.data
        try:
            text = orjson.dumps(data).decode()
        except TypeError:  # it has numbers that are too large for orjson, or is nested too deep for it
            text = json.dumps(data)
    except RecursionError:
        return None, "it is nested too deep"
    except ValueError:
        return None, "it is not JSON"
    return without_nul(text), ""


def _insert(db: Connection[Any], rows: Sequence[_Rows]) -> list[NotMoved]:
    """Returns those of which a state that settled later is stored."""
    contents = [one.content for one in rows if one.content]
    written = [
        db.execute(_UPSERTS[table], [[one[name] for one in given] for name in given[0]]).rowcount
        for table, given in (("records", [one.record for one in rows]), ("contents", contents))
        if given
    ]
    if gone := [one.record for one in rows if one.is_erased]:  # last: another writer may hold the lock of the record
        query = "DELETE FROM storehooks.contents WHERE id = ANY(%s) AND accepted_at = ANY(%s)"
        db.execute(query, [[one[name] for one in gone] for name in _KEY])
    if not rows or written[0] == len(rows):
        return []
    stored = db.execute(_NEWER, [[one.record[name] for one in rows] for name in (*_KEY, "settled_at")])
    return [NotMoved(event_id, SETTLED_LATER, (settled_at - EPOCH) // _MS) for event_id, settled_at in stored]


def _insert_what_fits(db: Connection[Any], rows: _Rows) -> list[NotMoved]:
    """Store one event: as it is, else without its payload as JSON, else without its runs as JSON. It stays complete,
    since its packed record and its body take any bytes."""
    fault = ""
    for left_out in ("", "payload", "payload and runs"):
        if left_out:
            rows = rows._replace(
                record={**rows.record, "problem": f"its {left_out} cannot be searched: {fault}"},
                content=rows.content and {**rows.content, "data": None},
            )
        if "runs" in left_out:
            rows.record["runs"] = "[]"
        try:
            with db.transaction():
                return _insert(db, [rows])
        except _ROW_FAULTS as error:
            fault = searched(str(error).partition("\n")[0])
    return [NotMoved(rows.id, fault)]


def _event(row: Sequence[Any]) -> PastEvent:
    event_id, accepted_at, settled_at, record, problem, content = row
    return event_of(event_id, (accepted_at - EPOCH) // _US, (settled_at - EPOCH) // _MS, record, problem, content)


def _moment(microseconds: int) -> datetime:
    """A time that PostgreSQL and Python can express; one that is beyond is the first or the last of them."""
    return EPOCH + timedelta(microseconds=max(0, min(microseconds, _LAST)))


def _hits(wanted: EventFilter, window: tuple[datetime, datetime]) -> tuple[str, list[Any]]:
    """The events that the index on the payload finds, as a common table expression, and its values.

    It is materialized, since the planner does not know how rare a value is. It has few rows: if the value were
    frequent, the search would have ended in a shorter window.
    """
    parts, values = [], []
    for path, condition in wanted.where:
        documents = contained(path, condition)
        if documents is not None:
            parts.append(f"({' OR '.join(['data @> %s::jsonb'] * len(documents))})" if documents else "false")
            values += documents
    if not parts:
        return "", []
    query = "SELECT id, accepted_at FROM storehooks.contents WHERE accepted_at BETWEEN %s AND %s AND "
    return f"WITH hits AS MATERIALIZED ({query} {' AND '.join(parts)})", [*window, *values]


def _conditions(wanted: EventFilter) -> tuple[str, list[str]]:
    """The part of the filter that PostgreSQL decides, as SQL and its values."""
    parts, values = [], []
    for column in ("store", "resource_id", "delivery_id"):
        if text := getattr(wanted, column):
            parts.append(f"AND r.{column} = %s AND r.{column} <> ''")
            values.append(searched(text))
    if wanted.topic:
        parts.append("AND r.topic = %s" if wanted.has_exact_topic else "AND starts_with(r.topic, %s)")
        values.append(searched(wanted.topic_begins))
    of_run = []
    for name, condition in (
        ("handler", "run ->> 'handler' = %s"),
        ("result", "strpos(lower(run ->> 'result'), lower(%s)) > 0"),
        ("error", "strpos(lower(run ->> 'error'), lower(%s)) > 0"),
    ):
        if text := getattr(wanted, name):
            of_run.append(condition)
            values.append(text.replace("\0", "\ufffd"))
    if of_run:
        parts.append(f"AND EXISTS (SELECT 1 FROM jsonb_array_elements(r.runs) AS run WHERE {' AND '.join(of_run)})")
    return " ".join(parts), values
