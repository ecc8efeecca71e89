"""Reload: HUP reaches the processes that hold a process file, and no others."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from receiver.process.process_files import ProcessFile, held
from tests.support.programs import ROOT
from workers.runtime.reload import Reload, reload

PROGRAM = """
import signal, sys, time
from pathlib import Path
from receiver.process.process_files import hold
signal.signal(signal.SIGHUP, lambda *_: print("reloaded", flush=True))
hold(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""


class Processes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[subprocess.Popen[str]] = []

    def start(self, role: str, folder: Path | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(folder or self.folder), role]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.all.append(process)
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        return process

    def reload(self) -> list[tuple[str, int]]:
        return sorted((file.role, file.pid) for file in reload(self.folder).signalled)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path / "data")
    yield started
    for process in started.all:
        process.kill()
        process.wait()


def test_each_process_of_the_data_directory_is_signalled_and_no_other(processes: Processes, tmp_path: Path) -> None:
    one, two, worker = (processes.start(role) for role in ("web", "web", "worker"))
    other = processes.start("web", tmp_path / "other")
    assert processes.reload() == sorted([("web", one.pid), ("web", two.pid), ("worker", worker.pid)])
    for process in (one, two, worker):
        assert process.stdout
        assert process.stdout.readline() == "reloaded\n"
    other.kill()
    assert other.communicate()[0] == ""


def test_dev_is_signalled_alone_since_it_forwards_the_signal(processes: Processes) -> None:
    processes.start("web")
    dev = processes.start("dev")
    assert processes.reload() == [("dev", dev.pid)]


def test_a_process_that_has_ended_is_not_signalled_and_nor_is_one_that_reuses_its_id(processes: Processes) -> None:
    ended, bystander = processes.start("web"), processes.start("worker")
    (file,) = [file for file in held(processes.folder) if file.role == "web"]
    ended.kill()
    ended.wait()
    assert not ProcessFile("web", bystander.pid, file.path).is_held
    assert processes.reload() == [("worker", bystander.pid)]


def test_nothing_is_signalled_where_nothing_runs(tmp_path: Path) -> None:
    assert reload(tmp_path / "missing") == Reload((), ())


def test_a_reload_waits_for_the_processes_that_served_the_old_config(processes: Processes) -> None:
    processes.start("web")
    old = processes.start("web-worker")
    asked = reload(processes.folder)
    assert [file.role for file in asked.signalled] == ["web"]
    assert asked.wait(0.1) is False
    old.send_signal(signal.SIGTERM)
    new = processes.start("web-worker")
    assert asked.wait(10) is True
    assert new.poll() is None
