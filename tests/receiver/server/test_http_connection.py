"""Connections of a process: how many there may be, and what is logged where one cannot be served."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import uvloop

from receiver import logs
from receiver.server import http_connection, open_connections
from receiver.server.descriptors import CONNECTIONS, connections_within
from receiver.server.http_connection import (
    BODY_BYTES,
    KEEP_ALIVE_SECONDS,
    PIECE_BYTES,
    RECEIVE_BYTES,
    HttpConnection,
)
from receiver.server.open_connections import CROWD_SECONDS, LONG_SECONDS, MAX_HELD_BYTES, OpenConnections, is_costly
from receiver.server.request_reader import HttpRequest
from receiver.server.turns import Turns
from tests.support.logged_lines import capture_logs
from tests.support.made_connections import arriving, new_content, receive, transport
from tests.support.raw_http import chunked, request

MANY, FEW = "192.0.2.1", "192.0.2.2"


@pytest.mark.parametrize(
    ("descriptors", "connections"),
    [(resource.RLIM_INFINITY, CONNECTIONS), (8192, CONNECTIONS), (1024, 924), (256, 156), (64, 16)],
)
def test_connections_leave_descriptors_for_everything_else(descriptors: int, connections: int) -> None:
    assert connections_within(descriptors) == connections


def test_a_connection_that_comes_while_the_process_stops_does_not_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was accepted a moment before. A stopping process waited 8 s for its first request."""
    connections = OpenConnections(Mock(), lambda *_: None, max_body=1000, read_seconds=10)
    connections.stop()
    made = HttpConnection(connections)
    made.connection_made(transport())
    now = time.monotonic()
    monkeypatch.setattr(open_connections, "monotonic", lambda: now + 1)
    connections.check()
    assert made.state == "closing"


def test_requests_that_raise_are_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that finds such a request could fill the disk otherwise."""
    monkeypatch.setattr(http_connection, "problems", logs.ThrottledLog(logs.get("receiver")))

    def serve(_: HttpConnection, __: HttpRequest) -> None:
        raise ValueError("it may quote a payload")

    async def send(count: int) -> list[bytes]:
        loop = asyncio.get_running_loop()
        connections = OpenConnections(Turns(loop), serve, max_body=1000, read_seconds=5.0)
        server = await loop.create_server(lambda: HttpConnection(connections), "127.0.0.1", 0)
        answers = []
        async with server:
            for _ in range(count):
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(request())
                try:
                    answers.append(await reader.read())
                except ConnectionError:
                    answers.append(b"")
                writer.close()
        return answers

    with capture_logs() as lines:
        assert asyncio.run(send(20)) == [b""] * 20
    assert [(line["event"], line["exc_info"]) for line in lines] == [("a connection could not be served", True)]


def test_a_request_that_arrives_ends_after_connections_that_were_idle_before_it() -> None:
    """A thousand connections that send nothing had each delivery of several segments refused, with 408."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=10)
    idle, arriving = HttpConnection(connections), HttpConnection(connections)
    for connection in (idle, arriving):
        connection.connection_made(transport())
    arriving._enter("receiving", 10)
    idle.waiting_since, arriving.waiting_since = time.monotonic() - 9, time.monotonic() - 8
    connections.end_oldest(1)
    assert (idle.state, arriving.state) == ("closing", "receiving")
    later = HttpConnection(connections)
    later.connection_made(transport())
    later.waiting_since = time.monotonic() - 7
    connections.end_oldest(1)
    loop.close()
    assert arriving.state == "lingering", "it had its time"


def test_a_request_that_has_arrived_never_ends_for_new_connections() -> None:
    """A burst of 2,040 deliveries, each on a connection of its own: 700 of them were answered 408."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=10)
    connections.most = 2
    waiting = arriving(connections, request())
    ours, theirs = socket.socketpair()
    unread = HttpConnection(connections)
    unread.connection_made(transport(ours))
    theirs.sendall(request())
    connections.make_space(4)
    assert connections.crowded
    ours.recv(10_000)
    connections.make_space(4)
    assert not connections.crowded
    assert (waiting.state, unread.state) == ("receiving", "closing")
    assert connections.free == 0, "a new one may come when this one is closed"
    unread.connection_lost(None)
    assert connections.free == 1
    loop.close()
    for one in (ours, theirs):
        one.close()


def test_no_more_connections_end_than_are_needed_and_each_counts_until_it_is_closed() -> None:
    """Under a flood of bytes, connections took the last descriptors: the spool could not be opened."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=10)
    connections.most = 20
    for number in range(20):
        arriving(connections, b"POST" if number % 2 else b"\r\n").has_step = False
    for _ in range(3):  # asked again and again, until they are closed
        connections.make_space(4)
        assert not connections.crowded
        assert connections.free == 0
    left = [one for one in connections.all if one.state in ("idle", "receiving")]
    assert len(left) == 16
    for one in connections.all - set(left):
        one.connection_lost(None)
    loop.close()
    assert connections.free == 4


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (http_connection, open_connections):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    return clock


class Clock:
    now = 1000.0

    def send(self, connection: HttpConnection, data: bytes, pieces: int, seconds: float) -> None:
        """Steadily, as a sender on a slow line does."""
        for number in range(pieces):
            self.now += seconds / pieces
            receive(connection, data[len(data) * number // pieces : len(data) * (number + 1) // pieces])
            work_off(connection)


@pytest.mark.parametrize("known", [False, True])
def test_a_new_connection_stays_while_a_sender_with_many_sends_evenly(clock: Clock, known: bool) -> None:
    """Its first bytes come a round trip after it. 1,100 connections of one address, each with 3 kB and more to come,
    had all such deliveries of others closed without an answer: at first those of any address, then those of one store's
    own sender."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=100_000, read_seconds=10)
    connections.most = 60
    for _ in range(55):
        work_off(arriving(connections, request(body=b"x" * 60_000)[:3_000], MANY))
    clock.now += 0.15
    new = HttpConnection(connections)
    new.connection_made(transport(address=FEW))
    if known:
        connections.known_senders.add_accepted(MANY, new_content(100_000))
    connections.end_oldest(3)
    loop.close()
    assert new.state == "idle"


def test_of_two_senders_with_many_connections_the_one_that_has_a_balance_keeps_them(clock: Clock) -> None:
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=100_000, read_seconds=10)
    known = [arriving(connections, request(body=b"x" * 60_000)[:3_000], FEW) for _ in range(55)]
    others = [arriving(connections, request(body=b"x" * 60_000)[:3_000], MANY) for _ in range(55)]
    connections.known_senders.add_accepted(FEW, new_content(100_000))
    for one in known + others:
        work_off(one)
        clock.now += 0.001
    assert connections.end_oldest(55) == 55
    loop.close()
    assert {one.state for one in known} == {"receiving"}
    assert {one.state for one in others} == {"lingering"}


@pytest.mark.parametrize(("first", "then"), [(0, b""), (4, b""), (8_000, b""), (15_000, b"x")])
def test_a_delivery_that_arrives_keeps_its_connection_while_others_send_too_little(
    clock: Clock, first: int, then: bytes
) -> None:
    """Bare connections, some with a few kB at first or a byte now and then, ended each delivery of four seconds."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=100_000, read_seconds=10)
    sending = arriving(connections, request(body=b"x" * 60_000)[:200])
    work_off(sending)
    clock.send(sending, b"x" * 50_000, 40, 3.5)
    others = [arriving(connections, request(body=b"x" * 60_000)[:first]) for _ in range(5)]
    for one in others:
        work_off(one)
    for _ in range(2):
        for one in others:
            receive(one, then)
            work_off(one)
        clock.send(sending, b"x" * 1_000, 3, 0.3)
    for _ in range(5):
        assert connections.end_oldest(1) == 1
        assert sending.state == "receiving"
    for one in others:
        one.connection_lost(None)
    clock.now += 1
    new = HttpConnection(connections)
    new.connection_made(transport())
    connections.end_oldest(1)
    loop.close()
    assert (sending.state, new.state) == ("lingering", "idle"), "it sends no more"


def test_a_delivery_in_pieces_keeps_its_connection_while_others_send_hardly_as_much(clock: Clock) -> None:
    """Beside 2,010 connections with 850 bytes each 0.2 s, a delivery with 5 kB each 0.55 s was answered 408."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=100_000, read_seconds=10)
    whole = request(body=b"x" * 60_000)
    sending = arriving(connections, whole[:5_000])
    others = [arriving(connections, whole[:1_000]) for _ in range(20)]
    for one in (sending, *others):
        work_off(one)
    for tick in range(1, 90):  # of 0.05 s
        clock.now += 0.05
        if tick % 11 == 0:
            receive(sending, b"x" * 5_000)
        for one in others[tick % 4 :: 4]:
            receive(one, b"x" * 850)
        if tick % 10 == 0:
            connections.end_oldest(1)
        assert sending.state == "receiving"
    clock.now += 2
    new = HttpConnection(connections)
    new.connection_made(transport())
    while sending.state == "receiving":
        assert connections.end_oldest(1)
    loop.close()
    assert new.state == "idle", "what it has sent does not count for long"


def test_a_sender_may_begin_a_moment_after_it_has_connected_while_others_send_much(clock: Clock) -> None:
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=100_000, read_seconds=10)
    others = [arriving(connections, request(body=b"x" * 60_000)[:8_000]) for _ in range(3)]
    for one in others:
        work_off(one)
        receive(one, b"x" * 8_000)
    clock.now += 0.1
    new = HttpConnection(connections)
    new.connection_made(transport())
    clock.now += 0.1
    connections.end_oldest(1)
    loop.close()
    assert new.state == "idle"


@pytest.mark.parametrize("begun", [0, 3_000])
def test_a_sender_that_pauses_does_not_end_for_a_flood_of_connections_that_have_sent_less(
    clock: Clock, begun: int
) -> None:
    """Of 3,000 in a second, all in 1,000 places had come after the last bytes of a sender 0.4 s ago."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=100_000, read_seconds=10)
    pausing = arriving(connections, request(body=b"x" * 60_000)[:8_000])
    work_off(pausing)
    clock.now += 0.4
    for _ in range(connections.most - 1):
        work_off(arriving(connections, request(body=b"x" * 60_000)[:begun]))
    assert connections.end_oldest(400) == 400
    assert pausing.state == "receiving"
    clock.now += 0.35
    while pausing.state == "receiving":
        assert connections.end_oldest(1)
    loop.close()
    others = sum(one.state in ("idle", "receiving") for one in connections.all)
    assert others == connections.most - 1 - 400, "what it has sent does not count for long"


def test_in_a_flood_a_new_connection_that_stays_keeps_no_slower_one_from_ending(clock: Clock) -> None:
    """They are ranked by their bytes then, and a slower one may come after it."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=100_000, read_seconds=10)
    connections.most = 3
    ours, theirs = socket.socketpair()
    with ours, theirs:
        slow, new = HttpConnection(connections), HttpConnection(connections)
        slow.connection_made(transport(ours))
        receive(slow, request(body=b"x" * 60_000)[:200])
        new.connection_made(transport())
        other = arriving(connections, request(body=b"x" * 60_000)[:300])
        for one in (slow, other):
            work_off(one)
        theirs.send(b"x")
        clock.now += 0.06
        assert connections.end_oldest(1) == 1
    loop.close()
    assert (slow.state, new.state, other.state) == ("receiving", "idle", "lingering")


@pytest.mark.parametrize(
    ("pieces", "piece", "late", "ends"), [(50, b"x", 0, True), (1, b"x", 0.5, False), (20, b"x" * 100, 0, False)]
)
def test_a_trickle_ends_for_new_connections_also_while_bytes_of_it_wait_in_the_kernel(
    clock: Clock, pieces: int, piece: bytes, late: float, ends: bool
) -> None:
    """400 of them kept all new senders out of 156 places until their requests timed out, for 10 s. But what arrives
    while the loop is late is received."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=100_000, read_seconds=10)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        trickle = HttpConnection(connections)
        trickle.connection_made(transport(ours))
        receive(trickle, request(body=b"x" * 60_000)[:200])
        work_off(trickle)
        clock.send(trickle, piece * pieces, pieces, 0.01 * pieces)
        faster = arriving(connections, request(body=b"x" * 60_000)[:8_000])
        work_off(faster)
        theirs.send(b"x")
        clock.now += late
        assert connections.end_oldest(1) == ends
    loop.close()
    assert faster.state == "receiving", "it does not end for a slower one that stays"


def test_one_of_several_even_senders_ends_although_bytes_of_another_wait_in_the_kernel() -> None:
    """1,050 senders of 5 kB a second, in small packets, kept new ones out for seconds: one always had such bytes."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=100_000, read_seconds=10)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        first = HttpConnection(connections)
        first.connection_made(transport(ours))
        receive(first, request(body=b"x" * 60_000)[:200])
        work_off(first)
        other = arriving(connections, request(body=b"x" * 60_000)[:300])
        work_off(other)
        theirs.send(b"x")
        assert connections.end_oldest(1) == 1
    loop.close()
    assert (first.state, other.state == "receiving") == ("receiving", False)


def test_a_request_that_takes_long_to_read_ends_for_new_connections_although_it_waits_for_its_turn() -> None:
    """220 of them, in blank lines as chunks, kept all new senders out for five seconds of the process's own time."""
    loop = asyncio.new_event_loop()
    turns = Turns(loop)
    connections = OpenConnections(turns, lambda *_: None, max_body=100_000, read_seconds=10)
    costly = arriving(connections, CHUNKED + b"4\r\n\r\n\r\n\r\n" * 10_000)
    while not is_costly(costly):
        assert not connections.end_oldest(1)
        turns._run()
    assert costly.has_step
    assert connections.end_oldest(1)
    loop.close()
    assert costly.state == "lingering"


@pytest.mark.parametrize(
    ("size", "packet"), [(1_000, RECEIVE_BYTES), (16_000, RECEIVE_BYTES), (1_400, 1_460), (300, 512)]
)
def test_a_delivery_in_chunks_is_not_costly(size: int, packet: int) -> None:
    """In packets of 1,460 bytes, each one of 300 kB was ended first for new connections. The machine may take the
    processor away, and the time counts, so one of three is enough."""
    assert not all(becomes_costly(chunked(b"x" * 900_000, size), packet) for _ in range(3))


def becomes_costly(data: bytes, packet: int) -> bool:
    loop = asyncio.new_event_loop()
    turns = Turns(loop)
    connections = OpenConnections(turns, lambda *_: None, max_body=1 << 20, read_seconds=10)
    delivery = arriving(connections, CHUNKED)
    for name in ("pause_reading", "resume_reading"):  # a mock takes longer than the work
        setattr(delivery.transport, name, lambda: None)
    was_costly = False
    for at in range(0, len(data), packet):
        was_costly = was_costly or is_costly(delivery)
        receive(delivery, data[at : at + packet])
        while delivery.state == "receiving" and delivery.has_step:
            turns._run()
    loop.close()
    assert delivery.state in ("complete", "served")
    return was_costly


def test_what_has_taken_long_waits_for_what_has_not_and_a_large_delivery_for_few_of_them() -> None:
    """Chunks of one byte were small until their bytes were counted, and a delivery of 900 kB waited for 15 rounds."""
    loop, done = asyncio.new_event_loop(), list[str]()
    turns = Turns(loop)

    class Work:
        def __init__(self, name: str, size: int, steps: int, took: float, since: float = 0.0) -> None:
            self.name, self.size, self.steps, self.took, self.since, self.spent = name, size, steps, took, since, 0.0
            self.sender = "192.0.2.1"
            turns.add(self, size)

        def step(self) -> None:
            began = time.thread_time()
            while time.thread_time() - began < self.took:
                pass
            self.steps -= 1
            if self.steps:
                turns.add(self, self.size)
            else:
                done.append(self.name)

    for number in range(5):
        Work(f"costly {number}", 500, steps=8, took=0.0006)
    Work("large", BODY_BYTES, steps=15, took=0.0, since=0.3)
    Work("small", 500, steps=2, took=0.0)
    while len(done) < 2:
        turns._run()
    assert set(done) == {"small", "large"}
    Work("later", BODY_BYTES, steps=1, took=0.0, since=60.0)
    while len(done) < 8:
        turns._run()
    loop.close()
    assert done[-1] == "later", "what has taken long does not wait for ever"


def test_the_time_in_which_a_connection_waits_for_its_turn_is_not_its_senders() -> None:
    """Large deliveries need many turns. While a process was busy with others, they were answered 408."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=10)
    busy = arriving(connections, b"POST")
    assert busy.has_step
    busy.deadline -= 11
    busy.scheduled_at -= 11
    connections.check()
    assert busy.state == "receiving"
    busy.step()
    assert busy.state == "receiving"
    assert 9 < busy.deadline - time.monotonic() <= 10
    busy.deadline -= 11
    connections.check()
    loop.close()
    assert busy.state == "lingering", "now its sender is late"


CHUNKED = b"POST /webhooks/north HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def work_off(connection: HttpConnection) -> None:
    while connection.has_step:
        connection.step()


def test_a_connection_that_is_lost_is_not_read_any_more() -> None:
    """Its bytes were work beyond every limit: a few megabytes held a process for many seconds."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1_000_000, read_seconds=10)
    lost = arriving(connections, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n12")
    lost.connection_lost(None)
    assert (lost.held_bytes, connections.all) == (0, set())
    lost.step()
    assert lost.reader.in_body is False
    loop.close()


@pytest.mark.parametrize("known", [False, True])
def test_waiting_requests_of_senders_with_many_places_end_for_new_connections(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Some that closed their connections, and so needed few at a time, had all places, and others waited for 8 s."""
    monkeypatch.setattr(open_connections, "CROWD_PLACES", 3)
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=10)
    connections.most = 12
    senders = [MANY] * 5 + ["192.0.2.3"] * 4 + [FEW] * 3
    waiting = [arriving(connections, request(), one) for one in senders]
    for one in waiting:
        one.step()
    waiting[0].step()
    waiting[1].step()
    waiting[0].is_other = True
    connections.known_senders.add_accepted(MANY, new_content(9))
    connections.known_senders.add_other(MANY, 8 if known else 9)
    connections.make_space(1)
    assert connections.crowded, "they may be answered soon"
    for one in waiting:
        one.received_at -= CROWD_SECONDS
    idle = HttpConnection(connections)
    idle.connection_made(transport())
    connections.make_space(2)
    assert idle.state == "closing", "one that may end is not enough"
    states = [one.state for one in waiting]
    rest = ["complete" if known else "lingering"] * 3
    assert states == ["closing", "served", *rest, *["complete"] * 7], "of a known one only what is no delivery"
    assert not connections.crowded
    connections.all -= {one for one in connections.all if one.state in ("closing", "lingering")}
    connections.make_space(9)
    loop.close()
    others = [one.state for one in waiting[5:]]
    assert others == [*["lingering"] * 4, *["complete"] * 3], "the next one with many"
    waiting[1].received_at -= LONG_SECONDS
    connections.all |= {*waiting[:5]}
    connections.make_space(12)
    assert waiting[1].state == "closing", "it waited for long"
    assert {one.state for one in waiting[5:9]} == {"closing"}, "those that were refused do not wait for their old step"
    assert b"503" in waiting[5].transport.write.call_args[0][0]  # type: ignore[attr-defined]
    waiting[0].transport.write.assert_not_called()  # type: ignore[attr-defined]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("then", ["reset", "more", "half-closed"])
def test_a_reset_is_noticed_while_a_request_is_served(new_loop: Callable[[], Any], then: str) -> None:
    """Replays of a batch with some bytes after it kept all others waiting, for 10 s after their senders were gone."""

    async def reset_while_served() -> None:
        loop = asyncio.get_running_loop()
        connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=5)
        server = await loop.create_server(lambda: HttpConnection(connections), "127.0.0.1", 0)
        async with server:
            with socket.create_connection(server.sockets[0].getsockname()) as sender:
                sender.sendall(request())
                await until(lambda: any(one.state == "served" for one in connections.all))
                if then == "more":
                    sender.sendall(b"GET /x")
                elif then == "half-closed":
                    sender.shutdown(socket.SHUT_WR)
                await until(lambda: then == "reset" or not next(iter(connections.all)).receives)
                connections.check()
                assert connections.all, "the sender waits for its answer"
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

            def is_gone() -> bool:
                connections.check()
                return not connections.all

            await until(is_gone)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(reset_while_served())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_request_that_waits_to_be_served_is_dropped_with_its_connection() -> None:
    """Large bodies of senders that reset their connections filled the memory, and kept others waiting."""
    loop, served = asyncio.new_event_loop(), Mock()
    connections = OpenConnections(Turns(loop), served, max_body=1_000_000, read_seconds=10)
    connections.known_senders.add_accepted("192.0.2.1", new_content(30_000))
    lost = arriving(connections, request(body=b"x" * 20_000))
    while lost.state != "complete":
        lost.step()
    assert lost.held_bytes >= 20_000
    lost.connection_lost(None)
    lost.step()
    loop.close()
    assert (lost.held_bytes, served.called) == (0, False)
    assert connections.known_senders.balance("192.0.2.1") < 10_000, "it counts against its sender"


def test_a_request_that_is_served_does_not_count_against_a_sender_that_is_gone() -> None:
    loop, served = asyncio.new_event_loop(), Mock()
    connections = OpenConnections(Turns(loop), served, max_body=1_000_000, read_seconds=10)
    connections.known_senders.add_accepted("192.0.2.1", new_content(30_000))
    gone = arriving(connections, request(body=b"x" * 20_000))
    work_off(gone)
    gone.connection_lost(None)
    loop.close()
    assert served.called
    assert connections.known_senders.balance("192.0.2.1") == 30_000


@pytest.mark.parametrize("end", [HttpConnection.close, open_connections.end, OpenConnections.check])
@pytest.mark.parametrize("size", [20_000, 900_000])
def test_what_ends_unserved_counts_against_its_sender(
    monkeypatch: pytest.MonkeyPatch, size: int, end: Callable[[Any], None]
) -> None:
    """Attackers that broke off what they sent stayed known, as no delivery of theirs was refused."""
    monkeypatch.setattr(open_connections, "MAX_HELD_BYTES", 1000)
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1_000_000, read_seconds=10)
    connections.known_senders.add_accepted("192.0.2.1", new_content(1_000_000))
    one = arriving(connections, request(body=b"x" * size)[:-1])
    work_off(one)
    end(connections if end is OpenConnections.check else one)
    one.connection_lost(None)
    loop.close()
    assert 1_000_000 - connections.known_senders.balance("192.0.2.1") in range(size - 1, size + 200)


def test_a_large_head_is_served_after_small_requests_and_counts_among_the_held_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused requests of 64 kB of headers and no body were served in front of healthy deliveries."""
    monkeypatch.setattr("receiver.server.turns.TURN_SECONDS", 5.0)  # other tests may take the processor meanwhile
    loop, served = asyncio.new_event_loop(), list[HttpConnection]()
    turns = Turns(loop)
    connections = OpenConnections(turns, lambda one, _: served.append(one), max_body=1_000_000, read_seconds=10)
    large = arriving(connections, request(headers=[(f"x-{number}", "x" * 7_000) for number in range(3)]))
    small = arriving(connections, request())
    while len(served) < 2:
        turns._run()
    loop.close()
    assert served == [small, large]
    assert large.held_bytes > 21_000


def test_a_request_that_waits_for_its_turn_is_arriving_and_gets_an_answer_at_its_deadline() -> None:
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=10)
    waiting = arriving(connections, b"POST / HTTP/1.1\r\n")
    assert waiting.state == "receiving"
    open_connections.end(waiting)
    loop.close()
    assert waiting.transport.write.call_args[0][0].startswith(b"HTTP/1.1 408 ")  # type: ignore[attr-defined]


@pytest.mark.parametrize("more", [b"", b"x" * 2_000])
def test_large_deliveries_that_arrive_are_not_refused_for_those_that_hold_bytes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    """930 senders of 71 kB that ended after two seconds had each delivery of 900 kB that took as long answered 503."""
    monkeypatch.setattr(open_connections, "MAX_HELD_BYTES", 1 << 20)
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1 << 20, read_seconds=10)
    small, large = (arriving(connections, request(body=b"x" * size)[:200]) for size in (9_000, 900_000))
    held = [arriving(connections, request(body=b"x" * 100_000)[:71_000]) for _ in range(8)]
    for one in (small, large, *held):
        work_off(one)
    for _ in range(4):
        clock.send(large, b"x" * 150_000, 10, 0.4)
        for one in held:
            receive(one, more)
    connections.check()
    loop.close()
    assert (small.state, large.state) == ("receiving", "receiving")
    assert sum(one.state == "lingering" for one in held) in range(1, 5)


def test_complete_requests_have_none_refused_that_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """900 senders that completed 128 kB at once had deliveries of 200 bytes answered 503."""
    monkeypatch.setattr(open_connections, "MAX_HELD_BYTES", 1 << 20)
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1 << 20, read_seconds=10)
    complete = [arriving(connections, request(body=b"x" * 60_000)) for _ in range(20)]
    for one in complete:
        while one.state != "complete":
            one.step()
    held = [arriving(connections, request(body=b"x" * 60_000)[:50_000]) for _ in range(10)]
    small = arriving(connections, request()[:-1])
    connections.check()
    loop.close()
    assert small.state == "receiving"
    assert sum(one.state == "receiving" for one in held) == 5, "a quarter of the bytes is left to them"


def test_requests_that_wait_behind_another_leave_most_bytes_to_others() -> None:
    """900 connections of 90 kB of small requests each, sent at once, had every larger delivery refused with 503."""

    async def send() -> int:
        loop = asyncio.get_running_loop()
        connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1 << 20, read_seconds=5.0)
        server = await loop.create_server(lambda: HttpConnection(connections), "127.0.0.1", 0)
        sent = request() * (90_000 // len(request()))
        async with server:
            senders = [await asyncio.open_connection(*server.sockets[0].getsockname()) for _ in range(20)]
            for _, writer in senders:
                writer.write(sent)
            while not all(one.state == "served" and not one.receives for one in connections.all):
                await asyncio.sleep(0)  # until each has received all that it receives
            most = max(one.held_bytes for one in connections.all)
            for _, writer in senders:
                writer.close()
        return most

    most = asyncio.run(asyncio.wait_for(send(), 20))
    assert 0 < most <= 2 * RECEIVE_BYTES < MAX_HELD_BYTES / CONNECTIONS / 2


def test_no_more_is_received_at_once_than_a_body_misses() -> None:
    """What is received behind it would be held without being read."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1 << 20, read_seconds=10)
    sent = request(body=b"x" * 60_000)
    one = arriving(connections, sent[:1_000])
    assert len(one.get_buffer(-1)) == RECEIVE_BYTES, "its length is not read yet"
    one.step()
    assert len(one.get_buffer(-1)) == PIECE_BYTES
    receive(one, sent[1_000:-20_000])
    assert len(one.get_buffer(-1)) == 20_000
    receive(one, sent[-20_000:-10])
    loop.close()
    assert len(one.get_buffer(-1)) == RECEIVE_BYTES


def test_empty_lines_do_not_make_an_idle_connection_younger() -> None:
    """With an empty line now and then, a thousand idle connections had slow deliveries ended for new ones."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=10)
    idle = arriving(connections, b"\r\n")
    before = (idle.state, idle.waiting_since, idle.deadline)
    for data in (b"\n", b"\r", b"\r\n\r\n"):
        receive(idle, data)
    loop.close()
    assert (idle.state, idle.waiting_since, idle.deadline) == before
    assert idle.state == "idle"


def test_a_new_connection_ends_after_those_that_were_idle_before_it() -> None:
    """Its request may be on the way. It has less time for it than one that was answered has for the next."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=KEEP_ALIVE_SECONDS / 2)
    answered, new = HttpConnection(connections), HttpConnection(connections)
    for connection in (answered, new):
        connection.connection_made(transport())
        if connection is answered:
            connection._enter("idle", KEEP_ALIVE_SECONDS)
        connection.waiting_since -= 9
    connections.end_oldest(1)
    loop.close()
    assert (answered.state, new.state) == ("closing", "idle")
