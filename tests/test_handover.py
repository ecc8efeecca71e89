"""Handover: groups go to the inbox by a line on which nobody waits; when it breaks, nothing is lost and all is told."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from receiver.contract.intake import Delivery
from receiver.handover import Handover, Outcomes
from receiver.inbox import Inbox, connect, keys
from receiver.keeping import Keeping, Kept
from tests.harness import Server, System, eventually, own_server
from tests.proxy import Proxy

TIMEOUT = 0.5


class Loop:
    """The part of the web process's loop that a handover knows: a poller, and calls from other threads."""

    def __init__(self, system: System, url: str) -> None:
        self.keeping = Keeping(system.config, Inbox(connect(url, timeout=TIMEOUT)))
        self.poller = selectors.DefaultSelector()
        self._calls: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = SimpleQueue()
        self.handover = Handover(self.keeping, self.poller, self._defer, timeout=TIMEOUT)

    def _defer(self, call: Callable[..., None], *arguments: Any) -> None:
        self._calls.put((call, arguments))

    def turn(self) -> None:
        for key, _ in self.poller.select(self.handover.patience(0.02)):
            key.data(key.fileobj)
        while not self._calls.empty():
            call, arguments = self._calls.get()
            call(*arguments)
        self.handover.look()

    def keep(self, *deliveries: Delivery) -> list[str]:
        """Hand a group over and turn until it is kept: where each is, and as what."""
        told: list[Outcomes] = []
        self.handover.keep(deliveries, told.append)

        def done() -> bool:
            self.turn()
            return bool(told)

        eventually(done)
        (outcomes,) = told
        return [f"{one.status} in {one.where}" if isinstance(one, Kept) else "nowhere" for one in outcomes]

    @property
    def has_a_line(self) -> bool:
        return len(self.poller.get_map()) == 1


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
def loop(own: System, server: Server) -> Loop:
    """One whose line is open: the first group opens it."""
    made = Loop(own, server.url)
    assert made.keep(own.delivery()) == ["accepted in redis"]
    assert made.has_a_line
    return made


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


def test_a_reply_that_is_lost_loses_no_delivery(own: System, server: Server, proxy: Proxy) -> None:
    loop = Loop(own, proxy.url)
    loop.keep(own.delivery())
    assert loop.has_a_line
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
    group = [own.delivery() for _ in range(2)]
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
    own.client.script_flush()
    assert loop.keep(own.delivery(), own.delivery()) == ["accepted in redis"] * 2
    assert loop.has_a_line


def test_an_idle_line_that_the_server_closes_sends_nobody_to_the_spool(own: System, loop: Loop) -> None:
    own.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def noticed() -> bool:
        loop.turn()
        return not loop.has_a_line

    eventually(noticed)
    assert not loop.keeping.broken


def test_what_the_server_has_against_one_is_not_the_others_fault(own: System, loop: Loop) -> None:
    one, other = own.delivery(), own.delivery()
    spoilt = Delivery(event=own.delivery().event, theirs="order.created", repeat_mark="mark")
    own.client.rpush(f"{keys.PREFIX}d:north:mark", "not a string")
    assert loop.keep(one, spoilt, other) == ["accepted in redis", "accepted in spool", "accepted in redis"]
    assert not loop.keeping.broken
    assert loop.has_a_line
    assert own.ledger.counters().total["duplicates"] == 0, "nobody has sent anything twice"


def test_a_store_with_rows_in_the_spool_joins_them_and_other_stores_do_not(own: System, loop: Loop) -> None:
    first = own.delivery()
    assert Keeping(own.config, Inbox(connect("unix:///nowhere", timeout=0.1))).keep_all([first])
    assert loop.keep(own.delivery()) == ["accepted in spool"]
    assert loop.keep(own.delivery(store="south")) == ["accepted in redis"]
    loop.keeping.look_round()
    assert loop.keep(own.delivery()) == ["accepted in redis"]


def test_a_spool_that_cannot_be_read_is_left_to_the_thread(own: System, loop: Loop) -> None:
    own.config.data_dir.mkdir(parents=True, exist_ok=True)
    (own.config.data_dir / "spool.sqlite3").write_bytes(b"this is no database" * 100)
    assert loop.keep(own.delivery()) == ["accepted in redis"]
