"""A host's spool is never forgotten: a receiver signs off when it stops, and one that is silent without that is a
failure in `doctor` and unknown in `stats`."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from receiver.inbox import Inbox, keys
from receiver.inbox.redis.connecting import socket_path
from receiver.inbox.redis.script_runner import NotReplicatedError
from receiver.spool import open_events
from tests.receiver.spool.test_spool import small_server
from tests.support.harness import Server, System, children_of, eventually, free_port, kill_with_children
from tests.support.programs import with_times
from tests.support.proxy import Proxy

SOON = with_times({"receiver.inbox.queries.events.SILENT_SECONDS": 2.0})
"""Commands call a host silent after two seconds; it reports five times a second."""


class Hosts:
    """A host that receives, behind a proxy that can be cut; and another one, from which an operator looks."""

    def __init__(self, receiving: System, other: System, proxy: Proxy) -> None:
        self.receiving, self.other, self.proxy = receiving, other, proxy
        self.name = keys.host_of(receiving.config.data_dir)

    def cut_off(self) -> None:
        """Cut the host off from Redis."""
        self.proxy.cut_all()

    def kill(self) -> None:
        """Kill the host's web server with its worker processes."""
        (web,) = self.receiving.processes
        kill_with_children(web)

    def stats(self, system: System) -> Any:
        return json.loads(system.run_cli("stats", "--json", env=SOON).stdout)

    def state(self) -> str:
        """The host's state, as the other host sees it; empty if it is not listed."""
        found = json.loads(self.other.run_cli("hosts", "--json", env=SOON).stdout)
        return next((one["state"] for one in found if one["name"] == self.name), "")

    def findings(self, system: System) -> list[Any]:
        checked = json.loads(system.run_cli("doctor", "--json", env=SOON).stdout)
        return [one for one in checked["findings"] if one["check"] == "spool"]


@pytest.fixture
def hosts(make_system: Callable[..., System], own_redis: Server) -> Iterator[Hosts]:
    proxy = Proxy(own_redis.data_dir, str(socket_path(own_redis.data_dir)))
    receiving, other = make_system(url=proxy.url), make_system(url=own_redis.url)
    receiving.start("web")
    found = Hosts(receiving, other, proxy)
    eventually(lambda: found.state() == "receiving", what="the host has reported")
    yield found
    receiving.close()
    proxy.close()


def test_row_27_a_host_cut_off_and_killed_is_a_failure_and_unknown_until_its_deliveries_are_home(
    hosts: Hosts, own_redis: Server
) -> None:
    """Row 27. Its last report said that nothing waits, so its silence is what counts."""
    hosts.cut_off()
    for _ in range(3):
        hosts.receiving.deliver()
    hosts.kill()
    eventually(lambda: hosts.state() == "silent", 15)
    (found,) = hosts.findings(hosts.other)
    assert found["level"] == "fail"
    assert f"{hosts.name} is silent since" in found["text"]
    assert f"storehooks hosts forget {hosts.name}" in found["fix"]
    stats = hosts.stats(hosts.other)
    assert stats["spooled"] == "unknown"
    assert (stats["hosts"][hosts.name]["spooled"], stats["hosts"][hosts.name]["last_reported"]) == ("unknown", 0)
    said = " ".join(hosts.other.run_cli("stats", env=SOON).stdout.split())
    assert f"spool of {hosts.name}: unknown; 0 deliveries at the last report" in said

    text = hosts.receiving.config_file.read_text()
    hosts.receiving.config_file.write_text(text.replace(hosts.proxy.url, own_redis.url))
    assert hosts.stats(hosts.receiving)["spooled"] == 3, "the host itself reads its file"
    (found,) = hosts.findings(hosts.receiving)
    assert f"3 accepted deliveries in the spool of {hosts.name}, where `storehooks web` is not running" in found["text"]

    hosts.receiving.start("web")
    eventually(lambda: hosts.stats(hosts.other)["spooled"] == 0, 15)
    assert hosts.findings(hosts.other) == []
    assert hosts.other.ledger.counters().total["accepted"] == 3


@pytest.mark.parametrize("command", [["stats"], ["hosts"], ["hosts", "--json"]])
def test_a_host_that_is_cut_off_says_what_waits_in_its_own_spool(hosts: Hosts, command: list[str]) -> None:
    hosts.cut_off()
    for _ in range(3):
        hosts.receiving.deliver()
    said = hosts.receiving.run_cli(*command)
    assert said.returncode == 2
    assert "3 accepted deliveries wait in the spool of this host" in " ".join(said.stderr.split())


def test_a_receiver_that_stops_signs_off_and_leaves_no_entry(hosts: Hosts) -> None:
    hosts.receiving.deliver()
    hosts.receiving.processes[0].stop()
    assert hosts.other.ledger.spools() == {}
    assert hosts.stats(hosts.other)["spooled"] == 0
    assert hosts.findings(hosts.other) == []


def test_what_a_stopped_receiver_leaves_in_its_spool_is_still_a_number(hosts: Hosts, own_redis: Server) -> None:
    own_redis.client.config_set("maxmemory", "1")  # so that nothing can be drained
    for _ in range(2):
        hosts.receiving.deliver()
    hosts.receiving.processes[0].stop()
    assert hosts.state() == "stopped"
    assert hosts.stats(hosts.other)["spooled"] == 2
    (found,) = hosts.findings(hosts.other)
    assert f"2 accepted deliveries in the spool of {hosts.name}, where `storehooks web` is not running" in found["text"]
    own_redis.client.config_set("maxmemory", "0")


def test_a_web_process_that_hangs_is_silent_also_for_commands_on_its_own_host(hosts: Hosts) -> None:
    """Its process file is locked all the while, so only its last report says that it hangs."""
    (web,) = hosts.receiving.processes
    stopped = [web.pid, *children_of(web.pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        reported = hosts.other.ledger.spools()[hosts.name].at
        eventually(lambda: hosts.state() == "silent", 15)
        (found,) = json.loads(hosts.receiving.run_cli("hosts", "--json", env=SOON).stdout)
        assert (found["state"], found["spooled"]) == ("silent", 0)
        assert datetime.fromisoformat(found["last_seen"]) == reported.replace(microsecond=0)
        assert "hosts forget" not in hosts.receiving.run_cli("hosts", env=SOON).stdout
        (finding,) = hosts.findings(hosts.receiving)
        assert f"`storehooks web` runs on {hosts.name}, and has not reported since" in finding["text"]
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def test_a_host_that_is_gone_can_be_forgotten(hosts: Hosts, own_redis: Server) -> None:
    refused = hosts.other.run_cli("hosts", "forget", hosts.name, "--yes", env=SOON)
    assert (refused.returncode, "is receiving; stop `storehooks web` there first" in refused.stderr) == (2, True)
    hosts.kill()
    Inbox(own_redis.client).publish_spool(hosts.name, 4, 0)
    eventually(lambda: hosts.state() == "silent", 15)
    unsure = hosts.other.run_cli("hosts", "forget", hosts.name, env=SOON)
    assert unsure.returncode == 2
    assert "its spool had 4 accepted deliveries at its last report, may have more" in " ".join(unsure.stderr.split())
    assert re.search(r"silent +unknown +4 ", hosts.other.run_cli("hosts", env=SOON).stdout)
    assert hosts.other.run_cli("hosts", "forget", hosts.name, "--yes", env=SOON).returncode == 0
    assert hosts.other.ledger.spools() == {}
    missing = hosts.other.run_cli("hosts", "forget", hosts.name, "--yes", env=SOON)
    assert (missing.returncode, "no host" in missing.stderr) == (2, True)


def test_at_maxmemory_a_live_host_is_not_silent(make_system: Callable[..., System], tmp_path: Path) -> None:
    with small_server(tmp_path, filled=0.6) as server:
        receiving, other = make_system(url=server.url), make_system(url=server.url)
        receiving.start("web")
        eventually(receiving.ledger.spools)
        server.client.config_set("maxmemory", "1")
        receiving.deliver()
        eventually(lambda: [one.count for one in receiving.ledger.spools().values()] == [1], 15)
        found = json.loads(other.run_cli("hosts", "--json").stdout)
        assert [(one["state"], one["spooled"]) for one in found] == [("receiving", 1)]
        receiving.close()


def test_without_the_replica_that_ack_needs_deliveries_wait_in_the_spool_and_are_counted(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = make_system(url=own_redis.url)
    system.config_file.write_text(system.config_file.read_text().replace("[redis]\n", '[redis]\nack = "replica"\n', 1))
    system.start("web")
    ids = {system.deliver() for _ in range(20)}
    eventually(lambda: system.http.get("/readyz").json()["stores_in"] == "spool")
    assert system.http.get("/readyz").json()["spooled"] == 20
    (spool,) = eventually(lambda: [one for one in system.ledger.spools().values() if one.count == 20])
    assert spool.state == "receiving"
    sent_before = accept_calls(own_redis)
    eventually(lambda: accept_calls(own_redis) > sent_before + 3, what="the receiver looks for a replica")
    assert open_events(system.config.data_dir).count() == 20
    assert system.ledger.counters().total["accepted"] < 20, "what would not be acknowledged is not sent"
    folder = own_redis.data_dir / "replica"
    folder.mkdir()
    port = free_port()
    own_redis.client.config_set("repl-diskless-sync-delay", "0")
    own_redis.client.config_set("port", str(port))
    replica = Server(folder, extra=("--replicaof", f"127.0.0.1 {port}")).start()
    eventually(lambda: open_events(system.config.data_dir).count() == 0, 20, what="the spool is drained")
    assert system.http.get("/readyz").json()["stores_in"] == "redis"
    total = system.ledger.counters().total
    assert (total["accepted"], total["duplicates"]) == (20, 0), "sent again by the receiver, not by the store"
    assert {event.id for event in system.ledger.events()} == ids
    system.processes[0].send(signal.SIGTERM)
    system.processes[0].stop()
    system.inbox.check_accept(replicas=1)
    replica.process.send(signal.SIGSTOP)
    with pytest.raises(NotReplicatedError):
        system.inbox.check_accept(replicas=1)
    replica.process.send(signal.SIGCONT)
    replica.stop()
    replica.client.close()


def accept_calls(server: Server) -> int:
    """The number of scripts that the server has run."""
    return int(server.client.info("commandstats").get("cmdstat_fcall", {}).get("calls", 0))


@pytest.mark.parametrize(
    "report",
    [
        '{"count": 0, "oldest": 0.0, "at": 1700000000.0}',
        '{"state": "receiving", "count": "many", "oldest": 0.0, "at": 1700000000.0}',
        '{"state": "stopped", "count": 1, "oldest": 9e18, "at": 1700000000.0}',
        '{"state": ["stopped"], "count": 1, "oldest": 0, "at": 0}',
        "[]",
        "garbage",
    ],
)
def test_a_report_that_cannot_be_read_is_that_of_a_silent_host_and_can_be_forgotten(
    system: System, report: str
) -> None:
    name = b"old\xffhost:/data"
    system.client.hset(keys.SPOOLS, name, report)
    shown = "old\\xffhost:/data"
    (host,) = json.loads(system.run_cli("hosts", "--json").stdout)
    assert (host["name"], host["state"], host["spooled"], host["last_reported"]) == (
        shown, "silent", "unknown", "unknown",
    )  # fmt: skip
    stats = json.loads(system.run_cli("stats", "--json").stdout)
    assert stats["spooled"] == "unknown"
    for command in ("stats", "hosts"):
        listed = system.run_cli(command)
        assert (listed.returncode, listed.stderr) == (0, "")
        assert "unknown" in listed.stdout
        assert "1970" not in listed.stdout
        assert "01 Jan" not in listed.stdout
    checked = json.loads(system.run_cli("doctor", "--json").stdout)
    (found,) = [one for one in checked["findings"] if one["check"] == "spool"]
    assert (found["level"], f"the last report of {shown} cannot be read" in found["text"]) == ("fail", True)
    unconfirmed = system.run_cli("hosts", "forget", shown)
    assert (unconfirmed.returncode, "an unknown number of accepted deliveries" in unconfirmed.stderr) == (2, True)
    assert system.run_cli("hosts", "forget", shown, "--yes").returncode == 0
    assert system.client.hlen(keys.SPOOLS) == 0
