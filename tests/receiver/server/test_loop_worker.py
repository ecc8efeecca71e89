"""The event loop: deliveries are stored in groups, and no slow sender or server delays the others."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from redis.exceptions import ResponseError

from receiver.contract.compose import compose
from receiver.contract.intake import Delivery, receive
from receiver.delivery.answers import Answer
from receiver.delivery.pipeline import open_storage
from receiver.delivery.storage import NotStored, Stored
from receiver.inbox import AcceptResult, keys
from receiver.inbox.accept_batch import GROUP_SIZE
from receiver.server.deliveries import GROUP_BYTES, MOST_BATCHES, Deliveries, next_group
from receiver.server.loop_worker import LoopWorker
from receiver.server.open_connections import OpenConnections
from receiver.server.request_reader import HttpRequest
from receiver.server.turn_lines import MOST_BYTES, MOST_GONE, TurnLines
from receiver.server.turns import Turns
from receiver.spool import open_events
from tests.support.bad_input import Corpus
from tests.support.harness import Process, Server, System, children_of, eventually, gone, own_server
from tests.support.raw_http import read_answer, request

LIMIT = 4 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with own_server(tmp_path_factory.mktemp("server")) as one:
        yield one


@pytest.fixture(scope="module")
def web(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("system")
    system = System(folder, server.url)
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("threads = 4", f"threads = 4\nmax_body = {LIMIT}", 1))
    system.start("web")
    yield system
    system.close()


def deliveries(system: System, count: int, store: str = "north") -> list[Delivery]:
    known, now = system.config.known_stores[store], time.time()
    made = [
        compose(known, topic="order.created", delivery_id=f"msg_{number}", data={"id": number}, now=now)
        for number in range(count)
    ]
    return [receive(one.headers, one.body, store=known, now=now) for one in made]


# Groups


def test_a_repeat_within_one_group_is_a_duplicate_and_each_is_counted(system: System) -> None:
    storage, _ = open_storage(system.config, system.inbox)
    first, second = deliveries(system, 2)
    (south,) = deliveries(system, 1, store="south")
    stored = storage.store_all([first, second, first, south, first])
    assert [one.status for one in stored if isinstance(one, Stored)] == [
        "accepted",
        "accepted",
        "duplicate",
        "accepted",
        "duplicate",
    ]
    counters = system.ledger.counters()
    assert (counters.stores["north"]["accepted"], counters.stores["north"]["duplicates"]) == (2, 2)
    assert counters.stores["south"]["accepted"] == 1
    assert system.identity_holds()
    assert {event.id for event in system.ledger.events(store="north")} == {one.id for one in stored[:2]}


def test_a_quota_limits_only_its_own_store_in_a_group(system: System) -> None:
    group = [*deliveries(system, 3), *deliveries(system, 1, store="south")]
    replies = system.inbox.accept(group, quotas={"north": 2})
    assert [reply.status for reply in replies] == ["accepted", "accepted", "full", "accepted"]


def test_an_error_affects_only_the_delivery_that_caused_it(system: System) -> None:
    one, other = deliveries(system, 2)
    refused = Delivery(event=system.delivery().event, theirs="order.created", content_hash="mark")
    system.damage_mark_of(refused)
    replies = system.inbox.accept_each([one, refused, other])
    assert [type(reply) for reply in replies] == [AcceptResult, ResponseError, AcceptResult]
    storage, _ = open_storage(system.config, system.inbox)
    stored = storage.store_all([one, refused])
    assert [one.where for one in stored if isinstance(one, Stored)] == ["redis", "spool"]
    assert not storage._breaker.is_open


def test_a_group_larger_than_one_script_is_stored_in_order(system: System) -> None:
    group = deliveries(system, 300)
    replies = system.inbox.accept(group)
    assert [reply.id for reply in replies] == [one.event.id for one in group]
    ready = system.client.zrange(f"{keys.READY}", 0, -1)
    assert [one.decode() for one in ready] == [one.event.id for one in group]


def test_without_redis_a_group_is_one_transaction_of_the_spool(system: System, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    with own_server(tmp_path / "own") as server:
        storage, _ = open_storage(system.config, type(system.inbox)(server.client))
    group = deliveries(system, 5)
    stored = storage.store_all([*group, group[0]])
    assert [(one.status, one.where) for one in stored if isinstance(one, Stored)] == [
        *[("accepted", "spool")] * 5,
        ("duplicate", "spool"),
    ]
    rows = open_events(system.config.data_dir).oldest(10)
    assert [row.delivery.event.id for row in rows] == [one.event.id for one in group]


def test_without_redis_and_spool_no_delivery_is_stored(system: System, tmp_path: Path) -> None:
    config = system.config
    receiver = config.receiver.model_copy(update={"spool": "off"})
    with own_server(tmp_path) as server:
        storage, _ = open_storage(config.model_copy(update={"receiver": receiver}), type(system.inbox)(server.client))
    assert [type(one) for one in storage.store_all(deliveries(system, 2))] == [NotStored] * 2


def test_a_group_has_all_small_deliveries_and_a_bounded_number_of_large_bytes(system: System) -> None:
    few = deliveries(system, 3)
    small, event = by_store(*few), few[0].event
    half = Delivery(event=replace(event, body=b"x" * (GROUP_BYTES // 2)), theirs="")
    large = by_store(half, half, half, half, half)
    assert [len(next_group(small, large, by_store())) for _ in range(4)] == [5, 2, 1, 0]
    batch = replace(half, event=event, rest=(half,) * 999)
    batches = by_store(batch, batch, batch)
    assert [len(next_group(by_store(), by_store(), batches)) for _ in range(4)] == [1, 1, 1, 0]
    group = next_group(by_store(*few * 100), by_store(half, half), by_store(batch))
    assert [one for _, one in group[-2:]] == [half, batch], "small ones cannot delay them for ever"
    assert len(group) == GROUP_SIZE


def test_large_deliveries_do_not_wait_for_batches_and_stores_take_turns(system: System) -> None:
    """With 60 batches of one store under way, those of another with 20 kB waited for two to seven seconds."""
    event = deliveries(system, 1)[0].event
    one = Delivery(event=event, theirs="")
    batch, other = replace(one, rest=(one,) * 99), Delivery(event=replace(event, store="south"), theirs="")
    large, batches = by_store(one, one, other), by_store(*[batch] * 60, replace(other, rest=(one,)))
    groups = [[found.event.store for _, found in next_group(by_store(), large, batches)] for _ in range(3)]
    assert groups == [["north", "south", "north", "north"], ["south"], ["north"]]


def test_small_deliveries_do_not_wait_for_all_those_of_another_store(system: System) -> None:
    """Beside 800 connections of one store, those of another waited for up to half a second."""
    event = deliveries(system, 1)[0].event
    many, one = Delivery(event=event, theirs=""), Delivery(event=replace(event, store="south"), theirs="")
    small = by_store(*[many] * 800, one)
    assert one in [found for _, found in next_group(small, by_store(), by_store())]


def test_small_batches_of_a_store_do_not_wait_for_large_ones_of_another_one_by_one(system: System) -> None:
    """Beside batches of 100 of one store, 150 batches of two of another waited for three seconds."""
    event = deliveries(system, 1)[0].event
    one, other = Delivery(event=event, theirs=""), Delivery(event=replace(event, store="south"), theirs="")
    batches = by_store(*[replace(one, rest=(one,) * 99)] * 9, *[replace(other, rest=(other,))] * 150)
    sizes = [len(next_group(by_store(), by_store(), batches)) for _ in range(7)]
    assert sizes == [1, 50, 1, 50, 1, 50, 1]
    half = replace(other, event=replace(event, body=b"x" * (GROUP_BYTES // 2)))
    large = by_store(*[replace(half, rest=(half,))] * 3)
    assert [len(next_group(by_store(), by_store(), large)) for _ in range(3)] == [1, 1, 1], "their bytes count too"


CONNECTED = SimpleNamespace(state="served", request_bytes=1_000)


def test_deliveries_of_senders_that_are_gone_do_not_wait_without_end(system: System) -> None:
    """Replays of a batch on connections that were reset filled the memory, and delayed others after the last."""
    gone, one = SimpleNamespace(state="closing", request_bytes=1_000), deliveries(system, 1)[0]
    lines: TurnLines[tuple[SimpleNamespace, Delivery]] = TurnLines()
    for number in range(3 * MOST_GONE):
        lines.add("north", "192.0.2.66", (gone if number else CONNECTED, one))
    assert lines.count("north") == 3 * MOST_GONE, "the first can be answered"
    assert lines.take()[0] is CONNECTED
    lines.add("north", "192.0.2.66", (CONNECTED, one))
    assert lines.count("north") == MOST_GONE


def test_deliveries_of_a_store_do_not_wait_for_all_those_that_another_sends_again(system: System) -> None:
    """Replays of one captured batch of 100 events delayed the store's own batches by four seconds."""
    event = deliveries(system, 1)[0].event
    own, captured = Delivery(event=event, theirs=""), Delivery(event=replace(event, body=b"{}"), theirs="")
    for rest in ((), (own,) * 99):
        lines = by_store(*[replace(captured, rest=rest)] * 300, sender="192.0.2.66")
        lines.add(own.event.store, "192.0.2.1", (CONNECTED, replace(own, rest=rest)))
        small, batches = (by_store(), lines) if rest else (lines, by_store())
        groups = [found.event for _ in range(2) for _, found in next_group(small, by_store(), batches)]
        assert groups.index(own.event) == 1


def test_batches_that_are_sent_again_leave_places_for_others(system: System) -> None:
    """Replays of a captured batch, faster than they are stored, had all places of a process; others waited for 10 s."""
    one, answered = deliveries(system, 1)[0], list[tuple[str, int]]()
    admission = Mock(admit=Mock(return_value=replace(one, rest=(one,) * 99)))
    admitting = Deliveries(admission, Mock(busy=True), Mock(), Mock())
    again = HttpRequest("POST", "/webhooks/north", 1, {"host": "a"}, b"[]", True)
    for sender in ["192.0.2.66"] * (MOST_BATCHES + 50) + ["192.0.2.1"] * 3:

        def answer(answer: Answer, sender: str = sender) -> None:
            answered.append((sender, answer.status))

        admitting.serve(Mock(sender=sender, state="served", answer=answer, request_bytes=1_000), again)
    assert answered == [("192.0.2.66", 503)] * 53


def test_large_deliveries_that_come_faster_than_they_are_stored_do_not_fill_the_memory(system: System) -> None:
    """900 connections of a store with 990 kB each took 900 MB, beside a server that wrote slowly."""
    one, answered = deliveries(system, 1)[0], list[tuple[str, int]]()
    large = replace(one, event=replace(one.event, body=b"x" * 1_000_000))
    other = replace(large, event=replace(large.event, store="south"))
    admission, commit = Mock(answer=Mock(return_value=Answer(200, b""))), Mock(busy=True)
    admitting = Deliveries(admission, commit, Mock(), Mock())
    request = HttpRequest("POST", "/webhooks/north", 1, {"host": "a"}, b"{}", True)

    def send(sender: str, delivery: Delivery, size: int = 1_000_000) -> None:
        admission.admit.return_value = delivery
        connection = Mock(sender=sender, state="served", request_bytes=size)
        connection.answer = lambda answer: answered.append((sender, answer.status))
        admitting.serve(connection, request)

    for _ in range(80):
        send("192.0.2.66", large)
    send("192.0.2.1", large)
    send("192.0.2.2", other)
    assert answered == [("192.0.2.66", 503)] * (82 - MOST_BYTES // 1_000_000)
    commit.busy = False
    commit.store.side_effect = lambda group, on_stored: on_stored([None] * len(group))
    answered.clear()
    admitting.store_next_group()
    assert Counter(answered) == {("192.0.2.66", 200): 65, ("192.0.2.1", 200): 1, ("192.0.2.2", 200): 1}
    commit.busy = True
    for _ in range(MOST_BYTES // 1_000_000):
        send("192.0.2.66", large)
    assert len(answered) == 67, "what is stored does not count any more"
    for size in (20_000, 20_000, 1_000_000):
        send("192.0.2.66", large, size)
        send("192.0.2.1", large)
    assert len(answered) == 67 + 2 + 2 + 1 + 1, "as many are refused as the newest one takes"


def by_store(*waiting: Delivery, sender: str = "192.0.2.1") -> Any:
    lines: TurnLines[tuple[SimpleNamespace, Delivery]] = TurnLines()
    for one in waiting:
        lines.add(one.event.store, sender, (CONNECTED, one))
    return lines


# A hanging server


@pytest.mark.timed
def test_a_hanging_server_delays_no_health_check_and_no_delivery_for_a_second(web: System, server: Server) -> None:
    assert web.post(web.request()).status_code == 200
    for _ in range(3):  # other tests run meanwhile, and can only make it slower
        slowest, healthy = slowest_while_it_hangs(web, server)
        print(f"while the server hung: slowest delivery {slowest:.2f} s, slowest health {healthy * 1000:.0f} ms")
        eventually(lambda: web.http.get("/readyz").json().get("spooled") == 0)
        if slowest < 1.0 and healthy < 0.4:
            break
    assert slowest < 1.0
    assert healthy < 0.4  # it does not wait for the timeout of Redis
    assert web.identity_holds()


def slowest_while_it_hangs(web: System, server: Server) -> tuple[float, float]:
    """Seconds of the slowest delivery and of the slowest health check."""
    assert server.process
    stop = threading.Event()
    slowest, others = [0.0], []

    def deliver() -> None:
        while not stop.is_set():
            made = web.request()
            began = time.monotonic()
            answer = web.post(made)
            slowest[0] = max(slowest[0], time.monotonic() - began)
            if answer.status_code != 200:
                others.append(answer.status_code)

    senders = [threading.Thread(target=deliver) for _ in range(4)]
    server.process.send(signal.SIGSTOP)
    try:
        for sender in senders:
            sender.start()
        healthy = 0.0
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            began = time.monotonic()
            assert web.http.get("/healthz").status_code == 200
            healthy = max(healthy, time.monotonic() - began)
    finally:
        server.process.send(signal.SIGCONT)
        stop.set()
        for sender in senders:
            sender.join()
    assert others == []
    return slowest[0], healthy


# Senders


def test_a_sender_that_reads_slowly_gets_every_answer_in_order(web: System) -> None:
    corpus = Corpus(web.config)
    whole = [corpus.signed(extra={"webhook-id": f"slow_{number}"}) for number in range(100)]
    with socket.socket() as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sender.connect(("127.0.0.1", web.port))
        sender.settimeout(20)
        writing = threading.Thread(target=sender.sendall, args=(b"".join([*whole, *whole]),))
        writing.start()
        data = b""
        while data.count(b"}") < 200 and (more := sender.recv(97)):
            data += more
        writing.join()
    answers = [orjson.loads(body) for body in re.findall(rb"\r\n\r\n(\{.*?\})", data)]
    assert [one["status"] for one in answers[:100]] == ["accepted"] * 100
    assert [one["id"] for one in answers[:100]] == [one["id"] for one in answers[100:]]


def test_deliveries_of_senders_that_disconnect_early_are_stored(web: System) -> None:
    corpus = Corpus(web.config)
    before = web.ledger.counters().total["accepted"]
    for number in range(40):
        with socket.create_connection(("127.0.0.1", web.port)) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0" if number % 2 else bytes(8))
            sender.sendall(corpus.signed(extra={"webhook-id": f"gone_{number}"}))
    assert web.post(web.request()).status_code == 200
    without_reset = 20  # a reset may overtake the bytes before it
    eventually(lambda: web.ledger.counters().total["accepted"] >= before + without_reset + 1)


def test_the_bytes_that_one_process_buffers_are_bounded(web: System) -> None:
    """Requests that never end, with more bytes than a process may buffer; connections without bytes stay open."""
    idle = socket.create_connection(("127.0.0.1", web.port), timeout=5)
    idle.sendall(Corpus(web.config).signed(extra={"webhook-id": "idle_1"}))
    assert read_answer(idle).status == 200
    head = request(headers=[("content-length", str(LIMIT))], length=False)
    senders = [socket.create_connection(("127.0.0.1", web.port), timeout=5) for _ in range(20)]
    for sender in senders:
        try:
            sender.sendall(head + b"x" * (LIMIT - 1))
        except OSError:
            continue
    assert web.post(web.request()).status_code == 200
    with idle, socket.create_connection(("127.0.0.1", web.port), timeout=5) as one_more:
        # The oldest connection has the newest request, so another one is timed out for the bytes of one more.
        whole = Corpus(web.config).signed(extra={"webhook-id": "idle_2"})
        idle.sendall(whole[:-10])
        assert web.post(web.request()).status_code == 200  # the half above was read before
        one_more.sendall(head + b"x" * (LIMIT - 1))
        assert web.post(web.request()).status_code == 200
        idle.sendall(whole[-10:])
        assert read_answer(idle).status == 200
    (worker,) = [pid for pid in children_of(web.processes[0].pid) if resident(pid)]
    print(f"20 unfinished requests of 4 MB: the process holds {resident(worker) >> 20} MB")
    assert resident(worker) < 260 << 20
    refused_for_bytes = 0
    for sender in senders:
        sender.setblocking(False)
        try:
            refused_for_bytes += sender.recv(100).startswith(b"HTTP/1.1 503 ")
        except OSError:
            continue
        finally:
            sender.close()
    assert refused_for_bytes >= 4


@pytest.mark.parametrize(("path", "status"), [("/webhooks/north", 401), ("/webhooks/n%6Frth", 401), ("/none", 404)])
def test_bodies_of_refused_requests_are_freed_at_once(web: System, path: str, status: int) -> None:
    """They waited for the garbage collector, which counts objects and not bytes: 160 of 8 MB took 1.3 GB."""
    (worker,) = [pid for pid in children_of(web.processes[0].pid) if resident(pid)]
    forged = request(path, body=b"x" * LIMIT)

    def send(count: int) -> None:
        with socket.create_connection(("127.0.0.1", web.port), timeout=20) as sender:
            for _ in range(count):
                sender.sendall(forged)
                assert read_answer(sender).status == status

    send(10)
    before = resident(worker)
    send(40)
    print(f"{path}: {(resident(worker) - before) >> 20} MB more after 40 requests of 4 MB")
    assert resident(worker) < before + (40 << 20)


@pytest.mark.parametrize("end", [b"ZZ\r\n\r\n", b"0\r\nhost: x\r\n\r\n", b"7fffffff\r\n", b""])
def test_chunked_bodies_that_are_refused_or_cut_are_freed_at_once(web: System, end: bytes) -> None:
    (worker,) = [pid for pid in children_of(web.processes[0].pid) if resident(pid)]
    size = LIMIT - 1000
    head = request(headers=[("transfer-encoding", "chunked")], length=False)
    refused = head + b"%x\r\n" % size + b"x" * size + b"\r\n" + end

    def send(count: int) -> None:
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", web.port), timeout=20) as sender:
                sender.sendall(refused)
                if end and end != b"7fffffff\r\n":
                    assert read_answer(sender).status == 400
        assert web.post(web.request()).status_code == 200

    send(10)
    before = resident(worker)
    send(40)
    assert resident(worker) < before + (40 << 20)


def resident(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def test_sigterm_under_load_leaves_no_request_unanswered(system: System) -> None:
    """Senders with keep-alive send until an answer says that the connection closes."""
    system.start("web")
    corpus = Corpus(system.config)
    lock, statuses, unanswered = threading.Lock(), [], []

    def send() -> None:
        with socket.create_connection(("127.0.0.1", system.port), timeout=10) as connection:
            while True:
                with lock:
                    one = corpus.signed()
                connection.sendall(one)
                answer = read_answer(connection)
                (statuses if answer.status else unanswered).append(answer.status)
                if not answer.status or answer.headers["connection"] == "close":
                    return

    senders = [threading.Thread(target=send) for _ in range(8)]
    for sender in senders:
        sender.start()
    eventually(lambda: len(statuses) > 100)
    system.processes[0].send(signal.SIGTERM)
    for sender in senders:
        sender.join(15)
    assert system.processes[0].wait(10) == 0
    assert unanswered == []
    assert set(statuses) == {200}
    assert system.ledger.counters().total["accepted"] == len(statuses)


STOPPED_AT_ITS_START = """
import os, signal, sys
from pathlib import Path
from receiver.server import loop_worker, web

class Loop(type(loop_worker.new_event_loop())):
    def run_forever(self):
        asked = Path(sys.argv[2]).parent / "asked"
        if not asked.exists():
            asked.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGTERM)
        super().run_forever()

loop_worker.new_event_loop = Loop
sys.exit(web.main())
"""


def test_sigterm_just_before_the_loop_runs_ends_the_worker(system: System) -> None:
    """uvloop did not hear it until the next signal: the worker accepted connections until it was killed."""
    command = [sys.executable, "-c", STOPPED_AT_ITS_START, "--config", str(system.config_file)]
    system.processes.append(Process(command, log=system.folder / "web.log"))
    asked = system.folder / "asked"
    pid = int(eventually(lambda: asked.exists() and asked.read_text(), what="the worker is asked to end"))
    eventually(lambda: gone(pid), 2, what="it has ended")
    eventually(system.web_answers, what="another one is started")


def test_sigterm_while_a_hanging_server_has_a_group_stores_it_in_the_spool(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "system").mkdir()
    with own_server(tmp_path / "own") as server:
        system = System(tmp_path / "system", server.url)
        system.start("web")
        assert system.post(system.request()).status_code == 200  # this opens the polled connection
        corpus = Corpus(system.config)
        assert server.process
        server.process.send(signal.SIGSTOP)
        try:
            with socket.create_connection(("127.0.0.1", system.port), timeout=10) as sender:
                sender.sendall(corpus.signed())
                with socket.create_connection(("127.0.0.1", system.port), timeout=10) as other:
                    other.sendall(request("/healthz", method="GET"))
                    assert read_answer(other).status == 200  # so the delivery before it was sent to the server
                system.processes[0].send(signal.SIGTERM)
                answer = read_answer(sender)
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert answer.content["status"] == "accepted"
            assert system.processes[0].wait(10) == 0
        finally:
            server.process.send(signal.SIGCONT)
        assert open_events(system.config.data_dir).count() == 1
        system.close()


@pytest.mark.parametrize(("most", "turns"), [(1000, 7), (100, 40)])
def test_a_long_queue_of_connections_is_accepted_in_few_turns(most: int, turns: int) -> None:
    """Bare connections, 1,500 a second, filled the queue of a busy process, and its senders waited for six seconds.
    In a full process they still did, while at most four ended in a turn."""
    taken, accepted = 0, 0

    async def accept(listener: socket.socket) -> None:
        nonlocal taken, accepted
        loop = asyncio.get_running_loop()
        worker = LoopWorker.__new__(LoopWorker)
        worker._loop, worker._accepting, worker._times_more = loop, {}, 1
        connections = OpenConnections(Turns(loop), lambda *_: None, max_body=1000, read_seconds=5.0)
        worker._connections, connections.most = connections, most
        while accepted < len(senders) and taken < 1000:
            before = len(worker._accepting)
            worker._accept(listener)
            accepted += len(worker._accepting) - before
            taken += 1
            await asyncio.gather(*worker._accepting)
            await asyncio.sleep(0)
            assert len(connections.all) <= most
        assert len(connections.all) > most / 4, "not many more end than come"
        worker._accept(listener)
        worker._accept(listener)
        assert worker._times_more == 1, "none was left"
        for connection in list(connections.all):
            connection.close()

    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        listener.setblocking(False)
        senders = [socket.create_connection(listener.getsockname()) for _ in range(310)]
        asyncio.run(accept(listener))
        for sender in senders:
            sender.close()
    assert accepted == len(senders)
    assert taken <= turns
