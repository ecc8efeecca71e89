"""HTTP over a raw socket, for requests that no library would send."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

_STATUS = re.compile(rb"HTTP/1.1 (\d{3}) ")
HEAD_END = b"\r\n\r\n"
Headers = Iterable[tuple[str | bytes, str | bytes]]


@dataclass(frozen=True)
class Sending:
    """The pieces to send, and whether the sender then closes its side."""

    pieces: tuple[bytes, ...]
    end: bool = False
    pause: float = 0.0
    """Seconds between two pieces."""


@dataclass(frozen=True)
class Answer:
    status: int
    """0 where the connection was closed without an answer."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    interim: tuple[int, ...] = ()
    """Statuses before the final one: 100."""

    @property
    def content(self) -> dict[str, object]:
        return orjson.loads(self.body) if self.body else {}


def request(
    path: str | bytes = "/webhooks/north",
    headers: Headers = (),
    body: bytes = b"",
    *,
    method: str | bytes = "POST",
    version: str = "HTTP/1.1",
    length: bool = True,
) -> bytes:
    """A request with Host, and with Content-Length unless `length` is off."""
    lines = [_bytes(method) + b" " + _bytes(path) + b" " + version.encode(), b"Host: hooks.example.com"]
    lines += [_bytes(name) + b": " + _bytes(value) for name, value in headers]
    if length:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + HEAD_END + body


def chunked(body: bytes, size: int = 16 * 1024) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def exchange(port: int, sending: Sending | bytes, *, within: float = 15.0) -> Answer:
    """Send a request and read one answer, also if the connection is closed while sending."""
    sending = Sending((sending,)) if isinstance(sending, bytes) else sending
    with socket.create_connection(("127.0.0.1", port), timeout=within) as connection:
        try:
            for number, piece in enumerate(sending.pieces):
                time.sleep(sending.pause if number else 0)
                connection.sendall(piece)
            if sending.end:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer:
    interim: list[int] = []
    data = b""
    while True:
        while HEAD_END not in data:
            try:
                more = connection.recv(65536)
            except ConnectionError:
                more = b""
            if not more:
                return Answer(0, interim=tuple(interim))
            data += more
        head, _, data = data.partition(HEAD_END)
        line, *rest = head.decode("latin-1").split("\r\n")
        status = int(line.split(" ")[1])
        if status >= 200:
            break
        interim.append(status)
    headers = {name.lower(): value for name, _, value in (item.partition(": ") for item in rest)}
    while len(data) < int(headers.get("content-length", 0)):
        data += connection.recv(65536)
    return Answer(status, headers, data, tuple(interim))


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


def pipelined(port: int, requests: Iterable[bytes], *, batch: int = 50) -> Counter[int]:
    """Send requests over one connection, a batch at a time; return the number of answers by status."""
    seen: Counter[int] = Counter()
    waiting: list[bytes] = []
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        for one in requests:
            waiting.append(one)
            if len(waiting) == batch:
                seen += _send_batch(connection, waiting)
                waiting = []
        if waiting:
            seen += _send_batch(connection, waiting)
    return seen


def _send_batch(connection: socket.socket, requests: list[bytes]) -> Counter[int]:
    connection.sendall(b"".join(requests))
    data = b""
    while len(statuses := _STATUS.findall(data)) < len(requests) or not data.endswith(b"}"):
        more = connection.recv(65536)
        assert more, f"connection closed after {len(statuses)} answers"
        data += more
    return Counter(int(status) for status in statuses)
