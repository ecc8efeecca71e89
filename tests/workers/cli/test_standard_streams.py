"""Standard streams that are closed or full.

With closed ones, programs work, and no file or socket gets the number of a closed stream. With a full one, a command
says so in one sentence, with an exit code of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.harness import Process, System, children_of, eventually
from tests.support.programs import ROOT, with_times

pytestmark = pytest.mark.full  # it starts many processes

CLOSED = {">&-": {1}, "2>&-": {2}, "<&- >&- 2>&-": {0, 1, 2}}
PLUGIN = """
from workers import Router

router = Router("shop")
@router.on("order.*")
def greet(event, ctx):
    print("hi", flush=True)
    return "hi"
"""


def with_streams(closed: str, *words: str) -> list[str]:
    """The command of one of our modules, with streams as a shell's redirections say."""
    return ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", *words]


def start(system: System, closed: str, *words: str) -> Process:
    command = with_streams(closed, *words, "--config", str(system.config_file))
    process = Process(command, log=system.folder / f"{len(system.processes)}.log", env=with_times({}))
    system.processes.append(process)
    return process


def streams(pid: int) -> list[str]:
    return [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)]


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize("words", [("workers.cli", "web"), ("receiver.server.web",)])
def test_web_starts_with_closed_streams(system: System, closed: str, words: tuple[str, ...]) -> None:
    web = start(system, closed, *words)
    eventually(lambda: system.web_answers() or not web.alive, what="web answers")
    assert web.alive, web.output()
    system.deliver()
    for pid in (web.pid, *children_of(web.pid)):
        opened = streams(pid)
        assert [opened[number] for number in CLOSED[closed]] == ["/dev/null"] * len(CLOSED[closed]), opened


@pytest.mark.parametrize("words", [("workers.cli", "worker"), ("workers",)])
def test_workers_start_and_run_handlers_with_closed_streams(
    make_system: Callable[..., System], words: tuple[str, ...]
) -> None:
    system = make_system(plugin=PLUGIN)
    worker = start(system, "<&- >&- 2>&-", *words)
    event = system.accept()
    eventually(lambda: system.status(event) == "settled" or not worker.alive, what="the event is settled")
    assert worker.alive
    assert all(streams(pid) == ["/dev/null"] * 3 for pid in (worker.pid, *children_of(worker.pid)))


def test_the_console_starts_with_closed_streams(system: System) -> None:
    console = start(system, "<&- >&- 2>&-", "workers.cli", "console")
    eventually(lambda: len(children_of(console.pid)) >= 2 or not console.alive, what="the console's processes run")
    assert console.alive
    assert streams(console.pid) == ["/dev/null"] * 3


@pytest.mark.parametrize("closed", CLOSED)
def test_commands_work_with_closed_streams(system: System, closed: str) -> None:
    words = with_streams(closed, "workers.cli", "stores", "pause", "north", "--yes")
    done = run(*words, "--config", str(system.config_file))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    words = with_streams(closed, "workers.cli", "stores", "--config", str(system.config_file))
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("paused" in done.stdout) == (1 not in CLOSED[closed])


def test_what_needs_an_answer_is_not_asked_with_standard_input_closed(system: System) -> None:
    words = with_streams("<&-", "workers.cli", "stores", "pause", "north", "--config", str(system.config_file))
    done = run(*words)
    assert done.returncode == 2
    assert "confirm it with --yes" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_change_whose_output_is_lost_says_so_with_an_exit_code_of_its_own(system: System, unbuffered: str) -> None:
    words = ("workers.cli", "stores", "pause", "north", "--yes", "--config", str(system.config_file))
    done = run(*with_streams(">/dev/full", *words), unbuffered=unbuffered)
    said = "the output could not be written (No space left on device); what the command changes may have been changed"
    assert (done.returncode, done.stderr) == (3, f"storehooks: {said}\n")
    assert system.administration.paused() == {"store:north"}


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("words", "full", "code"),
    [
        (("--help",), ">/dev/full", 3),
        (("scheme",), ">/dev/full", 3),
        (("scheme", "--json"), ">/dev/full 2>&1", 3),
        (("scheme",), "2>/dev/full", 0),
        (("nonsense",), ">/dev/full", 2),
        (("nonsense",), "2>/dev/full", 3),
    ],
)
def test_only_a_lost_output_has_that_exit_code(words: tuple[str, ...], full: str, code: int, unbuffered: str) -> None:
    done = run(*with_streams(full, "workers.cli", *words), unbuffered=unbuffered)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def run(*command: str, unbuffered: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ, check=False, timeout=60)
