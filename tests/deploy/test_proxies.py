"""The proxies of deploy/, each in front of real web processes, with TLS by a private CA."""

from __future__ import annotations

import os
import signal
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.front_proxies import PrivateCa, start_proxy
from tests.support.harness import System, children_of, eventually, free_port, own_server
from tests.support.programs import Process

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
KILLS = 4
SENDERS = 6


class Front:
    """An installation behind a proxy, as its senders see it."""

    def __init__(self, proxy: str, system: System, web: Process, ca: PrivateCa, port: int) -> None:
        self.proxy, self.system, self.web, self.ca = proxy, system, web, ca
        self.url = f"https://127.0.0.1:{port}"

    def sender(self) -> httpx2.Client:
        trusted = ssl.create_default_context(cafile=self.ca.ca)
        return httpx2.Client(base_url=self.url, verify=trusted, trust_env=False, timeout=30)

    def post(self, sender: httpx2.Client, *, body: bytes | None = None) -> httpx2.Response:
        request = self.system.request()
        return sender.post("/webhooks/north", headers=request.headers, content=body or request.body)


@pytest.fixture(params=["nginx", "caddy", "haproxy"])
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    ca, port = PrivateCa(tmp_path), free_port()
    (tmp_path / "server").mkdir()
    with own_server(tmp_path / "server", "--appendonly", "yes", "--appendfsync", "always") as server:
        system = System(tmp_path, server.url)
        text = system.config_file.read_text().replace("processes = 1", "processes = 2")
        text = text.replace(
            f'public_url = "http://127.0.0.1:{system.port}"', f'public_url = "https://127.0.0.1:{port}"'
        )
        system.config_file.write_text(text)
        proxy = None
        try:
            (web, *_) = system.start("web")
            proxy = start_proxy(request.param, tmp_path, ca, port=port, web=f"127.0.0.1:{system.port}")
            yield Front(request.param, system, web, ca, port)
        finally:
            if proxy:
                proxy.stop()
            system.close()


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


def test_a_killed_web_process_costs_no_delivery(front: Front) -> None:
    """nginx and HAProxy send the request again. Caddy cannot, so the store does."""
    answers: Counter[int] = Counter()
    stop = threading.Event()

    def send() -> None:
        with front.sender() as sender:
            while not stop.is_set():
                answers[front.post(sender).status_code] += 1

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
    assert set(answers) == {200}, answers
    assert front.system.ledger.counters().total["accepted"] >= answers[200]
