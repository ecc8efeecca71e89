"""A history database of each kind. PostgreSQL is one server for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Postgres, needs_postgres, postgres_server
from workers.history.past_events import HistoryDatabase
from workers.history.postgres_history import PostgresHistory
from workers.history.sqlite_history import SqliteHistory


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.full, needs_postgres])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where an empty history is: a folder, or the URL of a database."""
    if request.param == "sqlite":
        return tmp_path / "history"
    url: str = request.getfixturevalue("server").new_database()
    return url


def opened(place: Path | str) -> HistoryDatabase:
    return SqliteHistory(place) if isinstance(place, Path) else PostgresHistory(place)


@pytest.fixture
def history(place: Path | str) -> Iterator[HistoryDatabase]:
    found = opened(place)
    found.check()
    yield found
    found.close()
