"""Pages with past events: the console keeps its histories open between requests, and notices what has changed."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from flask.testing import FlaskClient

from receiver import config as config_room
from receiver.inbox import keys
from receiver.inbox.history_moves import HistoryMoves
from tests.support.console import PASSWORD, RunningConsole, plain, running_console
from tests.support.harness import System, eventually, free_port
from tests.support.past_events import past_event
from tests.support.postgres import Postgres, needs_postgres, postgres_server
from workers.console import page_data
from workers.console.application import create_app
from workers.console.patient_worker import OF_ONE
from workers.history.call_limit import HistoryLimit
from workers.history.configured_history import open_history
from workers.history.past_events import HistoryDatabase, HistoryError, PastEvent
from workers.runtime.history_mover import Mover

FAULT = "because the history cannot be read: "


class InProcessConsole:
    """The console in this process, with an operator who is logged in, and a history with one past event."""

    def __init__(self, system: System) -> None:
        port = free_port()
        text = system.config_file.read_text()
        system.config_file.write_text(text.replace('127.0.0.1:0"', f'127.0.0.1:{port}"\npassword = "{PASSWORD}"', 1))
        self.system, self.config = system, config_room.load(system.config_file, {})
        history = open_history(self.config, system.client)
        assert history
        self.history: HistoryDatabase = history
        self.history.check()
        self.past = past_event(1)
        self.history.write([self.past])
        self._url = f"http://127.0.0.1:{port}"
        self._browser: FlaskClient = create_app(self.config).test_client()
        token = self.page("/login").partition('name="token" value="')[2][:32]
        self._browser.post(
            "/login", base_url=self._url, headers={"Origin": self._url}, data={"token": token, "password": PASSWORD}
        )

    def page(self, path: str) -> str:
        return self._browser.get(path, base_url=self._url).text

    def list(self) -> str:
        found = self.page("/events")
        assert "<h1>Events" in found, plain(found)
        return found

    def lists_all(self) -> bool:
        """Whether the list has the past event, and no fault."""
        found = self.list()
        return found.count(f'"/events/{self.past.id}"') == 1 and FAULT not in plain(found)

    def close(self) -> None:
        self.history.close()


@pytest.fixture
def make_console(make_system: Callable[..., System]) -> Iterator[Callable[[str], InProcessConsole]]:
    made: list[InProcessConsole] = []

    def make(url: str) -> InProcessConsole:
        made.append(InProcessConsole(make_system(more=f'[history]\nurl = "{url}"\n')))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_pages_with_past_events_open_no_connection(make_console: Callable[[str], InProcessConsole]) -> None:
    console = make_console("sqlite")
    client: Any = console.system.client
    assert console.lists_all()
    before = client.info("stats")["total_connections_received"]
    for _ in range(3):
        assert console.lists_all()
        assert "msg_1" in console.page(f"/events/{console.past.id}")
    assert client.info("stats")["total_connections_received"] == before


def test_an_event_that_is_moved_between_two_pages_is_listed_once_on_each(
    make_console: Callable[[str], InProcessConsole],
) -> None:
    console = make_console("sqlite")
    event_id = console.system.accept()
    console.system.client.set(keys.DECLARED_SINCE, 1)
    inbox = console.system.inbox
    inbox.route([(run, ()) for run in inbox.claim({"": 1}, capacity=1).runs], inbox.declarations().version)
    assert console.list().count(f'"/events/{event_id}"') == 1
    client = console.system.client
    console.history.write([PastEvent(*one) for one in HistoryMoves(client).settled(age=-1).events])
    assert console.list().count(f'"/events/{event_id}"') == 1, "it is in both"
    assert Mover(client, console.history).move(age=-1, known_for=3600).moved == 1
    assert console.list().count(f'"/events/{event_id}"') == 1
    assert console.lists_all()


def test_a_history_that_another_host_has_by_now_is_noticed(
    make_console: Callable[[str], InProcessConsole], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_data, "HISTORY_SECONDS", 0.0)
    console = make_console("sqlite")
    assert console.lists_all()
    console.system.client.set(keys.HISTORY_PLACE, "0123456789abcdef other:/data")
    assert f"{FAULT}the files of the history are on other:/data" in plain(console.list())


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server() as running:
        yield running


@pytest.mark.full
@needs_postgres
def test_pages_share_a_connection_to_postgresql_and_notice_that_it_was_away(
    server: Postgres, make_console: Callable[[str], InProcessConsole]
) -> None:
    url = server.new_database()
    console = make_console(url)
    console.close()
    assert all(console.lists_all() for _ in range(3))
    query = "SELECT pid, backend_start FROM pg_stat_activity WHERE application_name = 'storehooks'"
    with psycopg.connect(url) as db:
        (first,) = db.execute(query).fetchall()
    assert console.lists_all()
    with psycopg.connect(url) as db:
        assert db.execute(query).fetchall() == [first]
    server.stop()
    server.start()
    assert console.lists_all(), "it was away between two pages"
    server.stop()
    try:
        assert FAULT in plain(console.list())
    finally:
        server.start()
    assert console.lists_all()


def look_around(console: RunningConsole, hanging: AbstractContextManager[object]) -> None:
    """The overview while many pages wait for the history."""
    with ThreadPoolExecutor(24) as pool:
        browser = console.browser().log_in()
        browser.get("/events")
        paths = ["/events"] * 14 + ["/events/0123456789abcdef"] * 6 + ["/events?resource=3"] * 4
        with hanging:
            answers = [pool.submit(browser.http.get, path) for path in paths]
            eventually(lambda: any(one.done() for one in answers), what="a page does not wait for the history")
            began = time.monotonic()
            assert browser.get("/").status_code == 200
            assert time.monotonic() - began < 2
            texts = [plain(one.result().text) for one in answers]
        assert any("the history is busy or does not answer: 2 calls are under way" in text for text in texts)
        eventually(lambda: FAULT not in browser.text("/events"), what="the history is read again")


@contextmanager
def stopped(server: Postgres) -> Iterator[None]:
    server.signal_all(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal_all(signal.SIGCONT)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    (path,) = directory.glob("*.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield


@pytest.mark.full
@needs_postgres
def test_pages_without_the_history_are_served_while_postgresql_hangs(server: Postgres, tmp_path: Path) -> None:
    """Pages that waited for it held all threads, and the overview took 13 s."""
    more = f'[history]\nurl = "{server.new_database()}"\n'
    with running_console(tmp_path, more=more) as console:
        look_around(console, stopped(server))


@pytest.mark.full
def test_pages_without_the_history_are_served_while_its_files_are_locked(tmp_path: Path) -> None:
    """They waited five seconds, in all threads."""
    with running_console(tmp_path, more='[history]\nurl = "sqlite"\n') as console:
        history = open_history(console.config, console.system.client)
        assert history
        history.check()
        history.write([past_event(1)])
        look_around(console, locked(console.config.data_dir / "history"))


def test_a_call_waits_for_its_turn_and_not_for_calls_that_hang() -> None:
    assert 0 < page_data.HISTORY_CALLS < OF_ONE
    limit, entered, go_on = HistoryLimit(1), threading.Event(), threading.Event()

    def call() -> None:
        with limit.place():
            entered.set()
            go_on.wait(30)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(call)
        assert entered.wait(30)
        with pytest.raises(HistoryError, match="the history is busy or does not answer: 1 calls are under way"):
            pool.submit(call).result(30)
        began = time.monotonic()
        with pytest.raises(HistoryError):
            pool.submit(call).result(30)
        assert time.monotonic() - began < 0.25, "the first one still hangs"
        go_on.set()
        first.result(30)
        pool.submit(call).result(30)
