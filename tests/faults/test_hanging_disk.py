"""A disk of `data_dir` that hangs, while Redis is elsewhere and works: no process waits for it, not even to start."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from receiver.process.process_files import held
from tests.support.harness import OTHER_SECRET, Server, System, children_of, eventually
from tests.support.mounted_disk import hanging, mounted_disk
from tests.support.notify_socket import NotifySocket
from workers.cli.run import SILENT_SECONDS

PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("order.created")
def greet(event, ctx):
    return "hello"
"""
DOCTOR_SECONDS = 15.0
"""It takes 4 s for requests, and loads the plugins; on a busy machine that takes longer."""
pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]


@pytest.fixture
def system(make_system: Callable[..., System], own_redis: Server) -> Iterator[System]:
    system = make_system(url=own_redis.url, plugin=PLUGIN)
    with mounted_disk(system.folder / "image", system.config.data_dir, size="100M"):
        yield system
        system.close()


def test_web_serves_reloads_and_replaces_a_killed_process(system: System) -> None:
    """A new web process, and the master at HUP, waited for the disk: no delivery was answered until it did."""
    (web,) = system.start("web")
    system.deliver()
    with hanging(system.config.data_dir):
        (serving,) = children_of(web.pid)
        os.kill(serving, signal.SIGKILL)
        eventually(lambda: [one for one in children_of(web.pid) if one != serving], what="there is another one")
        eventually(system.web_answers)
        system.deliver()
        added = f'\n[stores.added]\nsigning_secrets = ["{OTHER_SECRET}"]\n'
        system.config_file.write_text(system.config_file.read_text() + added)
        web.send(signal.SIGHUP)
        eventually(lambda: system.post(system.request(store="added"), "added").status_code == 200)
    assert system.identity_holds()


def test_web_starts_without_the_disk_and_uses_it_once_it_answers(system: System) -> None:
    with hanging(system.config.data_dir):
        system.start("web")
        system.deliver()
        assert "the disk of data_dir does not answer" in system.log("web")
    eventually(lambda: list(held(system.config.data_dir)), what="it has its process file now")


def test_workers_handle_events_are_replaced_and_show_life(system: System, tmp_path: Path) -> None:
    """The supervisor waited in its sign of life: systemd would have ended it, and nothing replaced a killed worker."""
    with closing(NotifySocket(tmp_path)) as manager:
        (supervisor,) = system.start("supervisor", env=manager.environ(watchdog=3))
        system.start("web")
        assert system.settled(system.deliver()) == "settled"
        with hanging(system.config.data_dir):
            for pid in children_of(supervisor.pid):
                os.kill(pid, signal.SIGKILL)
            assert system.settled(system.deliver()) == "settled"
            before = len(manager.said)
            eventually(lambda: "WATCHDOG=1" in manager.said[before:])


def test_doctor_names_the_disk_and_ends_in_time(system: System) -> None:
    """It showed nothing until the disk answered, and then it did not say that the disk had hung."""
    system.start("web", "supervisor")
    system.deliver()
    with hanging(system.config.data_dir):
        began = time.monotonic()
        said = system.run_cli("doctor").stdout
        assert "does not answer: without the server, every delivery is answered 503" in " ".join(said.split())
        assert time.monotonic() - began < DOCTOR_SECONDS
    assert "does not answer" not in system.run_cli("doctor").stdout


def test_commands_about_refused_deliveries_say_that_the_disk_hangs(system: System) -> None:
    """They printed nothing until it answered."""
    system.start("web")
    assert system.post(system.request(store="south"), "north").status_code == 401
    eventually(lambda: "signature" in system.run_cli("refused").stdout, what="it is listed")
    with hanging(system.config.data_dir):
        for arguments in (["refused"], ["verify", "--refused", "last"], ["refused", "release", "--dry-run"]):
            done = system.run_cli(*arguments)
            assert (done.returncode, "the disk does not answer" in " ".join(done.stderr.split())) == (2, True), done


def test_the_probe_of_workers_does_not_ask_for_a_restart(system: System) -> None:
    """A restart would not help: it would wait for the disk, too."""
    system.start("supervisor")
    eventually(lambda: system.run_cli("worker", "--check").returncode == 0)
    with hanging(system.config.data_dir):
        (file,) = (one for one in held(system.config.data_dir) if one.role == "worker")
        eventually(lambda: file.silent_for > SILENT_SECONDS, within=2 * SILENT_SECONDS)
        done = system.run_cli("worker", "--check")
        assert (done.returncode, "the disk does not answer" in done.stderr) == (0, True), done.stderr
    eventually(lambda: system.run_cli("worker", "--check").stdout == "ok\n")
