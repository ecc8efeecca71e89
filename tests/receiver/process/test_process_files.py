"""Process files: a lock that ends with its process, held by processes of this test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from receiver.process.process_files import FOLDER, ProcessFile, held
from tests.support.harness import eventually
from tests.support.programs import ROOT

HOLD = "from receiver.process.process_files import hold, hold_alone; from pathlib import Path; import os, sys, time\n"
FOREVER = "print('held', flush=True); time.sleep(60)"
Hold = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD + code, str(tmp_path)]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "held\n", process.communicate()[1]
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children too, also where it has ended
        process.wait()


def found(folder: Path) -> set[tuple[str, int]]:
    return {(file.role, file.pid) for file in held(folder)}


def files(folder: Path) -> list[str]:
    return [path.name for path in (folder / FOLDER).iterdir()]


def test_several_processes_of_one_role_are_each_found(tmp_path: Path, hold: Hold) -> None:
    first, second, worker = (hold(f"hold(Path(sys.argv[1]), {role!r}); {FOREVER}") for role in ("web", "web", "worker"))
    assert found(tmp_path) == {("web", first.pid), ("web", second.pid), ("worker", worker.pid)}


def test_a_server_is_found_with_the_address_it_listens_on_now(tmp_path: Path, hold: Hold) -> None:
    again = "hold(Path(sys.argv[1]), 'web', address='0.0.0.0:5000'); hold(Path(sys.argv[1]), 'web', address='[::1]:80')"
    process = hold(f"{again}; {FOREVER}")
    (file,) = held(tmp_path)
    assert (file.pid, file.address) == (process.pid, "[::1]:80")
    assert file.is_held
    hold(f"hold(Path(sys.argv[1]), 'worker'); {FOREVER}")
    assert sorted(file.address for file in held(tmp_path)) == ["", "[::1]:80"]


def test_the_file_of_a_killed_process_is_removed(tmp_path: Path, hold: Hold) -> None:
    process = hold(f"hold(Path(sys.argv[1]), 'web'); {FOREVER}")
    (file,) = held(tmp_path)
    assert file.is_held
    process.kill()
    process.wait()
    assert not file.is_held
    assert file.path.exists(), "it was killed, so it could not clean up"
    assert found(tmp_path) == set()
    assert files(tmp_path) == []


def test_the_next_process_removes_the_file_of_a_killed_one(tmp_path: Path, hold: Hold) -> None:
    killed = hold(f"hold(Path(sys.argv[1]), 'web'); {FOREVER}")
    killed.kill()
    killed.wait()
    (left,) = files(tmp_path)
    hold(f"hold(Path(sys.argv[1]), 'worker'); {FOREVER}")
    (own,) = files(tmp_path)
    assert left.startswith("web-")
    assert own.startswith("worker-")


def test_a_process_that_ends_leaves_no_file_and_its_forked_child_removes_none(tmp_path: Path, hold: Hold) -> None:
    process = hold(
        "hold(Path(sys.argv[1]), 'web')\n"
        "pid = os.fork() or sys.exit()\n"
        "os.waitpid(pid, 0); print('held', flush=True); time.sleep(0.5)"
    )
    assert found(tmp_path) == {("web", process.pid)}
    process.wait()
    assert files(tmp_path) == []


@pytest.mark.parametrize("after", ["time.sleep(60)", "os.execvp('sleep', ['sleep', '60'])"])
def test_a_child_does_not_keep_the_lock_of_its_killed_parent(tmp_path: Path, hold: Hold, after: str) -> None:
    process = hold(f"hold(Path(sys.argv[1]), 'web')\nif not os.fork(): {after}\n{FOREVER}")
    (file,) = held(tmp_path)
    process.kill()
    process.wait()
    assert not file.is_held


def test_a_change_of_folder_and_a_relative_path_do_no_harm(tmp_path: Path, hold: Hold) -> None:
    process = hold(
        "os.chdir(sys.argv[1]); hold(Path('data'), 'web'); os.chdir('/'); print('held', flush=True); time.sleep(0.5)"
    )
    assert found(tmp_path / "data") == {("web", process.pid)}
    process.wait()
    assert files(tmp_path / "data") == []


def test_a_folder_that_cannot_be_written_stops_no_process(tmp_path: Path, hold: Hold) -> None:
    (tmp_path / FOLDER).write_text("a file in its place")
    process = hold(
        "from receiver import logs; logs.setup('web'); print('held', flush=True); hold(Path(sys.argv[1]), 'w')"
    )
    _, log = process.communicate()
    assert process.returncode == 0
    assert "cannot reload this process" in log
    assert found(tmp_path) == set()


def test_a_role_for_one_is_held_by_one(tmp_path: Path, hold: Hold) -> None:
    only = f"hold_alone(Path(sys.argv[1]), 'dev'); {FOREVER}"
    first = hold(only)
    command = [sys.executable, "-c", HOLD + only, str(tmp_path)]
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"held by process {first.pid}" in second.stderr
    first.kill()
    first.wait()
    third = hold(only)
    assert found(tmp_path) == {("dev", third.pid)}


def test_many_processes_that_start_and_end_at_once_are_all_found(tmp_path: Path, hold: Hold) -> None:
    """Each removes what killed ones left, while others lock their new files."""
    killed = [hold(f"hold(Path(sys.argv[1]), 'web'); {FOREVER}") for _ in range(3)]
    for process in killed:
        process.kill()
    hold(f"print('held', flush=True); [os.fork() for _ in range(4)]; hold(Path(sys.argv[1]), 'web'); {FOREVER}")
    eventually(lambda: len(found(tmp_path)) == 16, what="all sixteen hold a file")


def test_the_process_id_inside_the_file_is_not_believed(tmp_path: Path, hold: Hold) -> None:
    process = hold(f"hold(Path(sys.argv[1]), 'web'); {FOREVER}")
    (file,) = held(tmp_path)
    file.path.write_text("1\n")
    assert list(held(tmp_path)) == [ProcessFile("web", process.pid, file.path)]


def test_a_process_that_holds_its_file_again_keeps_it(tmp_path: Path, hold: Hold) -> None:
    """A second look at its own file would release the lock."""
    process = hold(f"hold(Path(sys.argv[1]), 'web'); hold(Path(sys.argv[1]), 'web'); {FOREVER}")
    assert found(tmp_path) == {("web", process.pid)}
    assert len(files(tmp_path)) == 1


def test_a_file_that_was_created_again_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cleaner has opened the old file; before it locks it, the owner creates a new one under the same name."""
    path = tmp_path / FOLDER / "web-1.lock"
    path.parent.mkdir()
    path.write_text("old")

    def lock_late(_file: object, _how: int) -> None:
        path.unlink()
        path.write_text("new")

    monkeypatch.setattr("receiver.process.process_files.fcntl.lockf", lock_late)
    assert found(tmp_path) == set()
    assert path.read_text() == "new"


def test_a_process_whose_disk_was_slow_does_not_remove_its_own_file(tmp_path: Path, hold: Hold) -> None:
    """It looked for the files of killed processes after it had its own, which looks unheld from inside."""
    process = hold(
        "import threading\nfrom receiver.process import process_files as p\n"
        "really, looks, folder = p.held, threading.Event(), Path(sys.argv[1])\n"
        "p.held = lambda at: (looks.set(), time.sleep(0.5), really(at))[2]\n"
        "thread = threading.Thread(target=p.hold, args=(folder, 'worker'))\n"
        "thread.start(); looks.wait(); p.show_life(folder, 'worker'); thread.join()\n"
        f"{FOREVER}"
    )
    assert found(tmp_path) == {("worker", process.pid)}
