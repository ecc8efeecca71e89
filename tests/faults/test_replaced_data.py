"""Redis was emptied, or replaced by an empty, another or an older one: accepted events are missing from it. Processes
notice, and `doctor` fails until an operator accepts that."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from receiver import logs
from receiver.inbox import keys
from receiver.inbox.known_data import KnownData, accept_data, hosts_with_other_data
from tests.support.harness import Server, System, eventually, own_server

NOTICED = "Redis has other data than before"


def failures(system: System) -> list[Any]:
    """What doctor says about the data in Redis."""
    found = json.loads(system.run_cli("doctor", "--json").stdout)["findings"]
    return [one for one in found if one["level"] == "fail" and "has other data" in one["text"]]


def knows_its_data(system: System) -> bool:
    file = system.config.data_dir / "known_data"
    return file.exists() and file.read_text() == (system.client.get(keys.DATA) or b"").decode().split(" ")[0]


def assert_noticed(system: System) -> None:
    (found,) = eventually(lambda: failures(system), 15)
    assert found["check"] == "server"
    assert str(system.config.data_dir.resolve()) in found["text"]
    assert "deliveries in spools are safe" in " ".join(found["more"])
    assert "storehooks hosts accept" in found["fix"]


def assert_accepted(system: System) -> None:
    assert system.run_cli("hosts", "accept").returncode == 0
    eventually(lambda: knows_its_data(system))
    assert failures(system) == []


@pytest.fixture
def running(make_system: Callable[..., System], own_redis: Server) -> System:
    system = make_system(url=own_redis.url)
    system.start("web", "housekeeper")
    eventually(lambda: knows_its_data(system), what="the host knows its data")
    system.deliver()
    assert failures(system) == []
    return system


def test_an_emptied_server_is_noticed_until_an_operator_accepts_that(running: System, own_redis: Server) -> None:
    own_redis.client.flushall()
    assert_noticed(running)
    for process in ("web", "housekeeper"):
        eventually(lambda name=process: NOTICED in running.log(name))
    running.deliver()
    assert_accepted(running)
    assert (running.config.data_dir / "known_data").stat().st_mode & 0o777 == 0o600
    for process in running.processes:
        process.stop()
    running.start("web", "housekeeper")
    running.deliver()
    assert failures(running) == []


def test_a_server_that_lost_its_volume_while_everything_was_stopped_is_noticed(
    running: System, own_redis: Server
) -> None:
    for process in running.processes:
        process.stop()
    own_redis.client.flushall()
    assert failures(running) == [], "no process has looked yet"
    running.start("web")
    assert_noticed(running)
    assert_accepted(running)


def test_an_older_copy_of_the_data_is_noticed_by_processes_that_run(running: System, own_redis: Server) -> None:
    old = {key: own_redis.client.dump(key) for key in own_redis.client.keys(keys.PREFIX + "*")}
    running.deliver()
    for _ in range(2):  # the second round began after the delivery
        (before,) = running.ledger.spools().values()
        eventually(lambda last=before.at: [one.at for one in running.ledger.spools().values()] > [last])
    own_redis.client.flushall()
    for key, value in old.items():
        own_redis.client.restore(key, 0, value, replace=True)
    assert_noticed(running)
    assert_accepted(running)


def known_data(system: System, *, ack: str = "stored") -> KnownData:
    return KnownData(system.config.data_dir, logs.get("test"), ack=ack, retention=system.config.retention)


def is_noticed(system: System, *, ack: str, before: int, after: int) -> bool:
    """Whether a process notices that its server was replaced by a copy that had `before` events, and lacks five, if
    `after` were accepted before it looks again."""
    known = known_data(system, ack=ack)

    def look() -> None:
        for _ in range(3):  # it learns, notices and reports
            known.compare(system.client)

    look()
    for _ in range(before):
        system.accept()
    copy = {key: system.client.dump(key) for key in system.client.keys(keys.PREFIX + "*")}
    for _ in range(5):
        system.accept()
    look()
    for key in system.client.keys(keys.PREFIX + "*"):
        system.client.delete(key)
    for key, value in copy.items():
        system.client.restore(key, 0, value)
    for _ in range(after):
        system.accept()
    look()
    return bool(hosts_with_other_data(system.client))


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("after", [0, 10])
def test_an_older_copy_is_noticed_whatever_was_accepted_since(system: System, before: int, after: int) -> None:
    assert is_noticed(system, ack="stored", before=before, after=after)


def test_a_new_primary_that_lacks_unanswered_deliveries_is_no_loss_with_ack_replica(system: System) -> None:
    assert not is_noticed(system, ack="replica", before=3, after=0)


def test_data_that_is_restored_without_what_was_accepted_meanwhile_is_noticed(system: System) -> None:
    known = known_data(system)

    def look() -> bool:
        for _ in range(3):
            known.compare(system.client)
        return bool(hosts_with_other_data(system.client))

    look()
    system.accept()
    assert not look()
    copy = {key: system.client.dump(key) for key in system.client.keys(keys.PREFIX + "*")}

    def replace_data() -> None:
        for key in system.client.keys(keys.PREFIX + "*"):
            system.client.delete(key)

    def restore() -> None:
        replace_data()
        for key, value in copy.items():
            system.client.restore(key, 0, value)

    replace_data()
    assert look()
    restore()
    assert not look(), "nothing was accepted meanwhile"
    replace_data()
    system.accept()
    assert look()
    restore()
    assert look()
    accept_data(system.client)
    assert not look()


def test_an_event_that_was_removed_by_age_is_no_loss(system: System) -> None:
    known = known_data(system)
    event_id = system.accept()
    accepted_at = int(time.time() - system.config.retention.records) * 1_000_000
    system.client.zadd(keys.INDEX, {event_id: accepted_at})
    known.compare(system.client)
    known.compare(system.client)
    system.client.zrem(keys.INDEX, event_id)
    known.compare(system.client)
    known.compare(system.client)
    assert not hosts_with_other_data(system.client)


@pytest.fixture
def other_redis(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "other"
    folder.mkdir()
    with own_server(folder) as server:
        yield server


def test_a_wrong_server_is_noticed_and_the_right_one_needs_no_step_afterwards(
    running: System, own_redis: Server, other_redis: Server, make_system: Callable[..., System]
) -> None:
    other = make_system(url=other_redis.url)
    other.start("web")
    eventually(lambda: knows_its_data(other), what="the other installation knows its data")
    right = running.config_file.read_text()
    running.config_file.write_text(right.replace(own_redis.url, other_redis.url))
    for process in running.processes:
        process.stop()
    running.start("web")
    assert_noticed(running)
    running.deliver()
    (found,) = failures(running)
    assert "1 event accepted in this server is not handled yet" in " ".join(found["more"])
    running.config_file.write_text(right)
    running.processes[-1].stop()
    running.start("web")
    running.deliver()
    eventually(lambda: knows_its_data(running))
    assert failures(running) == []
    wrong = {"STOREHOOKS_REDIS__URL": other_redis.url}
    handler = '@router.on("order.created")\ndef handle(event, ctx): pass\n'
    running.plugin.write_text(running.plugin.read_text() + handler)
    running.start("supervisor", env=wrong)
    eventually(lambda: " open 0 " in running.run_cli("stats", env=wrong).stdout, 20, what="it is handled there")
