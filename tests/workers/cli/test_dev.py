"""`storehooks dev` and the Procfile: all processes start, are restarted, and stop."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from receiver.contract.compose import Request
from receiver.inbox import EventQueries, connect, keys
from receiver.inbox import server_url as url_of
from receiver.inbox.redis.server_faults import describe
from receiver.process.process_files import held
from receiver.spool import REFUSED_FILE
from tests.support.console import Browser
from tests.support.harness import SECRET, Process, System, children_of, comm, eventually, free_port, gone, storehooks
from tests.support.programs import ROOT, start_command, with_times

HELLO = (
    "from workers import Router\nrouter = Router('shop')\n@router.on('*')\ndef greet(event, ctx):\n    return 'hi'\n"
)


class DevRun:
    """A `storehooks dev` with its own data directory."""

    def __init__(self, system: System) -> None:
        self.system = system
        text = system.config_file.read_text()
        system.config_file.write_text(re.sub(r'url = ".*"', 'url = ""', text, count=1))
        self.data = Path(system.config.redis.data_dir)

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> Process:
        log = self.system.folder / "dev.log"
        self.process = start_command("dev", *arguments, config=self.system.config_file, log=log, env=env)
        return self.process

    def handled(self) -> Process:
        log = self.system.folder / "dev.log"
        before = log.stat().st_size if log.exists() else 0
        process = self.start()
        eventually(lambda: "First event handled" in process.output()[before:], 40, what="a handled event")
        return process

    def accepts_a_delivery(self) -> bool:
        try:
            return self.system.post(self.system.request()).status_code == 200
        except httpx2.HTTPError:
            return False

    def children(self) -> dict[str, int]:
        """The process id of each child, by its role."""
        found: dict[str, int] = {}
        for pid in children_of(self.process.pid):
            name = comm(pid).removeprefix("sh-").replace("valkey-server", "server")
            found.setdefault(name, pid)
        return found


@pytest.fixture
def dev(make_system: Callable[..., System]) -> Iterator[DevRun]:
    run = DevRun(make_system(plugin=HELLO))
    yield run
    if run.process.alive:
        run.process.stop()


GARBAGE: list[bytes] = [
    b"",
    b"garbage",
    b"\xff\xfe\x00",
    b"null",
    b"7",
    b'"text"',
    b"{}",
    b"[1, null, {}, []]",
    b'[["too", "few"]]',
    b"[[1, 2, 3, 4, 5, 6]]",
    b'[["id|shop.greet", "done", "north", "order.created", "r", "not json"]]',
    b'[["id|shop.greet", "done", "north", "order.created", "r", "[]"]]',
    b'[["id|shop.greet", "done", "north", "order.created", "r", "{\\"ms\\": \\"soon\\"}"]]',
    b'[["id|shop.greet", "no-outcome", "north", "order.created", "r", "{}"]]',
    b"[" * 100_000,
    b"x" * 20_000_000,
]


@pytest.fixture(scope="module")
def shared_dev(tmp_path_factory: pytest.TempPathFactory, server_url: str) -> Iterator[DevRun]:
    """One for several tests, which it survives."""
    system = System(tmp_path_factory.mktemp("dev"), server_url, plugin=HELLO)
    (system.folder / "data").mkdir()
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("127.0.0.1:0", f"127.0.0.1:{free_port()}", 1))
    run = DevRun(system)
    run.handled()
    yield run
    run.process.stop()
    system.close()


def test_dev_prints_a_link_that_opens_its_console(shared_dev: DevRun) -> None:
    found = re.search(r"console +(http://\S+)(/login\?once=\S+)", shared_dev.process.output())
    assert found, shared_dev.process.output()
    visitor = Browser(found[1])
    eventually(lambda: visitor.answers(found[2]), 20, what="the console answers")
    assert visitor.post("/login/link", once=found[2].partition("=")[2]).status_code == 303
    assert visitor.get("/").status_code == 200
    log = (shared_dev.data / "logs" / "console.log").read_text()
    assert found[2] not in log
    assert "Traceback" not in log


def test_dev_stops_after_n_events_with_a_summary(dev: DevRun) -> None:
    process = dev.start("--events", "40")
    assert process.wait(30) == 0, process.output()
    assert "accepted 40 = settled 40 + open 0 + failed 0    duplicates 0" in process.output()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_dev_stops_cleanly_on_a_signal(dev: DevRun, number: signal.Signals) -> None:
    process = dev.handled()
    below = children_of(process.pid)
    process.send(number)
    assert process.wait(10) == 0
    assert "all processes ended" in process.output()
    assert [pid for pid in below if not gone(pid)] == []
    left = {path.name for path in dev.data.iterdir()} - {"history"}  # the mover makes it when it first looks
    assert left == {"known_data", "logs", "redis", "run", "sandbox-north.sqlite3"}
    assert list((dev.data / "run").iterdir()) == []


def test_all_children_end_when_dev_is_killed(dev: DevRun) -> None:
    process = dev.handled()
    below = children_of(process.pid)
    assert len(below) >= 6
    process.kill()
    eventually(lambda: all(gone(pid) for pid in below), 6, what="all children ended")


def test_the_banner_is_printed_when_the_receiver_listens(dev: DevRun) -> None:
    """A script that waits for the banner can send at once."""
    process = dev.start("--no-sandbox")
    eventually(lambda: "/webhooks/north" in process.output(), 20)
    assert dev.accepts_a_delivery()


def test_a_receiver_that_does_not_start_is_reported(dev: DevRun) -> None:
    """Its own check fails: a file in its data directory has another format."""
    with closing(sqlite3.connect(dev.data / REFUSED_FILE)) as file:
        file.execute("PRAGMA user_version = 999")
    process = dev.start("--no-sandbox", env=with_times({"workers.cli.dev.START_SECONDS": 1.0}))
    eventually(lambda: "the receiver does not listen; see" in process.output(), 25)
    assert "receiver.log" in process.output()


@pytest.mark.parametrize("name", ["server", "receiver", "worker", "housekeeper"])
def test_a_killed_process_is_restarted_at_once_and_reported(shared_dev: DevRun, name: str) -> None:
    process = shared_dev.process
    before = shared_dev.children()[name]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: f"{name} was killed by SIGKILL; restarting it" in process.output(), 6)
    eventually(lambda: shared_dev.children().get(name, before) != before, 6)
    lines = process.output().count("shop.greet")
    eventually(shared_dev.accepts_a_delivery, 15)
    eventually(lambda: process.output().count("shop.greet") > lines, 15, what="events are handled again")


def test_garbage_on_the_channel_of_the_journal_changes_nothing(shared_dev: DevRun) -> None:
    process, client = shared_dev.process, connect(url_of("", shared_dev.data), timeout=5.0)
    before = len(process.output().splitlines())
    for garbage in GARBAGE:
        assert client.publish(keys.JOURNAL, garbage) == 1
    client.close()
    eventually(shared_dev.accepts_a_delivery, 15)
    lines = eventually(lambda: [line for line in process.output().splitlines()[before:] if "shop.greet" in line])
    assert process.alive
    assert "Traceback" not in process.output()
    assert not any("no-outcome" in line or "soon" in line for line in lines)


def test_a_second_dev_on_the_same_data_is_refused(shared_dev: DevRun) -> None:
    text = shared_dev.system.config_file.read_text()
    elsewhere = shared_dev.system.folder / "elsewhere.toml"
    elsewhere.write_text(re.sub(r"127\.0\.0\.1:\d+", lambda _: f"127.0.0.1:{free_port()}", text))
    refused = storehooks("dev", "--config", str(elsewhere))
    assert refused.returncode == 2
    assert f"another `storehooks dev` (process {shared_dev.process.pid})" in refused.stdout + refused.stderr


def test_a_taken_port_is_reported_before_anything_starts(dev: DevRun) -> None:
    with socket.create_server(("127.0.0.1", dev.system.port)):
        process = dev.start()
        assert process.wait(20) == 2
    assert "cannot listen on" in process.output()
    assert not (dev.data / "redis").exists()


def test_a_saved_plugin_is_reloaded_unless_it_is_broken(shared_dev: DevRun) -> None:
    process, plugin = shared_dev.process, shared_dev.system.plugin
    plugin.write_text(HELLO.replace("'hi'", "'good day'"))
    eventually(lambda: '"good day"' in process.output(), 15)
    plugin.write_text("nonsense(")
    eventually(lambda: "not reloaded, the old one stays in use" in process.output(), 15)
    lines = process.output().count("good day")
    eventually(lambda: process.output().count("good day") > lines, 15)
    plugin.write_text(HELLO)  # a restarted process must be able to load it


@pytest.mark.full
def test_a_removed_handler_is_reported_with_the_command_that_retires_it(dev: DevRun) -> None:
    process = dev.handled()
    dev.system.plugin.write_text(HELLO.replace("def greet", "def welcome"))
    eventually(lambda: "plugins reloaded; new: shop.welcome" in process.output(), 15)
    eventually(lambda: "handler shop.greet was removed; " in process.output())
    eventually(lambda: "handlers retire shop.greet" in process.output())
    eventually(lambda: "shop.welcome  done" in process.output(), 15)
    done = dev.system.run_cli("handlers", "retire", "shop.greet", "--yes")
    assert done.stdout.startswith("shop.greet is retired; "), done.stderr
    events = {one["id"] for one in json.loads(dev.system.run_cli("events", "--json").stdout)}
    after = eventually(lambda: _settled_but_not(dev, events), 15, what="an event that is settled without shop.greet")
    assert [
        run["handler"] for run in json.loads(dev.system.run_cli("events", "show", after, "--json").stdout)["runs"]
    ] == ["shop.welcome"]


def _settled_but_not(dev: DevRun, known: set[str]) -> str:
    events = json.loads(dev.system.run_cli("events", "--status", "settled", "--json").stdout)
    return next((one["id"] for one in events if one["id"] not in known), "")


def test_a_plugin_added_to_the_config_is_loaded_and_watched(dev: DevRun) -> None:
    process = dev.handled()
    other = dev.system.folder / "other.py"
    other.write_text("nonsense(")
    text = dev.system.config_file.read_text()
    dev.system.config_file.write_text(text.replace("plugins = [", f'plugins = ["{other}", '))
    eventually(lambda: "not reloaded, the old one stays in use" in process.output(), 15)
    other.write_text(HELLO.replace("'shop'", "'other'").replace("'hi'", "'from the other'"))
    eventually(lambda: "plugins reloaded; new: other.greet" in process.output(), 15)
    eventually(lambda: '"from the other"' in process.output(), 15)
    other.write_text(HELLO.replace("'shop'", "'other'").replace("'hi'", "'changed'"))
    eventually(lambda: '"changed"' in process.output(), 15)


def test_an_invalid_config_is_reported_and_the_old_one_stays_in_use(dev: DevRun) -> None:
    process = dev.handled()
    config_file = dev.system.config_file
    text = config_file.read_text()

    def save(text: str) -> None:
        """In one step: a worker that starts at this moment must not read half of the file."""
        config_file.with_suffix(".new").write_text(text)
        config_file.with_suffix(".new").replace(config_file)

    save(text + "[nonsense]\n[more_of_it]\n")
    eventually(lambda: "not reloaded, the old one stays in use" in process.output(), 15)
    eventually(lambda: re.search(r"^ {13}\S*config.toml:\d+: .*more_of_it", process.output(), re.MULTILINE))
    save(text.replace("[workers]", "[workers]\nprocesses = 2"))
    eventually(lambda: "worker 2" in dev.children(), 15)
    save(text)
    eventually(lambda: "worker 2" not in dev.children(), 15)
    assert "worker 2 ended" not in process.output()
    lines = process.output().count("shop.greet")
    eventually(lambda: process.output().count("shop.greet") > lines, 15)


def test_workers_that_are_killed_while_the_config_is_invalid_go_on_with_the_old_one(dev: DevRun) -> None:
    process = dev.start()
    log = dev.data / "logs" / "worker.log"
    eventually(lambda: log.exists() and "worker started" in log.read_text(), 20)
    eventually(lambda: {"web", "console"} <= {one.role for one in held(dev.data)}, 20, what="each has read its config")
    dev.system.config_file.write_text(dev.system.config_file.read_text() + "[[[ half an edit\n")
    eventually(lambda: "not reloaded, the old one stays in use" in process.output(), 20)
    for name in ("worker", "housekeeper"):
        os.kill(dev.children()[name], signal.SIGKILL)
    eventually(lambda: log.read_text().count("worker started") == 2, 20)
    assert "exit code" not in process.output()
    lines = process.output().count("shop.greet")
    eventually(lambda: process.output().count("shop.greet") > lines, 20, what="events are handled")


def test_hup_reloads_also_what_processes_that_are_started_later_use(dev: DevRun) -> None:
    """As after `stores remove`: a file that is gone is not a changed one."""
    included = dev.system.folder / "stores.d" / "west.toml"
    included.parent.mkdir(exist_ok=True)
    included.write_text(f'[stores.west]\nsigning_secrets = ["{SECRET}"]\n')
    process = dev.handled()
    included.unlink()
    process.send(signal.SIGHUP)
    eventually(lambda: "config.toml and plugins reloaded" in process.output(), 20)


def test_refused_deliveries_are_printed_a_few_at_a_time(dev: DevRun) -> None:
    process = dev.handled()
    done = dev.system.run_cli("send", "order.created", "--store", "north", "--tamper", "body")
    assert done.returncode == 1
    eventually(lambda: re.search(r"north  refused          1     signature-mismatch\n", process.output()), 5)
    eventually(lambda: re.search(r"-- why: \S+ verify --refused 1 --config \S+\n", process.output()), 5)
    for _ in range(30):
        assert dev.system.post(Request({}, b"{}")).status_code == 401

    def shown() -> int:
        return len(re.findall(r"north  refused ", process.output()))

    def counted() -> int:
        return sum(int(number) for number in re.findall(r"-- (\d+) more refused; why: ", process.output()))

    eventually(lambda: shown() + counted() == 31, 5)
    assert shown() < 31


def test_the_summary_counts_a_delivery_refused_just_before_the_end(dev: DevRun) -> None:
    """The receiver counts refusals, and writes the counts once a second."""
    process = dev.handled()
    for _ in range(3):
        assert dev.system.post(Request({}, b"{}")).status_code == 401
    process.send(signal.SIGINT)
    assert process.wait(10) == 0
    assert process.output().rstrip().endswith("refused 3")


def test_events_survive_a_restart(dev: DevRun) -> None:
    assert dev.start("--events", "5").wait(30) == 0
    dev.handled()
    client = connect(url_of("", dev.data), timeout=2.0)
    eventually(lambda: EventQueries(client).counters().total["accepted"] >= 6, 10)


def test_dev_with_a_redis_of_ones_own_says_that_the_events_are_there(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO)
    process = start_command("dev", "--events", "5", config=system.config_file, log=system.folder / "dev.log")
    system.processes.append(process)
    assert process.wait(60) == 0, process.output()
    assert f"all processes ended, events stored in Redis at {describe(system.client)}\n" in process.output()


@pytest.mark.full
def test_the_procfile_runs_under_honcho(make_system: Callable[..., System], server_url: str) -> None:
    system = make_system(plugin=HELLO)
    text = re.sub(r'url = ".*"', 'url = ""', system.config_file.read_text(), count=1)
    system.config_file.write_text(text)
    scripts = os.path.dirname(sys.executable)
    process = Process(
        [os.path.join(scripts, "honcho"), "start", "--procfile", str(ROOT / "Procfile"), "--no-prefix"],
        log=system.folder / "honcho.log",
        env={
            "REDIS_URL": server_url,
            "STOREHOOKS_CONFIG": str(system.config_file),
            "STOREHOOKS_RECEIVER__BIND": f"127.0.0.1:{system.port}",
            "PATH": f"{scripts}:{os.environ['PATH']}",
        },
    )
    system.processes.append(process)
    eventually(system.web_answers, 15, what="the receiver answers")
    assert system.settled(system.deliver(), within=15) == "settled"
    below = children_of(process.pid)
    process.send(signal.SIGTERM)
    process.wait(15)
    eventually(lambda: all(gone(pid) for pid in below), 10)
