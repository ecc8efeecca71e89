"""An outage of Redis leaves few lines: in each process one when it begins, one a minute, and one when it ends."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable

import pytest

from receiver.inbox import keys
from receiver.spool import open_events
from tests.support.harness import Server, System, eventually

PLUGIN = """
from workers import Router
router = Router("shop")

@router.on("order.*")
def greet(event, ctx):
    return "hello"
"""
MORE = """
[secrets]
key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
[stores.east]
base_url = "http://127.0.0.1:9"
allow_private = true
auth = {token = "t"}
"""
PROCESSES = {"web": 2, "worker": 2, "housekeeper": 1}
ENDS = {
    "the Redis server does not answer": "the Redis server answers again",
    "could not write the worker's RQ registration": "the worker's RQ registration is written again",
    "subscription checks are not possible now": "subscription checks are possible again",
    "the inbox cannot take deliveries": "the inbox takes deliveries again",
    "the spool cannot be drained now": "the spool can be drained again",
    "the keyring cannot be read; using this host's copy": "the keyring can be read again",
}
"""The lines of an outage, and the line at its end."""


class Outage:
    """The server is away for a while, and deliveries arrive at running processes."""

    def __init__(self, system: System, server: Server, seconds: float) -> None:
        self._system = system
        system.start("web", "worker", "worker", "housekeeper")
        assert system.settled(system.deliver()) == "settled"
        self._before = {name: len(system.log(name)) for name in PROCESSES}
        server.kill()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            system.deliver()
            time.sleep(0.05)
        server.start()
        assert system.settled(system.deliver(), 20) == "settled"
        eventually(lambda: not open_events(system.config.data_dir).count(), what="the spool is drained")
        assert system.settled(system.deliver(), 20) == "settled"
        eventually(self.is_over, 15, what="every process has logged the end")

    def lines(self) -> Counter[tuple[str, str]]:
        """How often each line was logged since the server was taken away: its log and its event."""
        found: Counter[tuple[str, str]] = Counter()
        for name, start in self._before.items():
            found.update((name, str(json.loads(line)["event"])) for line in self._system.log(name)[start:].splitlines())
        return found

    def seconds(self, event: str) -> list[float]:
        """The durations in the lines of the receiver with this event."""
        lines = [json.loads(line) for line in self._system.log("web")[self._before["web"] :].splitlines()]
        return [line["seconds"] for line in lines if line["event"] == event]

    def is_over(self) -> bool:
        lines = self.lines()
        return all(lines[name, begins] == lines[name, ends] for name in self._before for begins, ends in ENDS.items())


@pytest.fixture
def shop(make_system: Callable[..., System], own_redis: Server) -> System:
    system = make_system(plugin=PLUGIN, url=own_redis.url, more=MORE)
    system.config_file.write_text(system.config_file.read_text().replace("processes = 1", "processes = 2"))
    return system


@pytest.mark.full
def test_an_outage_is_logged_once_by_each_process(shop: System, own_redis: Server) -> None:
    outage = Outage(shop, own_redis, 5.5)
    lines = outage.lines()
    assert {event for _, event in lines} >= {*ENDS, *ENDS.values()}
    for (name, event), count in lines.items():
        assert count <= PROCESSES[name] or event == "leases lapsed", (name, event, count)
    lasted = outage.seconds("the inbox takes deliveries again")
    assert all(seconds > 4 for seconds in lasted), "also while deliveries go straight to the spool"


@pytest.mark.slow
def test_an_outage_of_twenty_seconds_leaves_few_lines(shop: System, own_redis: Server) -> None:
    lines = Outage(shop, own_redis, 20.0).lines()
    assert lines.total() <= 40, lines


def test_a_call_refused_at_each_heartbeat_is_one_outage(shop: System, own_redis: Server) -> None:
    """Each refused declaration and each claim that worked were the begin and the end of an outage."""
    refused, again = "the Redis server refuses a command", "the Redis server no longer refuses commands"
    quicker = {"workers.runtime.worker.worker.HEARTBEAT_EVERY": 0.5, "receiver.logs.BEGIN_SECONDS": 0.01}
    shop.start("worker", quicker={**quicker, "workers.runtime.server_outage.QUIET_SECONDS": 1.0})
    assert shop.settled(shop.accept()) == "settled"
    own_redis.client.rename(keys.DECLARED_AT, "kept")
    own_redis.client.set(keys.DECLARED_AT, "damaged")
    eventually(lambda: refused in shop.log("worker"))
    for _ in range(5):  # claims work all the time
        assert shop.settled(shop.accept()) == "settled"
    own_redis.client.rename("kept", keys.DECLARED_AT)
    eventually(lambda: again in shop.log("worker"))
    lines = [json.loads(line) for line in shop.log("worker").splitlines()]
    assert [line["event"] for line in lines if "refuses" in line["event"]] == [refused, again]
    assert lines[-1]["seconds"] > 0


def test_workers_started_while_the_server_refuses_writes_wait_until_it_takes_them(
    shop: System, own_redis: Server
) -> None:
    """They ended with exit code 1 every second, with a line of the supervisor and one of their own each time."""
    waiting = shop.accept()
    own_redis.client.config_set("min-replicas-to-write", 1)
    shop.start("supervisor")
    eventually(lambda: shop.log("supervisor").count("refuses a command") == 2, what="the worker and the housekeeper")
    own_redis.client.config_set("min-replicas-to-write", 0)
    assert shop.settled(waiting) == "settled"
    assert "ended with exit code" not in shop.log("supervisor")
