"""`--follow`: what comes is printed once, in order, and the command ends at Ctrl-C and when nothing reads it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.harness import System, eventually, own_server
from tests.workers.cli.test_command_rules import failed_event, refuse


class Following:
    """A command that follows, with its output so far."""

    def __init__(self, system: System, *arguments: str) -> None:
        command = [sys.executable, "-m", "workers.cli", *arguments, "--follow", "--config", str(system.config_file)]
        self.file = system.folder / "followed"
        with open(self.file, "wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def lines(self) -> list[str]:
        return self.file.read_text().splitlines()

    def has(self, *texts: str) -> None:
        eventually(lambda: all(text in self.file.read_text() for text in texts), 30, what=f"it printed {texts}")

    def stop(self) -> str:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(20) == 0, self.file.read_text()
        return self.file.read_text()


@pytest.fixture
def follow(system: System) -> Iterator[Callable[..., Following]]:
    started: list[Following] = []

    def start(*arguments: str) -> Following:
        started.append(Following(system, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait(5)


def test_events_are_printed_in_order_of_acceptance_until_ctrl_c(
    system: System, follow: Callable[..., Following]
) -> None:
    before = [system.accept("order.created") for _ in range(3)]
    following = follow("events", "--json", "--limit", "2", "--topic", "order.*")
    following.has(before[2])
    others = [system.accept("product.updated")]
    after = [system.accept("order.created") for _ in range(25)]
    following.has(after[-1])
    text = following.stop()
    rows = [json.loads(line) for line in text.splitlines() if line]
    assert [row["id"] for row in rows] == [*before[1:], *after]
    assert not {before[0], *others} & set(text.split('"'))
    assert rows[0].keys() == json.loads(system.run_cli("events", "--json").stdout)[0].keys()


def test_failures_and_refusals_are_followed_too(system: System, follow: Callable[..., Following]) -> None:
    first = failed_event(system, data={"id": 1})
    failures = follow("failures")
    failures.has("HANDLER", first)
    second = failed_event(system, data={"id": 2})
    failures.has(second)
    lines = failures.stop().splitlines()
    assert [line.split()[0] for line in lines if line.split()] == ["EVENT", first, second]
    ids = refuse(system, 1)
    refused = follow("refused")
    refused.has("REASON", "signature-mismatch")
    ids += [*refuse(system, 1), *refuse(system, 1)]
    eventually(lambda: len(refused.lines()) == 4, 30, what="all are printed")
    assert [line.split()[0] for line in refused.stop().splitlines() if line.split()] == ["ID", *map(str, ids)]


def test_it_ends_when_nothing_reads_its_output(system: System) -> None:
    """Also if nothing comes any more: it does not wait for the next event."""
    event_id = system.accept()
    command = [sys.executable, "-m", "workers.cli", "events", "-f", "--json", "--config", str(system.config_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert event_id in process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_filters_of_runs_are_refused(system: System) -> None:
    for option in (["--status", "failed"], ["--handler", "shop.greet"], ["--error", "x"], ["--until", "1h"]):
        done = system.run_cli("events", "list", "--follow", *option)
        assert (done.returncode, "before they have runs" in done.stderr) == (2, True)


@pytest.mark.full
def test_an_outage_of_the_server_is_waited_for(tmp_path: Path) -> None:
    for name in ("server", "system"):
        (tmp_path / name).mkdir()
    with own_server(tmp_path / "server") as server:
        system = System(tmp_path / "system", server.url)
        first = system.accept()
        following = Following(system, "events", "--json")
        try:
            following.has(first)
            server.stop()
            following.has("Redis does not answer")
            server.start()
            second = system.accept()
            following.has(second)
            assert following.stop().count("Redis does not answer") == 1
        finally:
            following.process.kill()
            following.process.wait(5)
            system.close()
