"""Redis was emptied, or replaced by an empty, another or an older one: accepted events are missing from it. Processes
notice, and `doctor` fails until an operator accepts that."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from receiver import logs
from receiver.inbox import keys
from receiver.inbox.known_data import DataChange, KnownData, accept_data, data_notices
from tests.support.harness import Server, System, eventually, own_server
from tests.support.logged_lines import capture_logs

NOTICED = "accepted events may be missing from Redis"


def failures(system: System) -> list[Any]:
    """What doctor says about the data in Redis."""
    found = json.loads(system.run_cli("doctor", "--json").stdout)["findings"]
    return [one for one in found if one["level"] == "fail" and "hosts accept" in one["fix"]]


def knows_its_data(system: System) -> bool:
    file = system.config.data_dir / "known_data"
    return file.exists() and file.read_text() == (system.client.get(keys.DATA) or b"").decode().split(" ")[0]


def assert_noticed(system: System) -> None:
    (found,) = eventually(lambda: failures(system), 15)
    assert found["check"] == "server"
    assert str(system.config.data_dir.resolve()) in found["text"]
    assert "deliveries in spools are safe" in " ".join(found["more"])


def assert_accepted(system: System) -> None:
    assert system.run_cli("hosts", "accept", "--yes").returncode == 0
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
    return KnownData(system.config.data_dir, logs.get("test"), ack=ack)


class Copies:
    """Copies of the data in a server, taken and restored between the looks of a process."""

    def __init__(self, system: System) -> None:
        self._client = system.client

    def take(self) -> dict[bytes, bytes]:
        return {key: self._client.dump(key) for key in self._client.keys(keys.PREFIX + "*")}

    def restore(self, copy: dict[bytes, bytes]) -> None:
        for key in self._client.keys(keys.PREFIX + "*"):
            self._client.delete(key)
        for key, value in copy.items():
            self._client.restore(key, 0, value)

    def look(self, known: KnownData) -> list[str]:
        """What the process notices. It may take three rounds: it learns, notices and reports."""
        for _ in range(3):
            known.compare(self._client)
        return [notice.change for notice in data_notices(self._client).values()]


@pytest.fixture
def copies(system: System) -> Copies:
    return Copies(system)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("after", [0, 10])
def test_an_older_copy_is_noticed_whatever_was_accepted_since(
    system: System, copies: Copies, before: int, after: int
) -> None:
    """It also stays noticed if the same copy comes back once more, and after a restart in between."""
    known = known_data(system)
    copies.look(known)
    for _ in range(before):
        system.accept()
    older = copies.take()
    for _ in range(5):
        system.accept()
    assert copies.look(known) == []
    copies.restore(older)
    for _ in range(after):
        system.accept()
    assert copies.look(known) == [DataChange.OLDER]
    copies.restore(older)
    assert copies.look(known) == [DataChange.OLDER]
    copies.restore(older)
    assert copies.look(known_data(system)) == [DataChange.OLDER]
    accept_data(system.client)
    accepted = copies.take()
    assert copies.look(known) == copies.look(known_data(system)) == []
    copies.restore(older)
    assert copies.look(known) == [DataChange.OTHER], "a copy from before it was accepted"
    copies.restore(accepted)
    assert copies.look(known) == []


def test_what_was_accepted_is_not_reported_again_by_other_processes_of_the_host(system: System, copies: Copies) -> None:
    """One process learned the new id, and the others compared the accepted data with what the former had."""
    processes = [known_data(system) for _ in range(3)]
    system.accept()
    older = copies.take()
    for emptied in (True, False):
        system.accept()
        assert [copies.look(known) for known in processes] == [[], [], []]
        copies.restore({} if emptied else older)
        assert copies.look(processes[0])
        accept_data(system.client)
        assert [copies.look(known) for known in processes] == [[], [], []]
        older = copies.take()


def test_an_older_copy_is_noticed_although_another_process_of_the_host_began_meanwhile(
    system: System, copies: Copies
) -> None:
    """The new one wrote what it saw for the whole host, and so hid the loss from the one that could notice it."""
    housekeeper = known_data(system)
    system.accept()
    copies.look(housekeeper)
    older = copies.take()
    system.accept()
    assert copies.look(housekeeper) == []
    copies.restore(older)
    system.accept()
    assert copies.look(known_data(system)) == [], "it began after the loss"
    assert copies.look(housekeeper) == [DataChange.OLDER]


def test_an_older_copy_is_reported_although_the_disk_is_full(
    system: System, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    known = known_data(system)
    system.accept()
    copies.look(known)
    older = copies.take()
    system.accept()
    copies.look(known)
    copies.restore(older)
    system.accept()
    monkeypatch.setattr("receiver.inbox.known_data.replace_file", full_disk)
    assert copies.look(known) == [DataChange.OLDER]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_a_notice_that_cannot_be_read_for_a_moment_stays_until_it_is_accepted(
    system: System, copies: Copies, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """It was replaced, as if the host knew no data yet: what was missing was forgotten."""
    file = system.config.data_dir / "known_data"
    copies.look(known_data(system))
    file.write_text(f"{file.read_text()} older 1700000000000")
    noticed, read_bytes, failed = file.read_text(), Path.read_bytes, []

    def read_later(path: Path) -> bytes:
        if path == file and not failed:
            failed.append(path)
            raise OSError(code, "it cannot be read")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_later)
    known = known_data(system)
    with capture_logs() as lines:
        known.compare(system.client)
    assert (len(failed), file.read_text()) == (1, noticed)
    assert [line["event"] for line in lines] == ["known_data cannot be read; the data in Redis is not compared with it"]
    assert copies.look(known) == [DataChange.OLDER]


def test_an_event_after_months_without_any_is_no_loss_for_other_processes(system: System, copies: Copies) -> None:
    """The first process that saw it removed what the others had written, as if they had ended."""
    one, other = known_data(system), known_data(system)
    system.accept()
    long_ago = int((time.time() - 90 * 86400) * 1e6)
    system.client.set(keys.ACCEPTED_UNTIL, long_ago)
    assert copies.look(one) == copies.look(other) == []
    system.accept()
    assert copies.look(one) == copies.look(other) == []


def test_a_replica_that_lags_is_no_loss(system: System, copies: Copies, own_redis: Server) -> None:
    """A server that refuses writes cannot be told from the primary by its data."""
    known = known_data(system)
    system.accept()
    copies.look(known)
    replica = own_redis.client
    for key, value in copies.take().items():
        replica.restore(key, 0, value)
    replica.replicaof("127.0.0.1", 1)
    system.accept()
    copies.look(known)
    for _ in range(3):
        known.compare(replica)
    assert copies.look(known) == []


def test_a_new_primary_that_lacks_unanswered_deliveries_is_no_loss_with_ack_replica(
    system: System, copies: Copies
) -> None:
    known = known_data(system, ack="replica")
    system.accept()
    copies.look(known)
    older = copies.take()
    system.accept()
    copies.look(known)
    copies.restore(older)
    assert copies.look(known) == []


def test_data_that_is_restored_without_what_was_accepted_meanwhile_is_noticed(system: System, copies: Copies) -> None:
    known = known_data(system)
    copies.look(known)
    system.accept()
    assert copies.look(known) == []
    former = copies.take()
    copies.restore({})
    assert copies.look(known) == [DataChange.OTHER]
    copies.restore(former)
    assert copies.look(known) == [], "nothing was accepted meanwhile"
    copies.restore({})
    system.accept()
    assert copies.look(known) == [DataChange.OTHER]
    copies.restore(former)
    assert copies.look(known) == [DataChange.ELSEWHERE]
    copies.restore(former)
    assert copies.look(known_data(system)) == [DataChange.ELSEWHERE], "also after a restart"
    accept_data(system.client)
    assert copies.look(known) == copies.look(known_data(system)) == []


def test_a_host_that_was_elsewhere_does_not_make_others_doubt_their_server(
    make_system: Callable[..., System], copies: Copies, system: System
) -> None:
    """It gave the right server a new id, so that every host reported other data and was told to restore it."""
    there = make_system()
    here, other = known_data(system), known_data(there)
    system.accept()
    assert copies.look(here) == copies.look(other) == []
    right = copies.take()
    copies.restore({})
    system.accept()
    assert copies.look(here) == [DataChange.OTHER]
    copies.restore(right)
    copies.look(here)
    copies.look(other)
    notices = data_notices(system.client)
    assert {host: notice.change for host, notice in notices.items()} == {
        keys.host_of(system.config.data_dir): DataChange.ELSEWHERE
    }


def test_events_that_were_removed_by_age_are_no_loss(system: System, copies: Copies) -> None:
    known = known_data(system)
    event_id = system.accept()
    copies.look(known)
    system.client.zrem(keys.INDEX, event_id)
    system.client.delete(keys.EVENT + event_id)
    assert copies.look(known) == []


@pytest.fixture
def other_redis(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "other"
    folder.mkdir()
    with own_server(folder) as server:
        yield server


def test_a_wrong_server_is_noticed_and_what_was_accepted_there_is_not_forgotten(
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
    (found,) = eventually(lambda: failures(running), 15)
    assert "events were accepted in other data while" in found["text"]
    wrong = {"STOREHOOKS_REDIS__URL": other_redis.url}
    handler = '@router.on("order.created")\ndef handle(event, ctx): pass\n'
    running.plugin.write_text(running.plugin.read_text() + handler)
    running.start("supervisor", env=wrong)
    eventually(lambda: " open 0 " in running.run_cli("stats", env=wrong).stdout, 20, what="it is handled there")
    assert_accepted(running)
