"""`events tail` and `--follow`: what comes is printed once, in order, until Ctrl-C or until nothing reads it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from receiver.contract.compose import compose
from receiver.inbox import Outcome, keys
from receiver.inbox.outcomes import OutcomeKind
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import System, eventually, own_server
from tests.workers.cli.test_command_rules import failed_event, refuse


class Following:
    """A command that follows, with its output so far."""

    def __init__(self, system: System, *arguments: str) -> None:
        follow = [] if "tail" in arguments or "--watch" in arguments else ["--follow"]
        command = [sys.executable, "-m", "workers.cli", *arguments, *follow, "--config", str(system.config_file)]
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


@pytest.mark.full
def test_events_are_printed_in_order_of_acceptance_until_ctrl_c(
    system: System, follow: Callable[..., Following]
) -> None:
    before = [system.accept("order.created") for _ in range(3)]
    following = follow("events", "tail", "--json", "--limit", "2", "--topic", "order.*")
    following.has(before[2])
    others = [system.accept("product.updated")]
    after = [system.accept("order.created") for _ in range(25)]
    following.has(after[-1])
    text = following.stop()
    rows = [json.loads(line) for line in text.splitlines() if line]
    assert [row["id"] for row in rows] == [*before[1:], *after]
    assert not {before[0], *others} & set(text.split('"'))
    assert rows[0].keys() == {*json.loads(system.run_cli("events", "--json").stdout)[0], "cursor"}
    again = follow("events", "tail", "--json", "--topic", "order.*", "--after", rows[5]["cursor"])
    again.has(after[-1])
    assert [json.loads(line) for line in again.stop().splitlines() if line] == rows[6:]


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
    command = [sys.executable, "-m", "workers.cli", "events", "tail", "--json", "--config", str(system.config_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert event_id in process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


@pytest.mark.parametrize("status", ["settled", "failed"])
def test_events_are_printed_when_they_get_a_status(
    system: System, follow: Callable[..., Following], status: str
) -> None:
    how = {"settled": OutcomeKind.DONE, "failed": OutcomeKind.FAILED}[status]
    first = [ended(system, how) for _ in range(2)][-1]
    options = ("--topic", "order.*", "--store", "north", "--limit", "1")
    following = follow("events", "tail", "--json", "--status", status, *options)
    following.has(first)
    another = OutcomeKind.FAILED if status == "settled" else OutcomeKind.DONE
    others = [ended(system, another), ended(system, how, "south")]
    wanted = [ended(system, how) for _ in range(5)]
    following.has(wanted[-1])
    printed = [json.loads(line)["id"] for line in following.stop().splitlines() if line]
    assert printed == [first, *wanted]
    assert not set(others) & set(printed)


def test_a_cursor_is_not_for_a_status(system: System) -> None:
    refused = system.run_cli("events", "tail", "--status", "settled", "--after", "1")
    assert refused.returncode == 2
    assert "--after is not for --status" in refused.stderr


def ended(system: System, how: OutcomeKind, store: str = "north") -> str:
    system.accept(store=store)
    run = route(system.inbox, claim_one(system.inbox), GREET)[0]
    system.inbox.finish([Outcome(run, how, {"error": "no", "group": "aaaaaaaa"})])
    return run.stored.id


def test_counts_are_shown_again_and_again(system: System, follow: Callable[..., Following]) -> None:
    system.accept()
    watched = follow("stats", "--watch", "--json")
    watched.has('"accepted":1')
    system.accept()
    watched.has('"accepted":2')
    rows = [json.loads(line) for line in watched.stop().splitlines() if line]
    assert rows[0].keys() == json.loads(system.run_cli("stats", "--json").stdout).keys()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_event_is_printed_once_although_the_reader_pauses_and_the_server_restarts(tmp_path: Path) -> None:
    """10,000 events over HTTP, some of them spooled while the server is away and drained afterwards."""
    for name in ("server", "system"):
        (tmp_path / name).mkdir()
    (tmp_path / "system" / "data").mkdir(mode=0o700)
    with own_server(tmp_path / "server") as server:
        system = System(tmp_path / "system", server.url)
        system.start("web")
        command = [sys.executable, "-m", "workers.cli", "events", "tail", "--json", "--limit", "0"]
        process = subprocess.Popen([*command, "--config", str(system.config_file)], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        printed: list[str] = []
        go_on = threading.Event()
        go_on.set()

        def read() -> None:
            assert process.stdout
            for line in process.stdout:
                go_on.wait(120)
                printed.append(json.loads(line)["id"])

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        store = system.config.known_stores["north"]

        def deliver(number: int) -> str:
            now = time.time()
            request = compose(store, topic="order.created", delivery_id=f"msg_{number}", data={"id": number}, now=now)
            answer = system.post(request)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["id"])

        first = {deliver(0)}
        while not printed:
            first.add(deliver(-len(first)))
        with ThreadPoolExecutor(8) as senders:
            sent = list(senders.map(deliver, range(1, 3_001)))
            go_on.clear()
            sent += senders.map(deliver, range(3_001, 6_001))
            server.stop()
            sent += senders.map(deliver, range(6_001, 7_001))
            server.start()
            sent += senders.map(deliver, range(7_001, 10_001))
        go_on.set()
        eventually(lambda: set(sent) <= set(printed), 120, what="all are printed")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        reader.join(20)
        accepted: Any = system.client.zrange(keys.INDEX, 0, -1)
        order = [one.decode() for one in accepted]
        assert printed == order[len(order) - len(printed) :]
        assert set(order) - set(printed) <= first
        system.close()


@pytest.mark.full
def test_an_outage_of_the_server_is_waited_for(tmp_path: Path) -> None:
    for name in ("server", "system"):
        (tmp_path / name).mkdir()
    with own_server(tmp_path / "server") as server:
        system = System(tmp_path / "system", server.url)
        first = system.accept()
        following = Following(system, "events", "tail", "--json")
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
