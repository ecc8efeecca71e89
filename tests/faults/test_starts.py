"""The time in which processes start: Redis may be away, and signals may arrive before their handlers are there."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.support.harness import Process, Server, System, children_of, comm, eventually
from workers.testing.local_system import free_port

WAITS = "the Redis server cannot be used yet; waiting for it"
WAITED = "the Redis server can be used"
PLUGIN = """
import os, time
from workers import Router
router = Router("shop")
@router.on("order.created")
def greet(event, ctx):
    return "hello"
"""
SLOW = PLUGIN + (
    """
folder = os.path.dirname(os.path.realpath("{folder}/shop.py"))
open(folder + "/importing", "w").close()
while not os.path.exists(folder + "/go"):
    time.sleep(0.01)
"""
)


def lines(system: System, name: str, event: str) -> list[dict[str, object]]:
    found = [orjson.loads(line) for line in system.log(name).splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def slow_to_import(system: System) -> System:
    """Let the plugin's import wait for the file `go`."""
    system.plugin.write_text(SLOW.replace("{folder}", str(system.folder)))
    return system


@pytest.mark.parametrize("process", ["supervisor", "worker", "housekeeper"])
def test_a_process_that_starts_without_redis_waits_for_it(
    make_system: Callable[..., System], own_redis: Server, process: str
) -> None:
    """`storehooks worker` ended with exit code 2, and a Procfile runner then ended `storehooks web`, too."""
    system = make_system(plugin=PLUGIN, url=own_redis.url)
    event_id = system.accept()
    own_redis.kill()
    (started,) = system.start(process)
    eventually(lambda: lines(system, process, WAITS))
    assert "does not answer" in str(lines(system, process, WAITS)[0]["why"])
    assert started.alive
    own_redis.start()
    eventually(lambda: lines(system, process, WAITED))
    if process != "housekeeper":
        assert system.settled(event_id) == "settled"
    assert started.alive
    assert (len(lines(system, process, WAITS)), len(lines(system, process, WAITED))) == (1, 1)
    assert "restarting" not in system.log(process)


@pytest.mark.timed
@pytest.mark.parametrize("process", ["supervisor", "worker", "housekeeper"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_waits_for_redis_ends_at_once_when_it_is_asked_to(
    make_system: Callable[..., System], process: str, number: signal.Signals
) -> None:
    system = make_system(url=f"redis://127.0.0.1:{free_port()}")
    (started,) = system.start(process)
    eventually(lambda: lines(system, process, WAITS))
    began = time.monotonic()
    started.send(number)
    assert started.wait() == 0
    assert time.monotonic() - began < 4
    assert "Traceback" not in system.log(process)


def test_a_worker_whose_redis_is_lost_while_it_validates_its_plugins_works_later(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = slow_to_import(make_system(url=own_redis.url))
    event_id = system.accept()
    (worker,) = system.start("worker")
    eventually((system.folder / "importing").exists)
    own_redis.kill()
    (system.folder / "go").touch()
    eventually(lambda: "worker started" in system.log("worker"))
    own_redis.start()
    assert system.settled(event_id) == "settled"
    assert worker.alive
    assert "Traceback" not in system.log("worker")


@pytest.mark.parametrize("process", ["supervisor", "worker"])
def test_hup_while_plugins_are_validated_is_a_reload_after_the_start(
    make_system: Callable[..., System], process: str
) -> None:
    """It ended the process, without a line in the log."""
    system = slow_to_import(make_system())
    (started,) = system.start(process)
    eventually((system.folder / "importing").exists)
    system.plugin.write_text(PLUGIN.replace("hello", "good day"))
    started.send(signal.SIGHUP)
    (system.folder / "go").touch()
    eventually(lambda: lines(system, process, "reloaded"), what=system.log(process)[-500:])
    event_id = system.accept()
    eventually(lambda: (run := system.run_of(event_id, "shop.greet")) and run.result == "good day")
    assert started.alive
    assert "restarting" not in system.log(process)


def handles_hup(pid: int) -> bool:
    """Whether HUP would not end a process now: it is blocked, ignored or has a handler."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return any(int(status[mask], 16) >> (signal.SIGHUP - 1) & 1 for mask in ("SigBlk", "SigIgn", "SigCgt"))


@pytest.mark.parametrize(
    ("command", "started", "reloaded"),
    [("worker", "worker started", "supervisor reloaded"), ("web", "web listens", "Handling signal: hup")],
)
def test_hup_at_any_moment_of_a_start_is_one_reload_after_it(
    make_system: Callable[..., System], command: str, started: str, reloaded: str
) -> None:
    system = make_system(plugin=PLUGIN)
    log = system.folder / f"{command}.log"
    program = [str(Path(sys.executable).with_name("storehooks")), command, "--config", str(system.config_file)]
    process = Process(program, log=log)
    system.processes.append(process)
    # The interpreter itself takes a moment before any line of ours runs; then our imports take most of the start.
    eventually(lambda: handles_hup(process.pid))
    executed = comm(process.pid)
    assert executed == "storehooks", "HUP is held before the process is replaced by the program"
    while started not in process.output():
        assert process.alive, process.output()
        process.send(signal.SIGHUP)
        time.sleep(0.01)
    eventually(lambda: reloaded in process.output())
    eventually(lambda: children_of(process.pid))
    assert process.alive
    assert "killed by SIGHUP" not in process.output()
    process.stop(within=45)


SLOW_WEB = """
import sys, time
from pathlib import Path
from receiver.server import web

folder, step = Path(sys.argv.pop(1)), sys.argv.pop(1)
do_step = getattr(web, step)

def slow(config):
    (folder / "loading").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return do_step(config)

setattr(web, step, slow)
web.main()
"""


@pytest.mark.parametrize("step", ["begin_worker", "start_pipeline"])
def test_a_web_process_that_is_asked_to_end_while_it_loads_ends_when_it_has(system: System, step: str) -> None:
    """It went on to listen, and was killed 8 s later with what it served."""
    command = [sys.executable, "-c", SLOW_WEB, str(system.folder), step, "--config", str(system.config_file)]
    web = Process(command, log=system.folder / "web.log")
    system.processes.append(web)
    eventually((system.folder / "loading").exists)
    web.send(signal.SIGTERM)
    eventually(lambda: "Handling signal: term" in web.output())
    (system.folder / "go").touch()
    eventually(lambda: not web.alive, 5)


def test_hup_ends_no_process_that_does_not_read_the_config(make_system: Callable[..., System]) -> None:
    """An operator may send it to every process of ours by name."""
    system = make_system(plugin=PLUGIN)
    web, worker = system.start("web", "worker")
    event_id = system.accept()
    assert system.settled(event_id) == "settled"
    below = [*children_of(web.pid), *children_of(worker.pid)]
    assert len(below) == 3
    assert all(map(handles_hup, below))
