"""Group commit: groups go to the inbox on a polled connection; if it breaks, no delivery is lost or left unanswered."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from receiver.contract.intake import Delivery
from receiver.delivery import bounded_spool
from receiver.delivery.inbox_access import RECONNECT_SECONDS
from receiver.delivery.pipeline import open_storage
from receiver.delivery.storage import DeliveryStorage, Stored, StoreResults
from receiver.inbox import Inbox, connect
from receiver.inbox.redis.connecting import socket_path
from receiver.inbox.redis.script_library import library
from receiver.server import group_commit
from receiver.server.group_commit import GroupCommit
from receiver.server.loop_worker import new_event_loop
from receiver.spool.spooled_events import SpooledEvents, SpoolResult
from tests.support.harness import Server, System, eventually, free_port, own_server
from tests.support.proxy import Proxy
from tests.support.tls_proxy import TlsProxy

TIMEOUT = 0.5


class Loop:
    """An event loop with a group commit, which a test turns."""

    def __init__(self, system: System, url: str, *, ca_file: str = "", timeout: float = TIMEOUT) -> None:
        client = connect(url, timeout=timeout, ca_file=ca_file)
        self.storage, self.drain = open_storage(system.config, Inbox(client))
        self.loop = new_event_loop()
        self.commit = GroupCommit(self.storage, self.loop, timeout=timeout)

    def turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0.02))
        self.commit.check()

    def close(self) -> None:
        self.commit._close_connection()
        self.loop.close()

    def store(self, *deliveries: Delivery) -> list[str]:
        """Store a group and turn until it is stored; return the status and place of each delivery."""
        results: list[StoreResults] = []
        self.commit.store(deliveries, results.append)
        return self.until_stored(results)

    def until_stored(self, results: list[StoreResults]) -> list[str]:
        def done() -> bool:
            self.turn()
            return bool(results)

        eventually(done)
        (group,) = results
        return [f"{one.status} in {one.where}" if isinstance(one, Stored) else "not stored" for one in group]

    @property
    def breaker_is_open(self) -> bool:
        return self.storage._breaker.is_open

    @property
    def is_connected(self) -> bool:
        return self.commit._connection is not None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "own").mkdir()
    with own_server(tmp_path / "own") as one:
        yield one


@pytest.fixture
def proxy(tmp_path: Path, server: Server) -> Iterator[Proxy]:
    one = Proxy(tmp_path, server.url.removeprefix("unix://"))
    yield one
    one.close()


@pytest.fixture
def own(server: Server, tmp_path: Path) -> Iterator[System]:
    """A system on that server."""
    (tmp_path / "system").mkdir()
    one = System(tmp_path / "system", server.url)
    yield one
    one.close()


@pytest.fixture
def make_loop(own: System) -> Iterator[Callable[[str], Loop]]:
    """A loop whose polled connection is open: the first group opens it. The server has its functions before, since
    loading them may take longer than the loop waits."""
    every: list[Loop] = []
    own.client.function_load(library().text, replace=True)

    def make(url: str) -> Loop:
        every.append(Loop(own, url))
        assert every[-1].store(own.delivery()) == ["accepted in redis"]
        assert every[-1].is_connected
        return every[-1]

    yield make
    for one in every:
        one.close()


@pytest.fixture
def loop(make_loop: Callable[[str], Loop], server: Server) -> Loop:
    return make_loop(server.url)


def without_redis(system: System) -> DeliveryStorage:
    return open_storage(system.config, Inbox(connect("unix:///nowhere", timeout=0.1)))[0]


def test_a_group_is_stored_on_the_polled_connection_and_answered_in_order(own: System, loop: Loop) -> None:
    group = [own.delivery() for _ in range(3)]
    connections = own.client.info("stats")["total_connections_received"]
    assert loop.store(*group) == ["accepted in redis"] * 3
    assert loop.store(group[1], own.delivery(), group[0]) == [
        "duplicate in redis",
        "accepted in redis",
        "duplicate in redis",
    ]
    assert own.client.info("stats")["total_connections_received"] == connections
    assert own.identity_holds()
    assert own.ledger.counters().total["accepted"] == 5


def test_a_group_larger_than_the_servers_buffers_is_sent_in_pieces(own: System, loop: Loop) -> None:
    big = [own.delivery(data={"id": number, "text": "x" * 400_000}) for number in range(10)]
    assert loop.store(*big) == ["accepted in redis"] * 10
    assert loop.is_connected
    bodies = {one.event.id: one.event.body for one in big}
    stored = [own.ledger.event(name) for name in bodies]
    assert [one.body for one in stored if one] == list(bodies.values())


def test_a_server_that_takes_bytes_does_not_time_out_if_the_loop_is_slow(own: System, loop: Loop) -> None:
    big = [own.delivery(data={"id": number, "text": "x" * 400_000}) for number in range(5)]
    results: list[StoreResults] = []
    began = time.monotonic()
    loop.commit.store(big, results.append)

    def done() -> bool:
        time.sleep(TIMEOUT / 4)  # the loop does other work
        loop.loop.call_soon(loop.loop.stop)
        loop.loop.run_forever()  # one turn
        return bool(results)

    eventually(done)
    assert time.monotonic() - began > TIMEOUT
    assert loop.until_stored(results) == ["accepted in redis"] * 5
    assert not loop.breaker_is_open


def test_a_lost_reply_loses_no_delivery(own: System, proxy: Proxy, make_loop: Callable[[str], Loop]) -> None:
    loop = make_loop(proxy.url)
    group = [own.delivery() for _ in range(3)]
    proxy.cut("accept")
    assert loop.store(*group) == ["accepted in spool"] * 3  # and in Redis, which the receiver cannot know
    assert not loop.is_connected
    loop.drain.run_once()  # drains them, and the inbox finds them
    assert loop.store(*group) == ["duplicate in redis"] * 3
    assert loop.is_connected
    assert own.ledger.counters().total["accepted"] == 4
    assert own.identity_holds()


def test_a_hanging_server_is_waited_for_once_and_not_beyond_its_deadline(
    own: System, server: Server, loop: Loop
) -> None:
    assert server.process
    group = [own.delivery(), own.delivery(data={"text": "x" * 800_000})]  # more than its buffers take while it hangs
    server.process.send(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert loop.store(*group) == ["accepted in spool"] * 2
        first = time.monotonic() - began
        others = []
        for _ in range(3):  # one of them may wait for the disk
            began = time.monotonic()
            assert loop.store(own.delivery()) == ["accepted in spool"]
            others.append(time.monotonic() - began)
    finally:
        server.process.send(signal.SIGCONT)
    assert TIMEOUT <= first < 2 * TIMEOUT
    assert min(others) < TIMEOUT / 2
    loop.drain.run_once()
    assert loop.store(own.delivery()) == ["accepted in redis"]
    assert own.ledger.counters().total["accepted"] == 7
    assert own.identity_holds()


def test_a_disk_that_hangs_holds_back_no_delivery_once_the_server_is_back(
    own: System, server: Server, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis was away for 2 s, and until the disk answered, minutes later, no delivery was; `/readyz` said 200."""
    monkeypatch.setattr(bounded_spool, "HANGS_AFTER", 0.5)
    monkeypatch.setattr(group_commit, "HANGS_AFTER", 0.5)
    disk_answers, add = threading.Event(), SpooledEvents.add

    def hang(self: SpooledEvents, deliveries: Iterable[Delivery], **wait: float) -> list[SpoolResult]:
        assert disk_answers.wait(30)
        return add(self, deliveries, **wait)

    monkeypatch.setattr(SpooledEvents, "add", hang)
    assert server.process
    group, results = [own.delivery(), own.delivery()], list[StoreResults]()
    try:
        server.process.send(signal.SIGSTOP)
        loop.commit.store(group, results.append)
        assert loop.until_stored(results) == ["not stored"] * 2
        server.process.send(signal.SIGCONT)
        eventually(lambda: loop.store(own.delivery()) == ["accepted in redis"])
        assert all(one.endswith("in redis") for one in loop.store(*group)), "their senders send them again"
        ready = loop.storage.readiness()
        assert ready
        assert (ready.stores_in, ready.spooled) == ("redis", None)
        accepted = own.ledger.counters().total["accepted"]
    finally:
        disk_answers.set()
    eventually(lambda: not loop.storage.disk_hangs)
    eventually(lambda: loop.drain._spool.summary()[0] == 2)
    loop.drain.run_once()
    assert loop.store(own.delivery()) == ["accepted in redis"]
    assert own.ledger.counters().total["accepted"] == accepted + 1, "what the disk has stored at last are repeats"
    assert own.identity_holds()


def test_the_group_that_waits_for_a_disk_that_hangs_is_stored_by_the_server(
    own: System, server: Server, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (bounded_spool, group_commit):
        monkeypatch.setattr(module, "HANGS_AFTER", 3.0)
    disk_answers, begun, add = threading.Event(), threading.Event(), SpooledEvents.add

    def hang(self: SpooledEvents, deliveries: Iterable[Delivery], **wait: float) -> list[SpoolResult]:
        begun.set()
        assert disk_answers.wait(30)
        return add(self, deliveries, **wait)

    monkeypatch.setattr(SpooledEvents, "add", hang)
    assert server.process
    results = list[StoreResults]()
    try:
        server.process.send(signal.SIGSTOP)
        loop.commit.store([own.delivery()], results.append)
        eventually(lambda: loop.turn() or begun.is_set())
        server.process.send(signal.SIGCONT)
        assert loop.until_stored(results)[0].endswith("in redis")
    finally:
        server.process.send(signal.SIGCONT)
        disk_answers.set()
    eventually(lambda: loop.turn() or not loop.storage.disk_hangs)
    assert results == results[:1], "one answer"


def test_scripts_are_loaded_again_into_a_server_that_lost_them(own: System, loop: Loop) -> None:
    own.client.function_delete(library().name)
    assert loop.store(own.delivery(), own.delivery()) == ["accepted in redis"] * 2
    assert loop.is_connected


def test_an_idle_connection_closed_by_the_server_does_not_open_the_breaker(own: System, loop: Loop) -> None:
    own.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def noticed() -> bool:
        loop.turn()
        return not loop.is_connected

    eventually(noticed)
    assert not loop.breaker_is_open


def test_a_connection_that_cannot_be_opened_does_not_delay_every_group(
    own: System, proxy: Proxy, make_loop: Callable[[str], Loop]
) -> None:
    loop = make_loop(proxy.url)
    proxy.deaf = True
    own.client.function_delete(library().name)  # closes the polled connection; the thread's stays
    sockets = len(proxy._open)  # two for each connection
    began = time.monotonic()
    for _ in range(4):
        assert loop.store(own.delivery()) == ["accepted in redis"]
    took = time.monotonic() - began
    assert not loop.is_connected
    attempts = (len(proxy._open) - sockets) // 2
    assert 1 <= attempts <= 1 + took // (TIMEOUT + RECONNECT_SECONDS), "a second attempt only after the pause"
    proxy.deaf = False

    def again() -> bool:
        return loop.store(own.delivery()) == ["accepted in redis"] and loop.is_connected

    eventually(again)


def test_an_error_of_the_server_affects_only_the_delivery_that_caused_it(own: System, loop: Loop) -> None:
    one, other = own.delivery(), own.delivery()
    refused = Delivery(event=own.delivery().event, theirs="order.created", content_hash="mark")
    own.damage_mark_of(refused)
    assert loop.store(one, refused, other) == ["accepted in redis", "accepted in spool", "accepted in redis"]
    assert not loop.breaker_is_open
    assert loop.is_connected
    assert own.ledger.counters().total["duplicates"] == 0, "no delivery was sent twice"


def test_only_a_store_with_rows_in_the_spool_is_spooled(own: System, loop: Loop) -> None:
    first = own.delivery()
    assert without_redis(own).store_all([first])
    assert loop.store(own.delivery()) == ["accepted in spool"]
    assert loop.store(own.delivery(store="south")) == ["accepted in redis"]
    loop.drain.run_once()
    assert loop.store(own.delivery()) == ["accepted in redis"]


def test_an_unreadable_spool_does_not_stop_the_inbox(own: System, loop: Loop) -> None:
    own.config.data_dir.mkdir(parents=True, exist_ok=True)
    (own.config.data_dir / "spool.sqlite3").write_bytes(b"not a database" * 100)
    assert loop.store(own.delivery()) == ["accepted in redis"]


def test_an_unreadable_data_dir_does_not_stop_the_inbox(own: System, loop: Loop) -> None:
    own.config.data_dir.write_text("not a folder")
    assert loop.store(own.delivery()) == ["accepted in redis"]


def test_a_delivery_that_cannot_be_encoded_affects_no_other(own: System, loop: Loop) -> None:
    event = own.delivery().event
    for bad in (Delivery(event, theirs="\ud800"), Delivery(replace(event, headers={"a": "\ud800"}), theirs="")):
        stored = loop.store(own.delivery(), bad, own.delivery())
        assert stored == ["accepted in redis", "not stored", "accepted in redis"]
        assert loop.store(own.delivery()) == ["accepted in redis"]
        assert loop.is_connected


def test_a_loop_that_was_busy_past_the_deadline_reads_the_reply_first(own: System, loop: Loop) -> None:
    results: list[StoreResults] = []
    accepted = own.ledger.counters().total["accepted"]
    loop.commit.store([own.delivery()], results.append)
    late = time.monotonic() + TIMEOUT
    eventually(lambda: time.monotonic() > late and own.ledger.counters().total["accepted"] > accepted)
    loop.commit.check()
    assert loop.until_stored(results) == ["accepted in redis"]
    assert not loop.breaker_is_open


def test_a_connection_that_breaks_while_the_thread_stores_a_group_is_handled_once(own: System, loop: Loop) -> None:
    """The thread's call and the end of the connection come in one turn of the loop."""
    assert without_redis(own).store_all([own.delivery()])
    first: list[StoreResults] = []
    second: list[StoreResults] = []

    def on_stored(group: StoreResults) -> None:
        first.append(group)
        loop.commit.store([own.delivery(store="south")], second.append)

    loop.commit.store([own.delivery()], on_stored)
    loop.commit._thread.submit(int).result(5)  # the thread is done
    own.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert loop.until_stored(second) == ["accepted in spool"]
    assert loop.until_stored(first) == ["accepted in spool"]


def test_an_unexpected_reply_is_not_taken_for_an_acknowledgement(
    own: System, proxy: Proxy, make_loop: Callable[[str], Loop]
) -> None:
    loop = make_loop(proxy.url)
    proxy.inject(b"*1\r\n*2\r\n$8\r\naccepted\r\n$6\r\nothers\r\n")
    eventually(lambda: loop.turn() or not loop.is_connected)
    results: list[StoreResults] = []
    loop.commit.store([own.delivery()], results.append)
    assert loop.until_stored(results) == ["accepted in redis"]
    ((stored,),) = results
    assert isinstance(stored, Stored)
    assert own.status(stored.id) == "open"
    assert not loop.breaker_is_open


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    ],
    ids=["READONLY", "OOM"],
)
def test_deliveries_go_to_the_spool_while_the_server_refuses_all_writes(
    own: System, loop: Loop, wrong: tuple[str, ...], right: tuple[str, ...]
) -> None:
    before = own.ledger.counters().total["accepted"]
    own.client.execute_command(*wrong)
    assert loop.store(own.delivery(), own.delivery()) == ["accepted in spool"] * 2
    assert not loop.is_connected
    own.client.execute_command(*right)
    loop.drain.run_once()
    assert loop.store(own.delivery()) == ["accepted in redis"]
    assert loop.is_connected
    assert own.ledger.counters().total["accepted"] == before + 3


def test_over_tls_groups_are_stored_on_the_polled_connection(own: System, server: Server, tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    proxy = TlsProxy(tmp_path / "tls", socket_path(server.data_dir))
    loop = Loop(own, proxy.url, ca_file=str(proxy.certificate), timeout=5.0)
    try:
        assert loop.store(own.delivery()) == ["accepted in redis"]
        connections = own.client.info("stats")["total_connections_received"]
        assert loop.is_connected
        big = [own.delivery(data={"id": number, "text": "x" * 300_000}) for number in range(5)]
        assert loop.store(*big) == ["accepted in redis"] * 5
        many = [own.delivery() for _ in range(100)]  # their replies take more than one TLS record
        assert loop.store(*many, *many) == ["accepted in redis"] * 100 + ["duplicate in redis"] * 100
        assert own.client.info("stats")["total_connections_received"] == connections
    finally:
        loop.close()
        proxy.listener.close()


def test_with_ack_replica_the_loop_waits_for_a_replica(own: System, server: Server, tmp_path: Path) -> None:
    own.config_file.write_text(own.config_file.read_text().replace("[redis]\n", '[redis]\nack = "replica"\n', 1))
    port = free_port()
    own.client.config_set("port", port)
    own.client.config_set("repl-diskless-sync-delay", 0)
    loop = Loop(own, server.url, timeout=3.0)
    (tmp_path / "replica").mkdir()
    try:
        with own_server(tmp_path / "replica", "--appendonly", "no", "--replicaof", f"127.0.0.1 {port}"):
            eventually(lambda: own.client.info("replication")["connected_slaves"] == 1)

            def replicated() -> bool:
                loop.drain.run_once()  # what went to the spool while the replica was not ready
                return loop.store(own.delivery()) == ["accepted in redis"] and loop.is_connected

            eventually(replicated)
            waits = own.client.info("commandstats")["cmdstat_wait"]["calls"]
            assert loop.store(own.delivery(), own.delivery()) == ["accepted in redis"] * 2
            assert own.client.info("commandstats")["cmdstat_wait"]["calls"] == waits + 1
            assert loop.is_connected
        eventually(lambda: own.client.info("replication")["connected_slaves"] == 0)
        assert loop.store(own.delivery()) == ["accepted in spool"], "no replica has it"
        assert loop.breaker_is_open
    finally:
        loop.close()
