"""Senders of a process take turns, by address: requests of one that has many wait for each other."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask

from receiver.contract.sender_address import TrustedProxies, sender_at
from receiver.delivery.answers import Answer, json_answer
from receiver.server import turns
from receiver.server.flask_bridge import MOST_OF_STORE, FlaskBridge, LongWorkBridge
from receiver.server.held_bytes import SPARE_BYTES, KnownSenders
from receiver.server.http_connection import HttpConnection
from receiver.server.open_connections import OpenConnections
from receiver.server.request_reader import HttpRequest
from receiver.server.turns import SMALL_BYTES, SharedTime, Turns
from tests.support.made_connections import arriving, new_content, receive
from tests.support.raw_http import request

MANY, FEW = "192.0.2.1", "192.0.2.2"


@pytest.mark.parametrize(
    ("address", "sender"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1:aaaa::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::2", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("/run/storehooks:web.sock", "/run/storehooks:web.sock"),
        ("", ""),
    ],
)
def test_an_address_tells_who_sends(address: str, sender: str) -> None:
    assert sender_at(address) == sender


@pytest.mark.parametrize("body", [b"", b"x" * 500])
@pytest.mark.parametrize(("peer", "is_proxy"), [("127.0.0.1", True), ("192.0.2.9", False)])
def test_each_request_of_a_trusted_proxy_is_of_the_sender_that_the_proxy_names(
    body: bytes, peer: str, is_proxy: bool
) -> None:
    """All had the proxy's address, and an outsider behind it had large deliveries of others refused."""
    loop, senders = asyncio.new_event_loop(), list[str]()

    def serve(connection: HttpConnection, _: HttpRequest) -> None:
        senders.append(connection.sender)
        connection.is_other = True
        connection.answer(Answer(200, b""))

    turns, proxies = Turns(loop), TrustedProxies(["127.0.0.1"])
    connections = OpenConnections(turns, serve, max_body=1000, read_seconds=10, proxies=proxies)
    connection = arriving(connections, b"", peer)
    for named in ("198.51.100.7, 192.0.2.1", "2001:db8:0:1::2"):
        whole = request("/", [("X-Forwarded-For", named)], body)
        receive(connection, whole[:-200])
        turns._run()
        receive(connection, whole[len(whole[:-200]) :])
        while connection.state != "idle":
            turns._run()
        assert connection.sender == ("" if is_proxy else peer), "the next may be of any sender"
        assert not connection.is_other, "and a delivery"
    loop.close()
    assert senders == (["192.0.2.1", "2001:db8:0:1::/64"] if is_proxy else [peer] * 2)


@pytest.mark.parametrize("size", [500, SMALL_BYTES + 1])
def test_senders_take_turns_however_many_requests_each_has(size: int) -> None:
    """Requests of 2,000 connections were served before that of a sender who has one: it waited for two seconds."""
    loop, done = asyncio.new_event_loop(), list[str]()
    work = Turns(loop)

    class Work:
        since = spent = 0.0

        def __init__(self, sender: str) -> None:
            self.sender = sender
            work.add(self, size)

        def step(self) -> None:
            done.append(self.sender)

    for sender in ["a"] * 100 + ["b"] * 2 + ["c"]:
        Work(sender)
    while len(done) < 103:
        work._run()
    loop.close()
    assert done == ["a", "b", "c", "a", "b"] + ["a"] * 98


def test_requests_of_a_unix_socket_share_the_time_of_one_sender() -> None:
    """It has no address, and an empty one is that of a proxy whose request has not named its sender."""
    loop = asyncio.new_event_loop()
    connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=10)
    assert arriving(connections, b"", "").sender
    loop.close()


def test_requests_of_a_proxy_are_read_first_and_then_share_the_time_of_their_senders() -> None:
    """The proxy took turns with three senders behind it, so the requests of all others waited for 600 of theirs."""
    loop, done = asyncio.new_event_loop(), list[str]()
    work = Turns(loop)

    class Proxied:
        since = spent = 0.0

        def __init__(self, named: str) -> None:
            self.sender, self.named = "", named
            work.add(self, 500)

        def step(self) -> None:
            if not self.sender:
                self.sender = self.named
                work.add(self, 500)
            else:
                done.append(self.sender)

    for sender in ["a"] * 20 + ["b"] * 2 + ["c"]:
        Proxied(sender)
    while len(done) < 23:
        work._run()
    loop.close()
    assert {"b", "c"} <= set(done[:10]), done


def test_time_of_a_request_that_is_answered_at_once_is_its_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy no sender was charged, so the refused requests of an outsider took time from all others."""
    loop, charged = asyncio.new_event_loop(), list[str]()
    monkeypatch.setattr(SharedTime, "charge", lambda _, sender, __: charged.append(sender))

    def refuse(connection: HttpConnection, _: HttpRequest) -> None:
        connection.answer(Answer(401, b""))

    turns, proxies = Turns(loop), TrustedProxies(["127.0.0.1"])
    connections = OpenConnections(turns, refuse, max_body=1000, read_seconds=10, proxies=proxies)
    connection = arriving(connections, request("/", [("X-Forwarded-For", MANY)], b"x"), "127.0.0.1")
    while connection.state != "idle":
        turns._run()
    loop.close()
    assert charged == [MANY, MANY]


class Step:
    since = spent = 0.0

    def __init__(self, sender: str, seconds: float) -> None:
        self.sender, self.seconds = sender, seconds

    def step(self) -> None:
        raise NotImplementedError


def do(lines: SharedTime, times: int) -> list[str]:
    """Take steps that take their time, and return their senders."""
    done = []
    for _ in range(times):
        one = lines.take()
        assert isinstance(one, Step)
        lines.charge(one.sender, one.seconds)
        done.append(one.sender)
    return done


def test_senders_share_time_however_long_their_steps_take() -> None:
    """Costly requests of eight addresses had a step for each of a sender with 900 kB: it waited for four seconds."""
    lines = SharedTime()
    for number in range(8 * 100):
        lines.add(Step(f"costly {number % 8}", 0.002), 0.0)
    for _ in range(100):
        lines.add(Step(FEW, 0.0002), 0.0)
    assert 85 <= do(lines, 100 + 8 * 10).count(FEW) <= 100, "each of the others has had as much time as these took"
    assert 0.02 / 0.002 - 2 <= do(lines, 8 * 10).count("costly 1") <= 0.02 / 0.002 + 2


def test_a_sender_with_one_connection_pays_too_and_has_its_turn() -> None:
    lines, done = SharedTime(), list[str]()
    for _ in range(100):
        lines.add(Step(MANY, 0.002), 0.0)
    lines.add(Step(FEW, 0.0002), 0.0)
    while len(done) < 60:
        done += do(lines, 1)
        if done[-1] == FEW:  # its next step is there only now
            lines.add(Step(FEW, 0.0002), 0.0)
    assert done.count(MANY) in (5, 6, 7)


def test_a_sender_whose_steps_take_long_waits_for_the_next_part_of_anothers_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between each two of the 55 parts of a delivery of 900 kB, steps of 40 ms of another sender were done: 5 s."""
    now, lines = 1000.0, SharedTime(0.05)
    monkeypatch.setattr(turns, "monotonic", lambda: now)
    for _ in range(20):
        lines.add(Step(MANY, 0.04), 0.0)
    assert do(lines, 2) == [MANY, MANY], "it waits for no one while it is alone"
    for _ in range(3):
        lines.add(Step(FEW, 0.0005), 0.0)
        assert do(lines, 1) == [FEW]
        assert lines.take() is None
        now += 0.005
    now += 0.03
    assert do(lines, 1) == [MANY], "it has waited for as long as its last step took"
    assert lines.take() is None
    now += 0.02
    assert do(lines, 2) == [MANY, MANY], "the other one is no longer present"


def test_large_debts_are_paid_at_once_where_all_have_some() -> None:
    """Turn by turn, finding the next of 1,000 senders took 130 ms."""
    lines = SharedTime()
    for number in range(2 * 100):
        lines.add(Step(f"costly {number % 100}", 1_000.0 + number % 100), 0.0)
    assert do(lines, 200) == [f"costly {number % 100}" for number in range(200)]


def test_new_senders_delay_none_for_ever_and_leave_nothing_behind() -> None:
    """A step of the one costs 200 of its turns, and each of these lets as many new ones go first as there are."""
    lines, done = SharedTime(), list[str]()
    for _ in range(3):
        lines.add(Step(FEW, 0.02), 0.0)
    for number in range(2_000):
        lines.add(Step(f"new {number}", 0.0003), 0.0)
        done += do(lines, 1)
    assert done.count(FEW) == 3
    assert len(lines._lines) < 50
    do(lines, lines.count)
    assert not lines._lines


@pytest.mark.parametrize("by", ["sender", "store"])
def test_senders_and_stores_take_turns_at_the_threads_of_flask(by: str) -> None:
    """A proxy that asks whether the process is ready would wait for all requests of a flood otherwise; and a store
    behind a proxy, for the long batches of another."""
    app, may_go_on, answered = Flask("app"), threading.Event(), list[str]()

    @app.get("/")
    def wait() -> str:
        may_go_on.wait(10)
        return "done"

    class Asking:
        def __init__(self, sender: str) -> None:
            self.sender = self.address = sender
            self.state, self.request_bytes = "served", 1

        def answer(self, _: object) -> None:
            answered.append(self.address)

    async def ask() -> None:
        bridge = FlaskBridge(app, asyncio.get_running_loop(), threads=1)
        for one in [MANY] * 20 + [FEW]:
            asking, store = Asking(one), ""
            if by == "store":
                asking.sender, store = "192.0.2.3", one
            bridge.serve(asking, HttpRequest("GET", "/", 1, {"host": "a"}, b"", True), store)  # type: ignore[arg-type]
        may_go_on.set()
        async with asyncio.timeout(10):
            while len(answered) < 21:
                await asyncio.sleep(0.01)

    asyncio.run(ask())
    assert answered.index(FEW) == 2, "after the one in the thread and the one whose turn it was"


def test_a_request_for_which_no_thread_can_be_started_costs_no_answer_of_another() -> None:
    app, ended = Flask("app"), list[str]()

    @app.get("/")
    def answer() -> str:
        return "done"

    def asking(name: str) -> SimpleNamespace:
        def note(_: object = None) -> None:
            ended.append(name)

        return SimpleNamespace(sender=name, address=name, answer=note, close=note, state="served", request_bytes=1)

    async def ask() -> None:
        bridge = FlaskBridge(app, asyncio.get_running_loop(), threads=1)
        submit, tried = bridge._threads.submit, []

        def refuse_second(*given: Any) -> Any:
            tried.append(given)
            if len(tried) == 2:
                raise RuntimeError("can't start new thread")
            return submit(*given)

        bridge._threads.submit = refuse_second  # type: ignore[method-assign]
        for name in ("first", "second", "third"):
            bridge.serve(asking(name), HttpRequest("GET", "/", 1, {"host": "a"}, b"", True))  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            while len(ended) < 3:
                await asyncio.sleep(0.01)

    asyncio.run(ask())
    assert sorted(ended) == ["first", "second", "third"]


def test_a_long_batch_makes_its_sender_known_unless_it_is_repeated() -> None:
    app, known, answered = Flask("app"), KnownSenders(), list[Answer]()
    answers = iter((("duplicate", ["a"]), ("accepted", []), ("accepted", ["a", "b"])))

    @app.post("/")
    def store() -> bytes:
        status, ids = next(answers)
        return json_answer({"ids": ids, "status": status}).body

    async def send() -> list[int]:
        bridge, balances = FlaskBridge(app, asyncio.get_running_loop(), threads=1), []
        connection = SimpleNamespace(
            sender=FEW, address=FEW, answer=answered.append, state="served", known_senders=known, request_bytes=70_000
        )
        for number in (1, 2, 3):
            request = HttpRequest("POST", "/", 1, {"host": "a"}, b"x" * 70_000, True)
            bridge.serve(connection, request, "north")  # type: ignore[arg-type]
            async with asyncio.timeout(10):
                while len(answered) < number:
                    await asyncio.sleep(0.01)
            balances.append(known.balance(FEW))
        return balances

    assert asyncio.run(send()) == [-SPARE_BYTES, -SPARE_BYTES, 70_000]


def test_long_work_of_outsiders_delays_none_of_known_senders() -> None:
    """Replays of a captured batch from eight addresses delayed the store's own batches for two seconds, and unsigned
    bodies that take a second to verify those of all stores."""
    app, may_go_on, answered, known = Flask("app"), threading.Event(), list[str](), KnownSenders()
    known.add_accepted(FEW, new_content(1))

    @app.post("/<sender>")
    def judge(sender: str) -> str:
        if sender != FEW:
            may_go_on.wait(10)
        return "done"

    def sending(sender: str) -> SimpleNamespace:
        given = {"sender": sender, "address": sender, "known_senders": known, "state": "served", "request_bytes": 1}
        return SimpleNamespace(**given, answer=lambda _: answered.append(sender))

    async def send() -> None:
        bridge = LongWorkBridge(app, asyncio.get_running_loop())
        for sender, store in ((MANY, "north"), (MANY, ""), (FEW, "north"), (FEW, "")):
            bridge.serve(sending(sender), HttpRequest("POST", f"/{sender}", 1, {"host": "a"}, b"", True), store)  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            while answered != [FEW, FEW]:
                await asyncio.sleep(0.01)
            may_go_on.set()
            while len(answered) < 4:
                await asyncio.sleep(0.01)

    asyncio.run(send())


def test_a_sender_with_many_long_batches_of_a_store_has_none_of_anothers_refused() -> None:
    """Replays of one captured batch on 60 connections had all long batches of the store answered 503."""
    app, may_go_on, answered = Flask("app"), threading.Event(), list[tuple[str, int]]()

    @app.post("/")
    def wait() -> str:
        may_go_on.wait(10)
        return "done"

    class Sending:
        state, request_bytes = "served", 1

        def __init__(self, sender: str) -> None:
            self.sender = self.address = sender

        def answer(self, answer: Answer) -> None:
            answered.append((self.sender, answer.status))

    async def send() -> None:
        bridge = FlaskBridge(app, asyncio.get_running_loop(), threads=1)
        for sender in [MANY] * (MOST_OF_STORE + 1) + [FEW, MANY, FEW]:
            bridge.serve(Sending(sender), HttpRequest("POST", "/", 1, {"host": "a"}, b"", True), "north")  # type: ignore[arg-type]
        assert answered == [(MANY, 503)] * 3
        may_go_on.set()
        async with asyncio.timeout(10):
            while len(answered) < MOST_OF_STORE + 4:
                await asyncio.sleep(0.01)

    asyncio.run(send())
    assert answered[3:7] == [(MANY, 200), (MANY, 200), (FEW, 200), (MANY, 200)]


def test_long_batches_of_a_store_that_would_wait_too_long_are_refused_at_once() -> None:
    """On 1,000 connections of one store they left no place for other senders, for minutes."""
    app, may_go_on, answered = Flask("app"), threading.Event(), list[Answer]()

    served = 0

    @app.post("/")
    def wait() -> str:
        nonlocal served
        may_go_on.wait(10)
        served += 1
        return "done"

    async def send() -> None:
        bridge = FlaskBridge(app, asyncio.get_running_loop(), threads=1)
        connection = SimpleNamespace(sender=MANY, address=MANY, answer=answered.append, state="served", request_bytes=1)
        gone = SimpleNamespace(sender=MANY, address=MANY, answer=answered.append, state="served", request_bytes=1)
        for store in ["north"] * (MOST_OF_STORE + 3) + ["south", "gone"]:
            sender = gone if store == "gone" else connection
            bridge.serve(sender, HttpRequest("POST", "/", 1, {"host": "a"}, b"", True), store)  # type: ignore[arg-type]
        assert [one.status for one in answered] == [503, 503], "one is in the thread"
        gone.state = "closing"
        may_go_on.set()
        async with asyncio.timeout(10):
            while len(answered) < MOST_OF_STORE + 4:
                await asyncio.sleep(0.01)

    asyncio.run(send())
    assert [one.status for one in answered[2:]] == [200] * (MOST_OF_STORE + 2)
    assert served == MOST_OF_STORE + 2, "that of a sender who is gone is not served"
