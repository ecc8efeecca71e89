"""A server over its maxmemory refuses new deliveries only: workers start and finish, and operators can look and act.

Redis, unlike Valkey 9, then refuses every command inside MULTI, reads too. So the program is redis-server if there is
one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from receiver.inbox import keys
from tests.support.harness import Server, System, eventually, own_server

PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("*")
def greet(event, ctx):
    pass
"""
QUICK = {
    "workers.runtime.worker.worker.HEARTBEAT_EVERY": 0.3,
    "workers.runtime.worker.wake_ups.WAIT_SECONDS": 1,
    "receiver.logs.BEGIN_SECONDS": 0.1,
}


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "full"
    folder.mkdir()
    with own_server(folder, program=shutil.which("redis-server") or "") as server:
        yield server


def is_over_maxmemory(server: Server) -> None:
    server.client.config_set("maxmemory", 1)


def lines_of(system: System, name: str, text: str) -> int:
    return sum(text in line for line in system.log(name).splitlines())


def test_workers_started_at_maxmemory_finish_open_runs(make_system: Callable[..., System], full: Server) -> None:
    """They ended with exit code 1, again and again."""
    system = make_system(url=full.url, plugin=PLUGIN)
    first, second = system.accept(), system.accept()
    is_over_maxmemory(full)
    system.start("supervisor")
    assert {system.settled(one) for one in (first, second)} == {"settled"}
    assert "ended with exit code" not in system.log("supervisor")


def test_at_maxmemory_an_operator_can_look_and_act(make_system: Callable[..., System], full: Server) -> None:
    """The commands ended with exit code 2, and doctor saw only a server that answers with an error."""
    system = make_system(url=full.url, plugin=PLUGIN)
    system.start("supervisor")
    settled = system.accept()
    assert system.settled(settled) == "settled"
    assert system.run_cli("handlers", "pause", "shop.greet", "--yes").returncode == 0
    is_over_maxmemory(full)
    reads = [[noun] for noun in ("topics", "handlers", "events", "failures", "stats", "hosts", "stores", "refused")]
    reads += [["events", "show", settled], ["handlers", "explain", settled], ["stores", "show", "north"]]
    reads += [["handlers", "run", "shop.greet", "--event", settled]]
    answers = [system.run_cli(*command) for command in reads]
    told = [(one.args, one.stderr + one.stdout) for one in answers if one.returncode != 0]
    assert not told, told
    doctor = system.run_cli("doctor").stdout
    assert "used: new deliveries go to the spool" in doctor
    assert "shop.greet is paused" in doctor
    assert "FAIL  server" not in doctor
    for command in (["handlers", "resume", "shop.greet", "--yes"], ["events", "replay", settled, "--yes"]):
        assert (answer := system.run_cli(*command)).returncode == 0, answer.stderr
    eventually(lambda: not system.client.smembers(keys.PAUSED))


def test_at_maxmemory_a_worker_logs_once_what_is_refused(make_system: Callable[..., System], full: Server) -> None:
    """It logged at each heartbeat that the server refuses a command, and at each claim that it no longer does."""
    system = make_system(url=full.url, plugin=PLUGIN)
    system.start("worker", quicker=QUICK)
    assert system.settled(system.accept()) == "settled"
    is_over_maxmemory(full)
    eventually(lambda: "refuses to wait for wake-ups" in system.log("worker"))
    for _ in range(4):
        last = full.client.hget(keys.DECLARED_AT, "@")
        eventually(lambda last=last: full.client.hget(keys.DECLARED_AT, "@") != last, what="another heartbeat")
    full.client.config_set("maxmemory", 0)
    eventually(lambda: "waiting for wake-ups is possible again" in system.log("worker"))
    assert lines_of(system, "worker", "refuses to wait for wake-ups") == 1
    assert lines_of(system, "worker", "is possible again") == 1
    assert lines_of(system, "worker", "refuses") == 1
