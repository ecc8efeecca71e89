"""Bad input over a real socket: every case of the corpus gets its exact status, and slow senders stop nothing."""

from __future__ import annotations

import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from werkzeug.serving import make_server

from receiver.app import create_app
from receiver.delivery.pipeline import start_pipeline
from tests.support.bad_input import LIMIT, ORDER, STORES, Case, Corpus
from tests.support.harness import System, children_of, eventually, own_server
from tests.support.raw_http import Answer, Sending, chunked, exchange, read_answer, request

PROMISED = {200, 204, 400, 401, 404, 405, 408, 411, 413, 414, 431, 501}


@contextmanager
def receiver(
    tmp_path_factory: pytest.TempPathFactory, env: dict[str, str] | None = None, *, start: bool = True
) -> Iterator[System]:
    with own_server(tmp_path_factory.mktemp("server")) as server:
        system = System(tmp_path_factory.mktemp("system"), server.url, more=STORES)
        text = system.config_file.read_text()
        limits = f'threads = 4\nmax_body = {LIMIT}\nread_timeout = "1s"'
        slow_redis = '[redis]\ntimeout = "5s"'  # no answer here may depend on how busy the machine is
        system.config_file.write_text(text.replace("threads = 4", limits, 1).replace("[redis]", slow_redis, 1))
        if start:
            system.start("web", env=env)
        yield system
        system.close()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One receiver for the whole module; no test may affect the next one."""
    with receiver(tmp_path_factory) as system:
        yield system


@pytest.fixture(scope="module")
def on_asyncio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The receiver where uvloop is missing."""
    folder = tmp_path_factory.mktemp("path")
    (folder / "uvloop.py").write_text("raise ImportError('not here')\n")
    with receiver(tmp_path_factory, {"PYTHONPATH": str(folder)}) as system:
        yield system


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The Flask app under a plain WSGI server."""
    with receiver(tmp_path_factory, start=False) as system:
        app = create_app(start_pipeline(system.config), max_body=LIMIT)
        server = make_server("127.0.0.1", system.port, app, threaded=True)
        server.RequestHandlerClass.log = lambda *_, **__: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield system
        server.shutdown()
        thread.join()


def test_every_case_gets_its_exact_status_on_uvloop_and_on_asyncio(web: System, on_asyncio: System) -> None:
    cases = Corpus(web.config).cases()
    before = web.ledger.counters().total["accepted"]
    answers, others = send_all(web, cases), send_all(on_asyncio, cases)
    new_events = sum(case.status in (200, 204) and case.result != "duplicate" for case in cases)
    assert web.ledger.counters().total["accepted"] == before + new_events
    print(table(cases, answers))
    assert len(cases) == len(answers) >= 85
    assert [case.name for case in cases if not as_expected(case, answers[case.name])] == []
    assert {answer.status for answer in answers.values()} <= PROMISED
    assert {name: comparable(answer) for name, answer in answers.items()} == {
        name: comparable(answer) for name, answer in others.items()
    }
    valid = Corpus(web.config).signed()  # the same for both, also if the second ends in between
    for system in (web, on_asyncio):
        assert exchange(system.port, valid).status == 200
        assert_the_log_is_clean(system)
        assert system.identity_holds()
    assert stored(web) == stored(on_asyncio)


@pytest.mark.full
def test_the_flask_app_under_a_plain_wsgi_server_answers_and_stores_alike(
    tmp_path_factory: pytest.TempPathFactory, plain: System
) -> None:
    """All cases in which the server only passes a well-formed request to the app."""
    corpus = Corpus(plain.config)
    groups = (corpus.signatures, corpus.times_and_ids, corpus.bodies, corpus.routes, corpus.texts)
    cases = [case for group in groups for case in group() if case.status not in (413, 431) and case.name not in ODD]
    with receiver(tmp_path_factory) as web:
        answers, others = send_all(web, cases), send_all(plain, cases)
        assert [case.name for case in cases if not as_expected(case, others[case.name])] == []
        assert {name: answer.status for name, answer in answers.items()} == {
            name: answer.status for name, answer in others.items()
        }
        assert stored(web) == stored(plain)


ODD = ("path //webhooks/north", "signed body: chunked", "two signature headers where a list is read")
"""Requests that werkzeug's development server changes before the app has them."""


def send_all(system: System, cases: list[Case]) -> dict[str, Answer]:
    """Every case in order; the slow ones in parallel with the others."""
    slow = [case for case in cases if isinstance(case.sending, Sending) and case.sending.pause > 0.01]
    answers: dict[str, Answer] = {}

    def send(case: Case) -> None:
        answers[case.name] = exchange(system.port, case.sending)

    waiting = [threading.Thread(target=send, args=(case,)) for case in slow]
    for thread in waiting:
        thread.start()
    for case in cases:
        if case not in slow:
            send(case)
    for thread in waiting:
        thread.join()
    return answers


def comparable(answer: Answer) -> tuple[object, ...]:
    """The parts of an answer that do not change from one request to the next."""
    headers: dict[str, object] = {name: value for name, value in answer.headers.items() if name != "date"}
    if "allow" in headers:
        headers["allow"] = set(answer.headers["allow"].split(", "))  # in any order
    content = {name: len(str(value)) if name == "id" else value for name, value in answer.content.items()}
    return answer.status, headers, content, answer.interim


def stored(system: System) -> list[tuple[object, ...]]:
    """What is stored of each event, except ids: some events get a random one."""
    records = [system.ledger.event(one.id) for one in system.ledger.events(limit=1000)]
    return sorted(
        (
            one.summary.store,
            one.summary.topic,
            one.summary.delivery_id,
            one.summary.resource_id,
            one.summary.status,
            one.body,
            sorted(one.headers.items()),
        )
        for one in records
        if one
    )


def as_expected(case: Case, answer: Answer) -> bool:
    if answer.status != case.status:
        return False
    if answer.status >= 400 and answer.headers.get("content-type") != "application/problem+json":
        return False
    return not case.result or answer.content.get("status") == case.result


def table(cases: list[Case], answers: dict[str, Answer]) -> str:
    lines = [f"{'':3}  {'EXPECTED':8}  {'SEEN':4}  CASE"]
    for number, case in enumerate(cases, 1):
        answer = answers[case.name]
        seen = str(answer.status) if answer.status else "none"
        name = case.name.encode("ascii", "backslashreplace").decode()
        mark = "" if as_expected(case, answer) else "   <-- not as expected"
        lines.append(f"{number:3}  {case.status:8}  {seen:4}  {name}{mark}")
    return "\n".join(lines)


def assert_the_log_is_clean(web: System) -> None:
    log = web.log("web")
    assert "Traceback" not in log
    assert '"exception"' not in log
    for text in ("<script>", "\x1b", "evil", "meta-data", "42.00", "X-Evil"):
        assert text not in log


def test_100_continue_is_sent_before_the_body(web: System) -> None:
    corpus = Corpus(web.config)
    headers = [*corpus.headers().items(), ("expect", "100-continue"), ("content-length", str(len(ORDER)))]
    with socket.create_connection(("127.0.0.1", web.port), timeout=5) as connection:
        connection.sendall(request(headers=headers, length=False))
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(ORDER)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_100_continue_is_never_sent_after_the_answer(web: System) -> None:
    """The first request arrives with its body, so that its sender does not wait; the second arrives in two pieces."""
    corpus = Corpus(web.config)
    first = request(headers=[*corpus.headers().items(), ("expect", "100-continue")], body=ORDER)
    second = corpus.signed()
    with socket.create_connection(("127.0.0.1", web.port), timeout=5) as connection:
        connection.sendall(first)
        assert read_answer(connection).status == 200
        connection.sendall(second[:20])
        assert exchange(web.port, corpus.signed()).status == 200  # the half above was read before
        connection.sendall(second[20:])
        answer = read_answer(connection)
    assert (answer.status, answer.interim) == (200, ())


def test_a_body_that_is_too_long_is_refused_before_it_is_sent(web: System) -> None:
    headers = [("expect", "100-continue"), ("content-length", str(LIMIT + 1))]
    answer = exchange(web.port, request(headers=headers, length=False))
    assert (answer.status, answer.interim) == (413, ())
    eventually(lambda: "requests answered 413, because they are too large" in web.log("web"))


def test_requests_on_one_connection_are_answered_in_order(web: System) -> None:
    corpus = Corpus(web.config)
    first, second = corpus.signed(), corpus.signed()
    with socket.create_connection(("127.0.0.1", web.port), timeout=5) as connection:
        connection.sendall(first + second + request("/nowhere") + b"nonsense\r\n\r\n")
        data = b""
        while more := connection.recv(65536):
            data += more
    assert re.findall(rb"HTTP/1.1 (\d+)", data) == [b"200", b"200", b"404", b"400"]


def test_bytes_after_a_refused_body_are_never_read_as_a_request(web: System) -> None:
    hidden = Corpus(web.config).signed()
    before = web.ledger.counters().total["accepted"]
    head = request("/nowhere", headers=[("content-length", str(LIMIT + 1))], length=False)
    with socket.create_connection(("127.0.0.1", web.port), timeout=5) as connection:
        connection.sendall(head + hidden)
        data = b""
        while more := connection.recv(65536):
            data += more
    assert re.findall(rb"HTTP/1.1 (\d+)", data) == [b"413"]
    assert web.ledger.counters().total["accepted"] == before


BAD_CHUNKS = {
    "a line feed in an extension": b"5;x\ny\r\nhello\r\n0\r\n\r\n",
    "a space after the size": b"5 \r\nhello\r\n0\r\n\r\n",
    "a bad extension": b"5;\r\nhello\r\n0\r\n\r\n",
    "a bad extension of the last chunk": b"5\r\nhello\r\n0;a=b=c\r\n\r\n",
    "an extension without a name": b"5;=\r\nhello\r\n0\r\n\r\n",
    "an extension": b"5;a=b\r\nhello\r\n0\r\n\r\n",
    "Host in the trailers": b"5\r\nhello\r\n0\r\nHost: elsewhere\r\n\r\n",
    "a bare line feed in the trailers": b"5\r\nhello\r\n0\r\nX-A: 1\nX-B: 2\r\n\r\n",
    "a trailer without a colon": b"5\r\nhello\r\n0\r\nnonsense\r\n\r\n",
}


@pytest.mark.parametrize("path", ["/webhooks/north", "/nowhere", "/healthz"])
def test_bytes_after_a_bad_chunk_or_trailer_are_never_read_as_a_request(web: System, path: str) -> None:
    hidden = Corpus(web.config).signed()
    before = web.ledger.counters().total["accepted"]
    head = request(path, headers=[("transfer-encoding", "chunked")], length=False)
    for name, body in BAD_CHUNKS.items():
        data = all_answers(web.port, head + body + hidden)
        assert re.findall(rb"HTTP/1.1 (\d+)", data) == [b"400"], name
        assert b"\r\nConnection: close\r\n" in data, name
    assert web.ledger.counters().total["accepted"] == before
    good = all_answers(web.port, head + b"5\r\nhello\r\n0\r\nX-A: 1\r\n\r\n" + hidden + b"nonsense\r\n\r\n")
    assert re.findall(rb"HTTP/1.1 (\d+)", good)[1:] == [b"200", b"400"], (
        "after a valid request the connection stays open"
    )


def all_answers(port: int, sent: bytes) -> bytes:
    """All bytes until the connection is closed."""
    data = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(sent)
        while more := connection.recv(65536):
            data += more
    return data


@pytest.mark.timed
@pytest.mark.parametrize("path", ["/webhooks/north", "/nowhere"])
def test_a_body_in_thousands_of_chunks_is_read_quickly(web: System, path: str) -> None:
    """Once, each chunk copied all bytes after it."""
    body = chunked(b"x" * 3_600_000, 400)
    began = time.monotonic()
    answer = exchange(web.port, request(path, headers=[("transfer-encoding", "chunked")], length=False) + body)
    took = time.monotonic() - began
    print(f"a body of 3.6 MB in 9,000 chunks was answered after {took:.2f} s")
    assert answer.status == (401 if path == "/webhooks/north" else 404)
    assert took < 6.0


@contextmanager
def slow_senders(port: int, count: int, first: bytes, drop: bytes) -> Iterator[list[socket.socket]]:
    """Slow senders, each of which sends a few bytes again and again until its connection is closed."""
    senders = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(count)]
    stop = threading.Event()

    def send_drops() -> None:
        while not stop.wait(0.1):
            for sender in senders:
                try:
                    sender.send(drop)
                except OSError:
                    continue

    for sender in senders:
        sender.sendall(first)
    thread = threading.Thread(target=send_drops)
    thread.start()
    try:
        yield senders
    finally:
        stop.set()
        thread.join()
        for sender in senders:
            sender.close()


@pytest.mark.timed
@pytest.mark.parametrize(
    ("kind", "first", "drop"),
    [
        ("headers", b"POST /webhooks/north HTTP/1.1\r\nHost: x\r\n", b"X-A: b\r\n"),
        ("bodies", request(headers=[("content-length", "100000")], length=False), b"x"),
        ("chunks", request(headers=[("transfer-encoding", "chunked")], length=False), b"1\r\nx\r\n"),
    ],
    ids=("headers", "bodies", "chunks"),
)
def test_row_21_ten_times_as_many_slow_senders_as_threads_do_not_stop_the_service(
    web: System, kind: str, first: bytes, drop: bytes
) -> None:
    threads = web.config.receiver.threads * web.config.receiver.processes
    with slow_senders(web.port, 10 * threads, first, drop) as senders:
        worst = 0.0
        until = time.monotonic() + 2.0  # longer than the deadline, so that the timeouts are measured too
        while time.monotonic() < until:
            begun = time.monotonic()
            assert web.post(web.request()).status_code == 200
            worst = max(worst, time.monotonic() - begun)
        answers = [sender.recv(100)[:12] for sender in senders]
    print(
        f"{10 * threads} senders of slow {kind} on {threads} threads: a valid one waited {worst * 1000:.0f} ms at most"
    )
    assert worst < 4.0
    assert set(answers) == {b"HTTP/1.1 408"}


def test_senders_that_never_read_do_not_stop_the_service(web: System) -> None:
    threads = web.config.receiver.threads
    flood = request("/nowhere") * 2000
    silent = []
    for _ in range(threads):
        sender = socket.socket()
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sender.connect(("127.0.0.1", web.port))
        sender.setblocking(False)
        silent.append(sender)
    for _ in range(50):
        for sender in silent:
            try:
                sender.send(flood)
            except OSError:
                continue
    assert eventually(lambda: web.post(web.request()).status_code == 200, within=8)
    for sender in silent:
        sender.close()


@pytest.mark.timed
def test_more_incomplete_requests_than_connections_do_not_delay_others(system: System) -> None:
    """A connection that times out for another lingers for its answer, but does not delay the other."""
    system.start(
        "web",
        quicker={"receiver.server.descriptors.CONNECTIONS": 40},
    )
    assert_incomplete_requests_delay_no_other(system, count=100)


@pytest.mark.timed
def test_incomplete_requests_that_take_every_descriptor_do_not_delay_others(system: System) -> None:
    system.start("web")
    assert system.post(system.request()).status_code == 200
    (worker,) = children_of(system.processes[0].pid)
    limit = len(list(Path(f"/proc/{worker}/fd").iterdir())) + 20
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (limit, resource.prlimit(worker, resource.RLIMIT_NOFILE)[1]))
    assert_incomplete_requests_delay_no_other(system, count=100)


def assert_incomplete_requests_delay_no_other(web: System, count: int) -> None:
    corpus = Corpus(web.config)
    senders, took = [], []
    for _ in range(count):
        senders.append(socket.create_connection(("127.0.0.1", web.port), timeout=5))
        senders[-1].sendall(corpus.signed()[:-5])
        began = time.monotonic()
        assert exchange(web.port, corpus.signed()).status == 200
        took.append(time.monotonic() - began)
    answers = [sender.recv(100)[:12] for sender in senders[:20]]
    for sender in senders:
        sender.close()
    print(f"with {count} incomplete requests, a valid one waited {max(took) * 1000:.0f} ms at most")
    assert sorted(took)[-5] < 1.0  # a busy machine may delay some
    assert set(answers) == {b"HTTP/1.1 408"}
    assert web.identity_holds()


def test_the_service_stops_promptly_with_idle_connections(system: System) -> None:
    web = system
    web.start("web")
    idle = [socket.create_connection(("127.0.0.1", web.port)) for _ in range(20)]
    half = socket.create_connection(("127.0.0.1", web.port))
    whole = Corpus(web.config).signed()
    half.sendall(whole[:-10])
    # Connections are accepted in order, so this new one shows that the process has those before it.
    assert exchange(web.port, Corpus(web.config).signed()).status == 200
    web.processes[0].send(15)
    half.sendall(whole[-10:])
    assert half.recv(100).startswith(b"HTTP/1.1 200 ")  # a request that has begun is still answered
    half.close()
    assert web.processes[0].wait(5) == 0
    for connection in idle:
        connection.close()


def test_a_store_with_an_empty_secret_prevents_the_start(system: System) -> None:
    system.config_file.write_text(system.config_file.read_text() + '\n[stores.empty]\nsigning_secrets = [""]\n')
    done = system.run_cli("web")
    assert done.returncode == 2
    assert "it is empty" in done.stderr
