"""A history that is away, full, read-only, slow, damaged or newer, and events that a database does not take."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from tests.support.past_events import NOVEMBER, past_event
from tests.support.postgres import Postgres, needs_postgres
from tests.workers.history.conftest import opened
from workers.history import postgres_schema, sqlite_history
from workers.history.event_filter import EventFilter, where_of
from workers.history.past_events import HistoryDatabase, HistoryError, NotMoved
from workers.history.postgres_history import PostgresHistory
from workers.history.sqlite_history import SqliteHistory

NESTED = b'{"data":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
ODD: dict[str, dict[str, Any]] = {
    "NUL in every text": {"fields": dict.fromkeys(("topic", "theirs", "delivery", "resource", "source"), "a\0b")},
    "NUL in the payload": {"data": {"a\0": "b\0", "id": 1}},
    "NUL in a result": {"detail": {"result": "a\0b", "error": "c\0d", "version": "1\0"}},
    "bytes that are no text": {"fields": {"topic": b"\xff\xfe", "resource": b"\xc3"}, "body": b"\xff\0\xfe"},
    "a header of 1 MB": {"headers": {"x-long": "h" * (1 << 20)}},
    "ids of 100 kB": {"fields": {"delivery": "d" * 100_000, "resource": "r" * 100_000, "topic": "t" * 100_000}},
    "a payload of depth 50,000": {"body": NESTED},
    "a payload of depth 950": {"body": b'{"data":' + b"[" * 950 + b"]" * 950 + b"}"},
    "a result of depth 900": {"detail": '{"result":' + "[" * 900 + "]" * 900 + "}"},
    "half of a surrogate pair": {"body": rb'{"data":{"name":"\ud800"}}'},
    "a number of 400 digits": {"body": b'{"data":{"n":' + b"9" * 400 + b"}}"},
    "an exponent of 999999": {"body": b'{"data":{"n":1e999999,"m":-1e999999}}'},
    "a record without fields": {"fields": {}},
    "a run that is damaged": {"fields": {"r:erp.book": "???"}},
    "1,000 runs": {"fields": {f"r:p.h{n}": "done 1 0 default " for n in range(1000)}},
    "no body": {"content": None},
    "once marks that are no text": {"once": {b"h|\xff": b"done \xff\0"}},
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_event_is_stored_complete_and_does_not_stop_the_others(history: HistoryDatabase, name: str) -> None:
    odd = past_event(2, **ODD[name])
    if name == "a record without fields":
        odd = past_event(2, fields={}, content=b"")
        object.__setattr__(odd, "fields", {})
    others = [past_event(1), past_event(3)]
    assert history.write([others[0], odd, others[1]]) == []
    read = history.event(odd.id)
    assert read
    assert (read.fields, read.once, read.content) == (odd.fields, odd.once, odd.content or None)
    assert [one.id for one in history.find(EventFilter()).events] == [others[1].id, odd.id, others[0].id]
    by_payload = history.find(EventFilter(where=[where_of("customer.email=buyer3@example.com")]))
    assert [one.id for one in by_payload.events] == [others[1].id]
    assert history.find(EventFilter(error="no such error", handler="x")).events == ()
    assert history.write([odd]) == []


@pytest.mark.full
@needs_postgres
@pytest.mark.parametrize("name", ["a payload of depth 50,000", "bytes that are no text"])
def test_what_the_index_does_not_take_is_marked(server: Postgres, name: str) -> None:
    history = PostgresHistory(server.new_database())
    odd = past_event(1, **ODD[name])
    history.write([odd])
    read = history.event(odd.id)
    assert read
    assert read.problem.startswith("its payload cannot be searched: ")
    history.close()


def test_an_event_without_a_time_stays_where_it_is_and_the_others_are_stored(history: HistoryDatabase) -> None:
    lost = past_event(1, at=2**62)
    assert [one.id for one in history.write([lost, past_event(2)])] == [lost.id]
    assert history.event(past_event(2).id)


def newer_schema(place: Path | str) -> None:
    if isinstance(place, Path):
        for path in place.glob("*.sqlite"):
            with closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA user_version = 99")
    else:
        with psycopg.connect(place) as db:
            db.execute("UPDATE storehooks.version SET schema = 99")


def test_a_newer_schema_is_refused_by_every_call_and_changed_by_none(place: Path | str) -> None:
    history = opened(place)
    history.check()
    history.write([past_event(1)])
    newer_schema(place)
    calls: list[Callable[[HistoryDatabase], object]] = [
        lambda one: one.check(),
        lambda one: one.write([past_event(2)]),
        lambda one: one.event(past_event(1).id),
        lambda one: one.find(EventFilter()),
    ]
    for call in calls:
        fresh = opened(place)
        with pytest.raises(
            HistoryError, match=r"schema 99, and this version of storehooks knows schemas up to \d; update"
        ):
            call(fresh)
        fresh.close()
    with pytest.raises(HistoryError, match="schema 99"):  # also one that is connected
        history.write([past_event(2)])
    history.close()


def test_tables_are_upgraded_once_although_several_processes_start(
    place: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(place)
    first.check()
    first.write([past_event(1)])
    first.close()
    for module, added in (
        (sqlite_history, "ALTER TABLE records ADD COLUMN added INTEGER;\n"),
        (postgres_schema, "ALTER TABLE storehooks.records ADD COLUMN added integer;\n"),
    ):
        monkeypatch.setattr(module, "UPGRADES", (*module.UPGRADES, added))
        monkeypatch.setattr(module, "SCHEMA_VERSION", 2)
    monkeypatch.setattr("workers.history.postgres_history.SCHEMA_VERSION", 2)
    failures: list[BaseException] = []

    def start() -> None:
        history = opened(place)
        try:
            history.check()
            history.write([past_event(2)])
        except Exception as error:  # noqa: BLE001
            failures.append(error)
        finally:
            history.close()

    threads = [threading.Thread(target=start) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    history = opened(place)
    assert [one.id for one in history.find(EventFilter()).events] == [past_event(2).id, past_event(1).id]
    history.close()


# SQLite


def test_a_month_can_be_moved_away_and_read_again(tmp_path: Path) -> None:
    history = SqliteHistory(tmp_path / "history")
    history.check()
    history.write([past_event(1), past_event(2, at=NOVEMBER - 40 * 86_400_000_000)])
    assert sorted(os.listdir(history.directory)) == ["2026-10.sqlite", "2026-11.sqlite", "place"]
    away = history.directory / "2026-10.sqlite"
    away.rename(tmp_path / "away")
    assert [one.id for one in history.find(EventFilter()).events] == [past_event(1).id]
    (tmp_path / "away").rename(away)
    assert [one.id for one in history.find(EventFilter()).events] == [past_event(1).id, past_event(2).id]


def test_a_file_that_is_moved_while_it_is_written_is_an_error_and_the_next_write_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = SqliteHistory(tmp_path / "history")
    history.check()
    history.write([past_event(1)])
    path = history.directory / "2026-11.sqlite"
    write = sqlite_history._write

    def moved_meanwhile(db: sqlite3.Connection, events: Any) -> list[NotMoved]:
        left = write(db, events)
        with suppress(FileNotFoundError):
            path.rename(tmp_path / "away")
        return left

    monkeypatch.setattr(sqlite_history, "_write", moved_meanwhile)
    with pytest.raises(HistoryError, match="was moved away while it was written"):
        history.write([past_event(2)])
    monkeypatch.undo()
    assert history.write([past_event(2)]) == []
    assert history.event(past_event(2).id)


@pytest.mark.parametrize("content", [b"no database" * 1000, None])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    history = SqliteHistory(tmp_path)
    history.write([past_event(number) for number in range(200)])
    path = tmp_path / "2026-11.sqlite"
    if content is None:
        whole = path.read_bytes()
        content = whole[:4096] + b"\xff" * (len(whole) - 4096)
    path.write_bytes(content)
    for call in (lambda: history.write([past_event(1)]), lambda: history.find(EventFilter())):
        with pytest.raises(HistoryError, match=r"2026-11.sqlite cannot be used: .*it is damaged: stop the workers"):
            call()


def test_a_full_disk_is_an_error_with_the_fix_and_nothing_is_half_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = SqliteHistory(tmp_path)
    history.write([past_event(1)])
    connect = sqlite_history._connect

    def nearly_full(path: Path) -> sqlite3.Connection:
        db = connect(path)
        db.execute("PRAGMA max_page_count = 30").fetchall()
        return db

    many = [past_event(number, data={"text": os.urandom(400).hex()}) for number in range(2, 500)]
    monkeypatch.setattr(sqlite_history, "_connect", nearly_full)
    with pytest.raises(HistoryError, match="full; free space on its disk"):
        history.write(many)
    monkeypatch.undo()
    assert [one.id for one in history.find(EventFilter()).events] == [past_event(1).id]
    assert history.write(many) == []


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match=r"file/history cannot be used: "):
        SqliteHistory(tmp_path / "file" / "history").check()


def test_readers_and_writers_of_one_file_do_not_fail(tmp_path: Path) -> None:
    history = SqliteHistory(tmp_path)
    history.write([past_event(0)])
    stop, failures = threading.Event(), []

    def read() -> None:
        reader = SqliteHistory(tmp_path)
        while not stop.is_set():
            try:
                assert reader.find(EventFilter(where=[where_of("total>1")]), limit=1000).events
            except Exception as error:  # noqa: BLE001
                failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for start in range(0, 1000, 100):
        history.write([past_event(number) for number in range(start, start + 100)])
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


# PostgreSQL


@pytest.fixture
def postgres(server: Postgres) -> Iterator[PostgresHistory]:
    history = PostgresHistory(server.new_database(), call_seconds=1.0)
    history.write([past_event(1)])
    yield history
    history.close()


@pytest.mark.full
@needs_postgres
def test_a_server_that_was_away_is_used_again(server: Postgres, postgres: PostgresHistory) -> None:
    server.stop()
    try:
        for _ in range(2):
            with pytest.raises(HistoryError, match="the history cannot be used: "):
                postgres.write([past_event(2)])
    finally:
        server.start()
    assert postgres.write([past_event(2)]) == []
    assert postgres.event(past_event(1).id)


@pytest.mark.parametrize("url", ["postgresql://u:sesame%zz@h/d", "postgresql://u:sesame@h/d?nosuch=sesame"])
def test_a_url_that_cannot_be_parsed_is_not_shown(url: str) -> None:
    with pytest.raises(HistoryError, match=r"\[history\] url cannot be parsed; write special characters") as raised:
        PostgresHistory(url).check()
    assert "sesame" not in str(raised.value)


@pytest.mark.full
@needs_postgres
def test_a_server_that_hangs_is_an_error_after_a_bounded_time(server: Postgres, postgres: PostgresHistory) -> None:
    server.signal_all(signal.SIGSTOP)
    began = time.monotonic()
    try:
        with pytest.raises(HistoryError):
            postgres.write([past_event(2)])
        with pytest.raises(HistoryError):  # connecting, too
            postgres.write([past_event(2)])
        assert time.monotonic() - began < 20
    finally:
        server.signal_all(signal.SIGCONT)
    assert postgres.write([past_event(2)]) == []


@pytest.mark.full
@needs_postgres
def test_a_lock_of_another_session_is_an_error_after_a_bounded_time(server: Postgres) -> None:
    url = server.new_database()
    history = PostgresHistory(url, call_seconds=1.0)
    history.write([past_event(1)])
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE storehooks.records")
        with pytest.raises(HistoryError, match="canceling statement due to statement timeout; it took too long"):
            history.write([past_event(2)])
        assert history.find(EventFilter(), seconds=0.5).out_of_time
    assert history.write([past_event(2)]) == []
    history.close()


@pytest.mark.full
@needs_postgres
@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("ALTER DATABASE {name} SET default_transaction_read_only = on", "it is read-only: set the primary in"),
        (
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$; "
            "CREATE TRIGGER t BEFORE INSERT ON storehooks.records FOR EACH ROW EXECUTE FUNCTION full_disk()",
            "could not extend file; free space on its disk",
        ),
        ("ALTER ROLE reader NOLOGIN", "is not permitted to log in"),
    ],
)
def test_a_server_that_takes_no_writes_is_an_error_with_the_fix(server: Postgres, made: str, said: str) -> None:
    url = server.new_database()
    history = PostgresHistory(url)
    history.write([past_event(1)])
    history.close()
    with psycopg.connect(url, autocommit=True) as db:
        with suppress(psycopg.errors.DuplicateObject):
            db.execute("CREATE ROLE reader LOGIN")
        name = db.info.dbname
        db.execute(made.format(name=name).encode())
    other = PostgresHistory(url.replace("storehooks@", "reader@") if "ROLE" in made else url)
    for _ in range(2):
        with pytest.raises(HistoryError, match=said):
            other.write([past_event(2)])
    other.close()


@pytest.mark.full
@needs_postgres
def test_two_writers_of_the_same_events_do_not_block_each_other(server: Postgres) -> None:
    url = server.new_database()
    events = [past_event(number) for number in range(400)]
    failures: list[BaseException] = []

    def write(order: int) -> None:
        history = PostgresHistory(url)
        try:
            for start in range(0, 400, 50):
                assert history.write(events[start : start + 50][::order]) == []
        except Exception as error:  # noqa: BLE001
            failures.append(error)
        history.close()

    threads = [threading.Thread(target=write, args=(order,)) for order in (1, -1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    history = PostgresHistory(url)
    assert [one.id for one in history.find(EventFilter(), limit=500).events] == [one.id for one in events[::-1]]
    history.close()


# The views


EVENTS_VIEW = "id store topic store_topic delivery_id resource_id source received_at occurred_at accepted_at settled_at"
EVENTS_VIEW += " reason runs problem"
RUNS_VIEW = "event_id store topic resource_id accepted_at settled_at handler version status attempts replays result"
RUNS_VIEW += " error reason"


def test_the_views_have_the_documented_columns_and_one_row_for_each_event_and_run(place: Path | str) -> None:
    history = opened(place)
    history.check()
    fields = {
        "r:mail.send": "dropped 2 0 default ",
        "x:mail.send": '{"error":"late","version":"3"}',
        "p:mail.send": "1",
    }
    history.write([past_event(1, fields=fields), past_event(2)])
    history.close()
    prefix = "" if isinstance(place, Path) else "storehooks."
    connection: Any = sqlite3.connect(place / "2026-11.sqlite") if isinstance(place, Path) else psycopg.connect(place)
    with closing(connection) as db:
        rows = db.execute(f"SELECT * FROM {prefix}events ORDER BY resource_id")
        columns = [column[0] for column in rows.description]
        assert columns[:14] == EVENTS_VIEW.split()
        assert columns[14:] == ([] if isinstance(place, Path) else ["data"])
        first = dict(zip(columns, rows.fetchone(), strict=True))
        assert (first["id"], first["store_topic"], first["runs"]) == (past_event(1).id, "orders/create", 2)
        assert str(first["accepted_at"])[:10] == "2026-11-16"
        rows = db.execute(f"SELECT * FROM {prefix}runs ORDER BY resource_id, handler")
        assert [column[0] for column in rows.description] == RUNS_VIEW.split()
        runs = [dict(zip(RUNS_VIEW.split(), row, strict=True)) for row in rows.fetchall()]
    assert [(run["resource_id"], run["handler"], run["status"], run["attempts"]) for run in runs] == [
        ("1", "erp.book", "done", 1),
        ("1", "mail.send", "dropped", 2),
        ("2", "erp.book", "done", 1),
    ]
    assert (runs[1]["error"], runs[1]["version"], runs[1]["replays"]) == ("late", "3", 1)
    result = runs[0]["result"]
    assert (orjson.loads(result) if isinstance(result, str) else result) == {"booked": 1}


def test_no_file_is_readable_by_others(tmp_path: Path) -> None:
    history = SqliteHistory(tmp_path / "history")
    history.check()
    history.write([past_event(1)])
    assert history.directory.stat().st_mode & 0o077 == 0
    assert (history.directory / "2026-11.sqlite").stat().st_mode & 0o077 == 0
    shutil.rmtree(history.directory)
