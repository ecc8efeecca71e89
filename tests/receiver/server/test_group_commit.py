"""Handover: groups go to the inbox by a line on which nobody waits; when it breaks, nothing is lost and all is told."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gunicorn.workers.gthread import PollableMethodQueue

from receiver.contract.intake import Delivery
from receiver.delivery.storage import DeliveryStorage, Stored
from receiver.inbox import Inbox, connect, keys
from receiver.inbox.redis.script_library import library
from receiver.server.group_commit import GroupCommit, Outcomes
from tests.support.harness import Server, System, eventually, own_server
from tests.support.proxy import Proxy

TIMEOUT = 0.5


class Loop:
    """The part of the web process's loop that a handover knows: a poller, and calls from other threads."""

    def __init__(self, system: System, url: str) -> None:
        self.keeping = DeliveryStorage(system.config, Inbox(connect(url, timeout=TIMEOUT)))
        self.poller = selectors.DefaultSelector()
        self.calls = PollableMethodQueue()
        self.calls.init()
        self.poller.register(self.calls.fileno(), selectors.EVENT_READ, self.calls.run_callbacks)
        self.handover = GroupCommit(self.keeping, self.poller, self.calls.defer, timeout=TIMEOUT)

    def turn(self) -> None:
        for key, _ in self.poller.select(self.handover.patience(0.02)):
            key.data(key.fileobj)
        self.handover.look()

    def close(self) -> None:
        self.poller.close()
        self.calls.close()

    def keep(self, *deliveries: Delivery) -> list[str]:
        """Hand a group over and turn until it is kept: where each is, and as what."""
        told: list[Outcomes] = []
        self.handover.keep(deliveries, told.append)
        return self.until_told(told)

    def until_told(self, told: list[Outcomes]) -> list[str]:
        def done() -> bool:
            self.turn()
            return bool(told)

        eventually(done)
        (outcomes,) = told
        return [f"{one.status} in {one.where}" if isinstance(one, Stored) else "nowhere" for one in outcomes]

    @property
    def has_a_line(self) -> bool:
        return len(self.poller.get_map()) == 2  # it, and the calls


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
    """One whose line is open: the first group opens it."""
    every: list[Loop] = []

    def make(url: str) -> Loop:
        every.append(Loop(own, url))
        assert every[-1].keep(own.delivery()) == ["accepted in redis"]
        assert every[-1].has_a_line
        return every[-1]

    yield make
    for one in every:
        one.close()


@pytest.fixture
def loop(make_loop: Callable[[str], Loop], server: Server) -> Loop:
    return make_loop(server.url)


def test_a_group_is_kept_by_the_line_and_told_in_order(own: System, loop: Loop) -> None:
    group = [own.delivery() for _ in range(3)]
    waits = own.client.info("stats")["total_connections_received"]
    assert loop.keep(*group) == ["accepted in redis"] * 3
    assert loop.keep(group[1], own.delivery(), group[0]) == [
        "duplicate in redis",
        "accepted in redis",
        "duplicate in redis",
    ]
    assert own.client.info("stats")["total_connections_received"] == waits
    assert own.identity_holds()
    assert own.ledger.counters().total["accepted"] == 5


def test_more_than_the_servers_buffers_take_goes_piece_by_piece(own: System, loop: Loop) -> None:
    big = [own.delivery(data={"id": number, "text": "x" * 400_000}) for number in range(10)]
    assert loop.keep(*big) == ["accepted in redis"] * 10
    assert loop.has_a_line
    bodies = {one.event.id: one.event.body for one in big}
    kept = [own.ledger.event(name) for name in bodies]
    assert [one.body for one in kept if one] == list(bodies.values())


def test_a_server_that_takes_bytes_is_not_given_up_however_slow_the_loop_is(own: System, loop: Loop) -> None:
    big = [own.delivery(data={"id": number, "text": "x" * 400_000}) for number in range(5)]
    told: list[Outcomes] = []
    began = time.monotonic()
    loop.handover.keep(big, told.append)

    def done() -> bool:
        time.sleep(TIMEOUT / 4)  # it does something else
        loop.turn()
        return bool(told)

    eventually(done)
    assert time.monotonic() - began > TIMEOUT
    assert loop.until_told(told) == ["accepted in redis"] * 5
    assert not loop.keeping.broken


def test_a_reply_that_is_lost_loses_no_delivery(own: System, proxy: Proxy, make_loop: Callable[[str], Loop]) -> None:
    loop = make_loop(proxy.url)
    group = [own.delivery() for _ in range(3)]
    proxy.cut("accept")
    assert loop.keep(*group) == ["accepted in spool"] * 3  # and in Redis: nobody could know
    assert not loop.has_a_line
    loop.keeping.look_round()  # brings them home, where they are found
    assert loop.keep(*group) == ["duplicate in redis"] * 3
    assert loop.has_a_line
    assert own.ledger.counters().total["accepted"] == 4
    assert own.identity_holds()


def test_a_server_that_hangs_is_waited_for_once_and_no_longer_than_its_deadline(
    own: System, server: Server, loop: Loop
) -> None:
    assert server.process
    group = [own.delivery(), own.delivery(data={"text": "x" * 800_000})]  # more than it takes while it hangs
    server.process.send(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert loop.keep(*group) == ["accepted in spool"] * 2
        first, began = time.monotonic() - began, time.monotonic()
        assert loop.keep(own.delivery()) == ["accepted in spool"]
        second = time.monotonic() - began
    finally:
        server.process.send(signal.SIGCONT)
    assert TIMEOUT <= first < TIMEOUT + 0.4
    assert second < 0.4
    loop.keeping.look_round()
    assert loop.keep(own.delivery()) == ["accepted in redis"]
    assert own.ledger.counters().total["accepted"] == 5
    assert own.identity_holds()


def test_a_server_that_forgot_the_scripts_is_told_them_again(own: System, loop: Loop) -> None:
    own.client.function_delete(library().name)
    assert loop.keep(own.delivery(), own.delivery()) == ["accepted in redis"] * 2
    assert loop.has_a_line


def test_an_idle_line_that_the_server_closes_sends_nobody_to_the_spool(own: System, loop: Loop) -> None:
    own.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def noticed() -> bool:
        loop.turn()
        return not loop.has_a_line

    eventually(noticed)
    assert not loop.keeping.broken


def test_a_line_that_cannot_be_opened_does_not_delay_every_group(
    own: System, proxy: Proxy, make_loop: Callable[[str], Loop]
) -> None:
    loop = make_loop(proxy.url)
    proxy.deaf = True
    own.client.function_delete(library().name)  # breaks the line; the thread's connection stays
    began = time.monotonic()
    for _ in range(4):
        assert loop.keep(own.delivery()) == ["accepted in redis"]
    took = time.monotonic() - began
    assert not loop.has_a_line
    assert took < 2 * TIMEOUT  # it was tried once
    proxy.deaf = False

    def again() -> bool:
        return loop.keep(own.delivery()) == ["accepted in redis"] and loop.has_a_line

    eventually(again)


def test_what_the_server_has_against_one_is_not_the_others_fault(own: System, loop: Loop) -> None:
    one, other = own.delivery(), own.delivery()
    spoilt = Delivery(event=own.delivery().event, theirs="order.created", content_hash="mark")
    own.client.rpush(f"{keys.PREFIX}d:north:mark", "not a string")
    assert loop.keep(one, spoilt, other) == ["accepted in redis", "accepted in spool", "accepted in redis"]
    assert not loop.keeping.broken
    assert loop.has_a_line
    assert own.ledger.counters().total["duplicates"] == 0, "nobody has sent anything twice"


def test_a_store_with_rows_in_the_spool_joins_them_and_other_stores_do_not(own: System, loop: Loop) -> None:
    first = own.delivery()
    assert DeliveryStorage(own.config, Inbox(connect("unix:///nowhere", timeout=0.1))).keep_all([first])
    assert loop.keep(own.delivery()) == ["accepted in spool"]
    assert loop.keep(own.delivery(store="south")) == ["accepted in redis"]
    loop.keeping.look_round()
    assert loop.keep(own.delivery()) == ["accepted in redis"]


def test_a_spool_that_cannot_be_read_is_left_to_the_thread(own: System, loop: Loop) -> None:
    own.config.data_dir.mkdir(parents=True, exist_ok=True)
    (own.config.data_dir / "spool.sqlite3").write_bytes(b"this is no database" * 100)
    assert loop.keep(own.delivery()) == ["accepted in redis"]


def test_a_data_dir_that_cannot_be_looked_into_is_left_to_the_thread(own: System, loop: Loop) -> None:
    own.config.data_dir.write_text("this is no folder")
    assert loop.keep(own.delivery()) == ["accepted in redis"]


def test_what_cannot_even_be_sent_is_not_the_others_fault(own: System, loop: Loop) -> None:
    event = own.delivery().event
    for spoilt in (Delivery(event, theirs="\ud800"), Delivery(replace(event, headers={"a": "\ud800"}), theirs="")):
        told = loop.keep(own.delivery(), spoilt, own.delivery())
        assert told == ["accepted in redis", "nowhere", "accepted in redis"]
        assert loop.keep(own.delivery()) == ["accepted in redis"]
        assert loop.has_a_line


def test_a_loop_that_was_busy_for_longer_than_the_deadline_reads_the_reply_first(own: System, loop: Loop) -> None:
    told: list[Outcomes] = []
    accepted = own.ledger.counters().total["accepted"]
    loop.handover.keep([own.delivery()], told.append)
    late = time.monotonic() + TIMEOUT
    eventually(lambda: time.monotonic() > late and own.ledger.counters().total["accepted"] > accepted)
    loop.handover.look()
    assert loop.until_told(told) == ["accepted in redis"]
    assert not loop.keeping.broken


def test_a_line_that_breaks_while_the_thread_keeps_a_group_is_noticed_once(own: System, loop: Loop) -> None:
    """The thread's call and the end of the line are found in one look at the poller, in this order."""
    assert DeliveryStorage(own.config, Inbox(connect("unix:///nowhere", timeout=0.1))).keep_all([own.delivery()])
    first: list[Outcomes] = []
    second: list[Outcomes] = []

    def then(outcomes: Outcomes) -> None:
        first.append(outcomes)
        loop.handover.keep([own.delivery(store="south")], second.append)

    loop.handover.keep([own.delivery()], then)
    assert loop.poller.select(5)  # the thread is done
    own.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    eventually(lambda: len(loop.poller.select(0)) == 2)
    assert loop.until_told(second) == ["accepted in spool"]
    assert loop.until_told(first) == ["accepted in spool"]


def test_a_reply_that_nobody_asked_for_is_nobodys(own: System, proxy: Proxy, make_loop: Callable[[str], Loop]) -> None:
    loop = make_loop(proxy.url)
    proxy.say(b"*1\r\n*2\r\n$8\r\naccepted\r\n$6\r\nothers\r\n")
    eventually(lambda: loop.poller.select(0))
    loop.turn()
    told: list[Outcomes] = []
    loop.handover.keep([own.delivery()], told.append)
    assert loop.until_told(told) == ["accepted in redis"]
    ((kept,),) = told
    assert isinstance(kept, Stored)
    assert own.status(kept.id) == "open"
    assert not loop.keeping.broken


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    ],
    ids=["READONLY", "OOM"],
)
def test_a_server_that_takes_nothing_sends_all_to_the_spool_and_is_used_again(
    own: System, loop: Loop, wrong: tuple[str, ...], right: tuple[str, ...]
) -> None:
    before = own.ledger.counters().total["accepted"]
    own.client.execute_command(*wrong)
    assert loop.keep(own.delivery(), own.delivery()) == ["accepted in spool"] * 2
    assert not loop.has_a_line
    own.client.execute_command(*right)
    loop.keeping.look_round()
    assert loop.keep(own.delivery()) == ["accepted in redis"]
    assert loop.has_a_line
    assert own.ledger.counters().total["accepted"] == before + 3
