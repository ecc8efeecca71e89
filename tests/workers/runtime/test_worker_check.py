"""`storehooks worker --check` and the watchdog: a hung process is noticed, an outage of Redis is no fault."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from receiver.process.process_files import hold, show_life
from tests.receiver.process.test_start_checks import mounted
from tests.support.harness import Process, Server, System, comm, eventually
from tests.support.notify_socket import NotifySocket
from workers.cli.run import SILENT_SECONDS, workers_fault

WITHIN = 30.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NotifySocket]:
    found = NotifySocket(tmp_path)
    yield found
    found.close()


def check(system: System) -> int:
    return system.run_cli("worker", "--check").returncode


def child(supervisor: Process, name: str) -> int:
    direct = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    (found,) = [int(pid) for pid in direct if comm(int(pid)) == name]
    return found


def test_without_a_worker_the_check_fails_whatever_the_rest_of_the_config(make_system: Callable[..., System]) -> None:
    system = make_system()
    done = system.run_cli("worker", "--check")
    assert done.returncode == 1
    assert "no worker on this host uses" in done.stderr
    with open(system.config_file, "a") as file:
        file.write('[stores.west]\nunknown = 1\nsigning_secrets = ["env:NOT_SET_HERE"]\n')
    assert system.run_cli("worker", "--check").returncode == 1


def test_the_check_needs_no_valid_config(make_system: Callable[..., System]) -> None:
    """It passed with "not checked" while no worker was running."""
    system = make_system()
    text, own = system.config_file.read_text(), {"STOREHOOKS_REDIS__DATA_DIR": str(system.config.data_dir)}
    for broken in ("[[[ half an edit\n", "[workerz]\nx = 1\n", "[workers]\n"):
        system.config_file.write_text(text + broken)
        done = system.run_cli("worker", "--check")
        assert (done.returncode, done.stderr.count("no worker on this host uses")) == (1, 1), broken
    system.config_file.write_text(text)
    system.start("supervisor")
    eventually(lambda: check(system) == 0)
    system.config_file.write_text(text + "[[[ half an edit\n")
    assert check(system) == 0
    system.config_file.write_text(text.replace("data_dir =", "data_dir"))
    done = system.run_cli("worker", "--check")
    assert done.returncode == 0, "it may be right, and a mistake must not end the worker"
    assert f"not checked, since data_dir is not known: {system.config_file} is not valid TOML" in done.stderr
    for typo in ("[reddis]\nx = 1\n", "[workers]\n"):
        system.config_file.write_text((typo + text).replace("data_dir =", "data_dirs ="))
        done = system.run_cli("worker", "--check")
        assert (done.returncode, "not checked" in done.stderr) == (0, True), "it may be a mistake for data_dir"
    system.config_file.unlink()
    for variables, said in (({}, "not checked"), (own, "ok")):
        done = system.run_cli("worker", "--check", env=variables)
        assert (done.returncode, said in done.stdout + done.stderr) == (0, True)


def test_a_worker_that_shows_no_life_is_a_fault(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    held, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        hold(tmp_path, "worker")
        os.write(told, b"1")
        os.read(reader, 1)
        show_life(tmp_path, "worker")
        os.write(told, b"2")
        os.read(reader, 1)
        os._exit(0)
    os.read(held, 1)
    assert workers_fault(tmp_path) == ""
    (file,) = (tmp_path / "run").glob("worker-*.lock")
    for offset in (-SILENT_SECONDS - 1, 3600):  # silent, or before the clock was set back
        os.utime(file, (time.time() + offset,) * 2)
        assert f"process id {pid}" in workers_fault(tmp_path)
    os.write(writer, b"1")
    os.read(held, 1)
    eventually(lambda: workers_fault(tmp_path) == "")
    os.write(writer, b"1")
    os.waitpid(pid, 0)
    assert "no worker" in workers_fault(tmp_path)


def fill(folder: Path) -> list[Path]:
    """Take all space, or all files, that the disk has."""
    fillers = []
    with suppress(OSError):
        for number in range(1000):
            fillers.append(folder / f"core.{number}")
            fillers[-1].write_bytes(bytes(16 << 10))
    return fillers


@pytest.mark.parametrize("options", ["size=64k", "size=1m,nr_inodes=6"], ids=["no space", "no file"])
def test_a_worker_that_was_started_on_a_full_disk_needs_no_restart(system: System, options: str) -> None:
    """Its file was locked, but never touched again: the check failed for ever."""
    data = system.config.data_dir
    with mounted(data, f"{options},mode=700"):
        fillers = fill(data)
        (supervisor,) = system.start("supervisor")
        eventually(lambda: '"worker started"' in system.log("supervisor"), 60)
        for file in fillers:
            file.unlink(missing_ok=True)
        for file in data.glob("run/*.lock"):
            os.utime(file, (0, 0))
        eventually(lambda: check(system) == 0, what="it responds")
        eventually(lambda: [file.read_text() for file in data.glob("run/worker-*.lock")] == [f"{supervisor.pid}\n"])
        system.close()


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_hung_process_is_noticed_within_30_seconds_and_an_outage_of_redis_is_none(
    make_system: Callable[..., System], own_redis: Server, manager: NotifySocket
) -> None:
    system = make_system(url=own_redis.url)
    own_redis.kill()
    (supervisor,) = system.start("supervisor", env=manager.environ(watchdog=3.0))
    eventually(lambda: manager.states == ["READY=1"], 60, what="ready, though Redis is away")
    eventually(lambda: "waiting for it" in system.log("supervisor"), 30)
    until = time.monotonic() + WITHIN
    while time.monotonic() < until:
        assert check(system) == 0, "an outage at the start"
    own_redis.start()
    eventually(lambda: '"worker started"' in system.log("supervisor"), 60)
    for name in ("sh-worker", "sh-housekeeper"):
        hung = child(supervisor, name)
        os.kill(hung, signal.SIGSTOP)
        eventually(lambda: check(system) == 1, WITHIN, what=f"{name} is noticed")
        heard = len(manager.said)
        os.kill(hung, signal.SIGCONT)
        eventually(lambda: check(system) == 0, what=f"{name} responds again")
        eventually(lambda heard=heard: len(manager.said) > heard, what="so does the watchdog")
    supervisor.send(signal.SIGSTOP)
    eventually(lambda: check(system) == 1, WITHIN, what="a hung supervisor is noticed")
    supervisor.send(signal.SIGCONT)
    eventually(lambda: check(system) == 0)
    assert own_redis.process
    own_redis.process.send(signal.SIGSTOP)
    until = time.monotonic() + WITHIN
    while time.monotonic() < until:
        assert check(system) == 0, "an outage later"
    own_redis.process.send(signal.SIGCONT)
    supervisor.send(signal.SIGHUP)
    eventually(lambda: manager.states == ["READY=1", "RELOADING=1", "READY=1"], 60, what="reloaded")
    assert supervisor.stop(40) == 0
    assert manager.states[-1] == "STOPPING=1"
