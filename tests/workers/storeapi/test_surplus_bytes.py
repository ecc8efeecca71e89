"""A server that sends more than its answer: the surplus must not be taken for the answer to the next request."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from receiver.config.settings import NetworkSettings
from workers.storeapi.transport.http import HttpSession
from workers.storeapi.transport.network import DIRECT

SURPLUS = {
    "another answer": b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nforeign",
    "the rest of a body whose length was counted in characters": b"\xc3\xa9",
    "nothing": b"",
}


class Careless(ThreadingHTTPServer):
    """Answers `.../first` with 200 and a surplus, and every other path with 500."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.surplus = b""
        self.connections = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def get_request(self) -> tuple[object, object]:
        self.connections += 1
        return super().get_request()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Careless

    def do_GET(self) -> None:
        status = b"200 OK" if self.path.endswith("/first") else b"500 Down"
        surplus = self.server.surplus if self.path.endswith("/first") else b""
        self.wfile.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 3\r\n\r\nown" + surplus)  # one packet

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def careless() -> Iterator[Careless]:
    server = Careless()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("through_proxy", [False, True], ids=["direct", "through a proxy"])
@pytest.mark.parametrize("surplus", SURPLUS)
def test_each_request_gets_its_own_answer(careless: Careless, surplus: str, through_proxy: bool) -> None:
    careless.surplus = SURPLUS[surplus]
    network = NetworkSettings(proxy=careless.url) if through_proxy else DIRECT
    base = f"http://{secrets.token_hex(4)}.example" if through_proxy else careless.url
    session = HttpSession(allow_private=True, network=network)

    def get(path: str) -> tuple[int, bytes]:
        answer = session.send("GET", base + path, headers={}, until=time.monotonic() + 5)
        return answer.status, answer.content

    assert get("/first") == (200, b"own")
    assert get("/second") == (500, b"own")
    assert get("/third") == (500, b"own")
    assert careless.connections == (3 if SURPLUS[surplus] else 1), "after a surplus, none is used again"
