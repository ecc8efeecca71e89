"""The database that a config names is opened, and a missing extra is said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from receiver.config import load
from receiver.contract.errors import ConfigError
from tests.support.past_events import past_event
from tests.support.programs import ROOT
from workers.history.configured_history import open_history
from workers.history.event_filter import EventFilter
from workers.history.past_events import HistoryError
from workers.history.postgres_history import PostgresHistory
from workers.history.sqlite_history import SqliteHistory


def config_file(folder: Path, url: str) -> Path:
    path = folder / "config.toml"
    path.write_text(f'[redis]\ndata_dir = "{folder}/data"\n[history]\nurl = "{url}"\n')
    return path


def test_the_history_of_the_config_is_opened(tmp_path: Path, redis: Redis) -> None:
    sqlite = open_history(load(config_file(tmp_path, ""), {}), redis)
    assert isinstance(sqlite, SqliteHistory)
    assert sqlite.directory == tmp_path / "data" / "history"
    assert isinstance(open_history(load(config_file(tmp_path, "postgresql://h/d"), {}), redis), PostgresHistory)
    assert open_history(load(config_file(tmp_path, "off"), {}), redis) is None


def test_psycopg_is_loaded_only_for_postgresql(tmp_path: Path) -> None:
    code = "import sys; from receiver.config import load; from workers.history.configured_history import open_history; "
    code += f"open_history(load(__import__('pathlib').Path({str(config_file(tmp_path, 'sqlite'))!r}), {{}}), None); "
    code += "sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_missing_psycopg_is_an_error_with_the_fix(
    tmp_path: Path, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in ("history", "connection", "schema"):
        monkeypatch.delitem(sys.modules, f"workers.history.postgres_{name}", raising=False)
    with pytest.raises(ConfigError, match=r"config.toml:4: .*pip install 'storehooks\[postgres\]'"):
        open_history(load(config_file(tmp_path, "postgresql://h/d"), {}), redis)


def host(folder: Path, redis: Redis, redis_url: str) -> SqliteHistory:
    folder.mkdir(exist_ok=True)
    path = folder / "config.toml"
    path.write_text(f'[redis]\nurl = "{redis_url}"\ndata_dir = "{folder}/data"\n[history]\nurl = "sqlite"\n')
    found = open_history(load(path, {}), redis)
    assert isinstance(found, SqliteHistory)
    return found


def test_a_second_host_with_sqlite_is_refused(tmp_path: Path, redis: Redis, server_url: str) -> None:
    first, second = host(tmp_path / "a", redis, server_url), host(tmp_path / "b", redis, server_url)
    assert second.find(EventFilter()).events == ()  # no host has a history yet
    first.check()
    first.write([past_event(1)])
    other = host(tmp_path / "b", redis, server_url)
    for call in (other.check, lambda: other.find(EventFilter()), lambda: other.event(past_event(1).id)):
        with pytest.raises(
            HistoryError, match=r'are on \S+:\S+/a/data, and \[history\] url = "sqlite" is for one host'
        ):
            call()
    again = host(tmp_path / "a", redis, server_url)
    again.check()
    assert again.event(past_event(1).id) == past_event(1)


def test_a_directory_may_be_moved_to_another_host_and_a_lost_one_can_be_forgotten(
    tmp_path: Path, redis: Redis, server_url: str
) -> None:
    first = host(tmp_path / "a", redis, server_url)
    first.check()
    first.write([past_event(1)])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    moved = host(tmp_path / "b", redis, server_url)
    moved.check()
    assert moved.event(past_event(1).id)
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    anew = host(tmp_path / "c", redis, server_url)
    with pytest.raises(HistoryError, match="if that host is gone: storehooks hosts forget") as raised:
        anew.check()
    name = str(raised.value).rpartition(" ")[2]
    command = [sys.executable, "-m", "workers.cli", "hosts", "forget", name, "--yes"]
    environ = {**os.environ, "STOREHOOKS_CONFIG": str(tmp_path / "c" / "config.toml")}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == f"forgot that {name} has the history\n", done.stderr
    anew.check()


def test_several_processes_of_one_host_begin_one_history(tmp_path: Path, redis: Redis, server_url: str) -> None:
    histories = [host(tmp_path / "a", redis, server_url) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda one: one.check(), histories)) == [None] * 8
