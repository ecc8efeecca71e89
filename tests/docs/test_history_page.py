"""docs/history.md: its SQL runs, its roles have the rights that it says, and the views have its columns."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from receiver.config import load
from receiver.inbox import Outcome
from receiver.inbox.outcomes import OutcomeKind
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import System
from tests.support.past_events import past_event
from tests.support.postgres import needs_postgres, postgres_server
from tests.support.programs import ROOT
from workers.history.past_events import HistoryDatabase
from workers.history.postgres_history import PostgresHistory
from workers.history.sqlite_history import SqliteHistory
from workers.runtime.history_mover import Mover

PAGE = (ROOT / "docs/history.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def documented_columns(view: str) -> list[str]:
    table = PAGE.split(f"| View `{view}` |")[1].split("\n\n")[0]
    return [name for row in re.findall(r"^\| (`.*?`) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]


def test_the_config_of_the_page_is_valid(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(blocks("toml")[0])
    assert load(tmp_path / "config.toml", {}).history_url == "sqlite"


def test_the_queries_for_sqlite_run_and_the_views_have_the_columns_of_the_page(tmp_path: Path) -> None:
    history = SqliteHistory(tmp_path)
    history.write([past_event(1)])
    with closing(sqlite3.connect(tmp_path / "2026-11.sqlite")) as db:
        (query,) = blocks("sqlite")
        assert db.execute(query).fetchall() == [("erp.book", 1.0, 1)]
        for view in ("events", "runs"):
            columns = [column[0] for column in db.execute(f"SELECT * FROM {view}").description]
            assert sorted(columns) == sorted(name for name in documented_columns(view) if name != "data")


@pytest.mark.full
@needs_postgres
def test_the_queries_for_postgresql_run_with_the_rights_of_the_page() -> None:
    own, queries, analyst = blocks("sql")
    with postgres_server() as server:
        with psycopg.connect(server.url(), autocommit=True) as db:
            db.execute("CREATE DATABASE hooks")
            for statement in own.split(";\n")[:-1]:
                db.execute(statement.encode())
        history = PostgresHistory(server.url("hooks", "hooks"))
        history.check()
        data = {"currency": "EUR"}
        dropped = {"r:erp.book": "dropped 1 0 default "}
        history.write(
            [past_event(1, data=data, detail={"reason": "by hand"}, fields=dropped), past_event(2, data=data)]
        )
        history.close()
        with psycopg.connect(server.url("hooks", "hooks"), autocommit=True) as db:
            counted, joined = (db.execute(one.encode()).fetchall() for one in queries.split(";\n")[:-1])
            assert joined == [("1", "by hand")]
            assert isinstance(counted, list)
            for view in ("events", "runs"):
                found = db.execute(f"SELECT * FROM storehooks.{view}".encode()).description or []
                assert sorted(column.name for column in found) == sorted(documented_columns(view))
        with psycopg.connect(server.url("hooks"), autocommit=True) as db:
            for statement in analyst.split(";\n")[:-1]:
                db.execute(statement.encode())
        with psycopg.connect(server.url("hooks", "analyst"), autocommit=True) as db:
            assert len(db.execute("SELECT * FROM storehooks.events").fetchall()) == 2
            for refused in ("SELECT * FROM storehooks.records", "DELETE FROM storehooks.contents"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    db.execute(refused.encode())


@pytest.mark.full
@needs_postgres
def test_no_event_is_left_behind_on_the_way_from_sqlite_to_postgresql(system: System) -> None:
    """By the page one exported before the restart, and deleted what was moved to the files meanwhile."""

    def settle_and_move(history: HistoryDatabase, count: int) -> list[str]:
        history.check()
        accepted = [system.accept() for _ in range(count)]
        for _ in accepted:
            (run,) = route(system.inbox, claim_one(system.inbox), GREET)
            system.inbox.finish([Outcome(run, OutcomeKind.DONE, {"version": "1"})])
        assert Mover(system.client, history).move(age=-1, known_for=3600).moved == count
        history.close()
        return accepted

    past = settle_and_move(SqliteHistory(system.config.data_dir / "history"), 3)
    with postgres_server() as server:
        past += settle_and_move(PostgresHistory(server.url()), 2)
        with system.config_file.open("a") as config:
            config.write(f'\n[history]\nurl = "{server.url()}"\n')
        (steps,) = [block for block in blocks("sh") if "past.ndjson.gz" in block]
        for line in steps.splitlines():
            *variables, words = line.partition("storehooks ")[::2]
            env = dict(one.split("=") for one in " ".join(variables).split())
            words = words.replace("past.ndjson.gz", str(system.folder / "past.ndjson.gz"))
            done = system.run_cli(*words.split(), env=env)
            assert done.returncode == 0, done.stderr
        assert "events: 3 new" in done.stdout
        history = PostgresHistory(server.url())
        assert {one.id for one in history.events(past)} == {*past}
        history.close()
