"""The SQLite files of a host: any number of processes may create them at once, and another format is refused."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from receiver.spool import (
    EVENTS_FILE,
    EVENTS_FORMAT,
    REFUSED_FILE,
    REFUSED_FORMAT,
    check_format,
    open_events,
    open_refusals,
)
from receiver.spool.database import LISTED, Format
from tests.support.harness import Server, System

FILES = {EVENTS_FILE: EVENTS_FORMAT, "spool-2.sqlite3": EVENTS_FORMAT, REFUSED_FILE: REFUSED_FORMAT}

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
        other.execute("BEGIN EXCLUSIVE")  # as while it switches to a write-ahead log
        timer = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        timer.start()
        began = time.monotonic()
        assert open_events(tmp_path).count() == 0
        assert time.monotonic() - began > 0.2
        timer.join()


def of_version(file: Path, fmt: Format, version: int, rows: int) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.executescript("PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;")
        other.executescript(f"{fmt.schema} PRAGMA user_version = {version};")
        other.execute(f"ALTER TABLE {fmt.table} RENAME COLUMN store TO shop")
        if rows:
            names = [row[1:3] for row in other.execute(f"PRAGMA table_info({fmt.table})")]
            other.execute(f"INSERT INTO {fmt.table} VALUES ({', '.join('1' for _ in names)})")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("newer", [True, False], ids=["newer", "older"])
def test_a_file_of_another_format_is_refused_at_start_and_by_commands(
    make_system: Callable[..., System], name: str, newer: bool
) -> None:
    system, fmt = make_system(), FILES[name]
    version, file = fmt.number + (1 if newer else -1), system.config.data_dir / name
    of_version(file, fmt, version, rows=0 if newer else 1)
    sentence = f"{name} has format {version}, and this version of storehooks reads format {fmt.number}"
    refused = system.refuse_to_start("web")
    assert (refused.returncode, sentence in refused.stderr) == (2, True)
    assert sentence in system.run_cli("doctor", "--json").stdout
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (version,), "nothing has written to it"
    if name == REFUSED_FILE:
        listed = system.run_cli("refused")
        assert (listed.returncode, sentence in " ".join(listed.stderr.split())) == (2, True)


def test_an_older_file_without_rows_is_created_anew_at_start(make_system: Callable[..., System]) -> None:
    system = make_system()
    of_version(system.config.data_dir / EVENTS_FILE, EVENTS_FORMAT, EVENTS_FORMAT.number - 1, rows=0)
    system.start("web")
    assert system.post(system.request()).status_code == 200
    assert open_events(system.config.data_dir).count() == 0
    with closing(sqlite3.connect(system.config.data_dir / EVENTS_FILE)) as file:
        assert {*file.execute(LISTED)} == EVENTS_FORMAT._listed, "its tables begin where they do in a new file"


def test_two_receivers_may_start_at_once_over_an_older_file_without_rows(tmp_path: Path) -> None:
    for number in range(25):
        folder = tmp_path / str(number)
        folder.mkdir()
        of_version(folder / EVENTS_FILE, EVENTS_FORMAT, EVENTS_FORMAT.number - 1, rows=0)
        at_once = threading.Barrier(4)

        def start(folder: Path = folder, at_once: threading.Barrier = at_once) -> int:
            at_once.wait()
            check_format(folder / EVENTS_FILE, EVENTS_FORMAT)
            with closing(open_events(folder)) as events:
                return events.count()

        with ThreadPoolExecutor(4) as threads:
            assert [one.result() for one in [threads.submit(start) for _ in range(4)]] == [0] * 4


def test_each_file_has_a_format_number_of_its_own(tmp_path: Path) -> None:
    """So a change of one does not refuse the other."""
    open_events(tmp_path).close()
    open_refusals(tmp_path).close()
    for name, number in ((EVENTS_FILE, 3), (REFUSED_FILE, 3)):
        with closing(sqlite3.connect(tmp_path / name)) as file:
            assert file.execute("PRAGMA user_version").fetchone() == (number,)


@pytest.mark.timed
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
    assert took < 4
    assert open_events(system.config.data_dir).count() == 3
