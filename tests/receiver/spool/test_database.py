"""The SQLite files of a host: any number of processes may create them at once, and another format is refused."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from receiver.spool import EVENTS_FILE, REFUSED_FILE, open_events, open_refusals
from receiver.spool.database import FORMAT
from tests.support.harness import Server, System

OPEN_MANY = """
import sys
from pathlib import Path
from receiver.spool import open_events
for name in sys.stdin:
    open_events(Path(name.strip())).close()
"""


def test_many_processes_may_create_a_file_at_once(tmp_path: Path) -> None:
    folders = "".join(f"{tmp_path / str(number)}\n" for number in range(40))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_MANY], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
        )
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdin
        process.stdin.write(folders)
        process.stdin.flush()
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 6


def test_a_process_waits_for_another_that_creates_the_file(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / EVENTS_FILE, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE other (number)")
        other.execute("BEGIN IMMEDIATE")  # as while it switches to a write-ahead log
        timer = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        timer.start()
        began = time.monotonic()
        assert open_events(tmp_path).count() == 0
        assert time.monotonic() - began > 0.2
        timer.join()


@pytest.mark.parametrize("version", [0, FORMAT - 1, FORMAT + 1], ids=["before numbers", "older", "newer"])
def test_a_file_of_another_format_is_refused_at_start_and_by_commands(
    make_system: Callable[..., System], version: int
) -> None:
    system = make_system()
    data = system.config.data_dir
    open_events(data).close()
    open_refusals(data).close()
    for name in (EVENTS_FILE, REFUSED_FILE):
        with closing(sqlite3.connect(data / name)) as file:
            assert file.execute("PRAGMA user_version").fetchone() == (FORMAT,)
            file.execute(f"PRAGMA user_version = {version}")
        refused = system.refuse_to_start("web")
        assert refused.returncode == 2
        sentence = f"{name} has format {version}, and this version of storehooks reads format {FORMAT}"
        assert sentence in refused.stderr
        assert sentence in system.run_cli("doctor", "--json").stdout
        with closing(sqlite3.connect(data / name)) as file:
            assert file.execute("PRAGMA user_version").fetchone() == (version,), "nothing has written to it"
            file.execute(f"PRAGMA user_version = {FORMAT}")
    with closing(sqlite3.connect(data / REFUSED_FILE)) as file:
        file.execute(f"PRAGMA user_version = {version}")
    listed = system.run_cli("refused")
    assert (listed.returncode, sentence in " ".join(listed.stderr.split())) == (2, True)


def test_a_refused_delivery_that_is_being_written_delays_no_spooled_one(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """They are in two files, because a file has one write lock."""
    system = make_system(url=own_redis.url)
    system.start("web")
    assert system.post(system.request(store="north"), "south").status_code == 401
    system.refused()
    own_redis.kill()
    with closing(sqlite3.connect(system.config.data_dir / REFUSED_FILE, isolation_level=None)) as writing:
        writing.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        answers = {system.post(system.request()).status_code for _ in range(3)}
        took = time.monotonic() - began
    assert answers == {200}
    assert took < 2
    assert open_events(system.config.data_dir).count() == 3
