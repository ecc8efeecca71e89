"""The proxies of deploy/, each in front of real web processes, with TLS by a private CA."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.support.front_proxies import PrivateCa, filled_in, start_proxy
from tests.support.harness import System, children_of, eventually, free_port, own_server
from tests.support.installations import PLUGIN
from tests.support.programs import Process
from tests.support.raw_http import request

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
KILLS = 4
BROKEN_OFF = 1500
CLOSED = "RemoteProtocolError('Server disconnected without sending a response.')"
SENDERS = 6
LIMIT = 200
"""Connections of one address, in the files of deploy/."""
LISTENS, HAS_ENDED = "0A", "06"
"""States of /proc/net/tcp. One that has ended holds no place, and is listed for a minute (TIME_WAIT)."""


class Front:
    """An installation behind a proxy, as its senders see it."""

    def __init__(self, proxy: str, system: System, web: Process, ca: PrivateCa, port: int) -> None:
        self.proxy, self.system, self.web, self.ca = proxy, system, web, ca
        self.port, self.url = port, f"https://127.0.0.1:{port}"

    def sender(self, address: str = "127.0.0.1") -> httpx2.Client:
        """A store that calls from an address of the loopback network."""
        trusted = ssl.create_default_context(cafile=self.ca.ca)
        transport = httpx2.HTTPTransport(verify=trusted, local_address=address)
        return httpx2.Client(base_url=self.url, transport=transport, timeout=60)

    def delivery(self) -> bytes:
        """The bytes of a request with a delivery."""
        made = self.system.request()
        sent = request("/webhooks/north", list(made.headers.items()), made.body)
        return sent.replace(b"Host: hooks.example.com", b"Host: 127.0.0.1")  # as the file is filled in

    def post(
        self, sender: httpx2.Client, *, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        request = self.system.request()
        headers = {**request.headers, **(headers or {})}
        return sender.post("/webhooks/north", headers=headers, content=body or request.body)


@pytest.fixture(scope="module", params=["nginx", "caddy", "haproxy"])
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    tmp_path = tmp_path_factory.mktemp(request.param)
    ca, port = PrivateCa(tmp_path), free_port()
    (tmp_path / "server").mkdir()
    with own_server(tmp_path / "server", "--appendonly", "yes", "--appendfsync", "always") as server:
        system = System(tmp_path, server.url, plugin=PLUGIN, more=f'[network]\nca_file = "{ca.ca}"')
        words = {
            "[receiver]": 'ack = "fsync"\n[receiver]\ntrusted_proxies = ["127.0.0.1"]',
            "processes = 1": "processes = 2",
            f'public_url = "http://127.0.0.1:{system.port}"': f'public_url = "https://127.0.0.1:{port}"',
        }
        system.config_file.write_text(filled_in(system.config_file, words))
        system.config_file.chmod(0o600)
        proxy = None
        try:
            (web, *_) = system.start("web")
            proxy = start_proxy(request.param, tmp_path, ca, port=port, web=f"127.0.0.1:{system.port}")
            yield Front(request.param, system, web, ca, port)
        finally:
            if proxy:
                proxy.stop()
            system.close()


def test_doctor_finds_no_problem_through_the_proxy(front: Front) -> None:
    front.system.start("worker", "housekeeper")
    with front.sender() as sender:
        for store in ("north", "south"):
            request = front.system.request(store=store)
            answer = sender.post(f"/webhooks/{store}", headers=request.headers, content=request.body)
            assert front.system.settled(answer.json()["id"], 60) == "settled"
    done = front.system.run_cli("doctor", env={"SSL_CERT_FILE": ""})
    assert done.returncode == 0, done.stdout
    assert "WARN" not in done.stdout, done.stdout
    assert f"{front.url} " in done.stdout, done.stdout


def test_answers_are_ours(front: Front) -> None:
    with front.sender() as sender:
        accepted = front.post(sender)
        assert (accepted.status_code, accepted.json()["status"]) == (200, "accepted")
        forged = front.post(sender, body=b'{"id": 2}')
        assert forged.status_code == 401
        assert forged.headers["content-type"] == "application/problem+json"
        for _ in range(3):
            large = front.post(sender, body=b"x" * (front.system.config.receiver.max_body + 1))
            assert large.status_code == 413
            assert large.headers["content-type"] == "application/problem+json"
        assert front.post(sender).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1.", "other.example.com"])
def test_no_delivery_for_another_name_gets_an_empty_200(front: Front, host: str) -> None:
    """Caddy answered 200 by itself, so the store took it for accepted."""
    with front.sender() as sender:
        answer = front.post(sender, headers={"host": host})
    assert answer.status_code == 421 or answer.json()["status"] == "accepted"


def test_the_true_address_of_the_sender_is_recorded(front: Front) -> None:
    with front.sender("127.0.0.2") as sender:
        assert front.post(sender, body=b"{}", headers={"x-forwarded-for": "203.0.113.9"}).status_code == 401
    front.system.refused()

    def recorded() -> list[str]:
        return [one.address for one in front.system.refusals().newest()]

    eventually(lambda: "127.0.0.2" in recorded(), what="its address is recorded")
    assert "203.0.113.9" not in recorded()


def test_requests_that_ask_to_continue_and_break_off_end_no_proxy(front: Front) -> None:
    """Caddy passed `Expect` on, wrote the receiver's "100 Continue" to an answer that had ended, and was gone."""
    context = ssl.create_default_context(cafile=front.ca.ca)
    head = b"POST /webhooks/x HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"

    def break_off(_: int) -> None:
        with contextlib.suppress(OSError):  # also if the proxy has ended
            plain = socket.create_connection(("127.0.0.1", front.port), timeout=20)
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                secure.sendall(head + b"zz\r\n")
                while secure.recv(4096):
                    pass

    with ThreadPoolExecutor(16) as senders:
        list(senders.map(break_off, range(BROKEN_OFF)))
    with front.sender() as sender:
        answer = front.post(sender, headers={"expect": "100-continue"})
        assert (answer.status_code, answer.json()["status"]) == (200, "accepted")


def test_requests_of_one_address_are_limited_also_if_it_resets_its_connections(front: Front) -> None:
    """One address took all places of a receiver, and other senders waited for up to 60 s."""
    if front.proxy == "caddy":
        pytest.skip("it has no limit")
    context = ssl.create_default_context(cafile=front.ca.ca)
    context.check_hostname = False
    context.set_alpn_protocols(["h2", "http/1.1"])
    stopped = [front.web.pid, *children_of(front.web.pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(LIMIT + 60):
            with contextlib.suppress(OSError):  # the limit
                plain = socket.create_connection(("127.0.0.1", front.port), source_address=("127.0.0.3", 0))
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with context.wrap_socket(plain) as secure:
                    assert secure.selected_alpn_protocol() != "h2", "it has many requests at once"
                    secure.sendall(front.delivery())
        if front.proxy == "nginx":  # HAProxy ends those of senders that are gone
            eventually(lambda: connections_at(front.system.port) > LIMIT // 2)
        assert connections_at(front.system.port) <= LIMIT + 10
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("offered", [["http/1.1"], ["h2", "http/1.1"]])
def test_http_2_is_not_spoken(front: Front, offered: list[str]) -> None:
    """A connection of HTTP/2 has 100 requests at once, and can reset thousands a second. It may begin unasked, too."""
    context = ssl.create_default_context(cafile=front.ca.ca)
    context.set_alpn_protocols(offered)
    settings = struct.pack(">HBBBI", 0, 0, 4, 0, 0)
    with (
        socket.create_connection(("127.0.0.1", front.port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        assert secure.selected_alpn_protocol() != "h2"
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
        assert secure.recv(1000).startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize("missing", [0, 1], ids=["a whole delivery", "all but a byte"])
def test_a_sender_that_has_closed_its_sending_side_gets_the_answer_of_the_receiver(front: Front, missing: int) -> None:
    """Caddy ended the request, and answered 200 by itself."""
    context, delivery = ssl.create_default_context(cafile=front.ca.ca), front.delivery()
    with (
        socket.create_connection(("127.0.0.1", front.port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=True) as secure,
    ):
        secure.sendall(delivery[: len(delivery) - missing])
        socket.socket.shutdown(secure, socket.SHUT_WR)
        answer = b"".join(iter(lambda: secure.recv(1000), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK") is (not missing)
    assert (b'"accepted"' in answer) is (not missing)


def connections_at(port: int) -> int:
    """At the side that listens, also of those that it has not taken yet."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] not in (LISTENS, HAS_ENDED) for row in rows)


def test_a_killed_web_process_costs_no_delivery(front: Front) -> None:
    """nginx and HAProxy send the request again. Where they cannot, the store does."""
    answers: Counter[int | str] = Counter()
    stop = threading.Event()

    def send() -> None:
        with front.sender() as sender:
            while not stop.is_set():
                try:
                    answers[front.post(sender).status_code] += 1
                except httpx2.HTTPError as error:
                    answers[repr(error)] += 1

    threads = [threading.Thread(target=send) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            wanted = answers.total() + 50
            eventually(lambda wanted=wanted: answers.total() > wanted, 60, what="50 more answers")
            victim = children_of(front.web.pid)[0]
            os.kill(victim, signal.SIGKILL)
            eventually(lambda victim=victim: victim not in children_of(front.web.pid), what="the web process has ended")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if front.proxy == "caddy":
        assert answers.pop(502, 0) <= KILLS * SENDERS  # those that the killed processes were reading
    if front.proxy == "haproxy":
        assert answers.pop(CLOSED, 0) <= KILLS  # on a connection that was used before, seldom
    assert set(answers) == {200}, answers
    assert front.system.ledger.counters().total["accepted"] >= answers[200]  # also those whose answer was lost
