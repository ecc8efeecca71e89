"""The load generator: sends signed requests with unique ids over many connections. It runs as its own process.

`python -m benchmarks.load` prints one line of JSON. Without a rate, each connection sends its next request when the
previous one is answered. With a rate, requests are due at fixed times, and latency counts from the due time. So a
stalled server is charged for the requests that it delayed. All systems get the same bytes except for the path.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import secrets
import select
import socket
import sys
import time
from collections import Counter
from pathlib import Path

SECRET_BYTES = b"benchmarks only, never a real one"
SECRET = "whsec_" + base64.b64encode(SECRET_BYTES).decode()
STORE = "bench"
LAST_ANSWERS_SECONDS = 2.0


def body(size: int = 2048) -> bytes:
    """An order as a store would send it: about `size` bytes, with varied text."""
    lines: list[dict[str, object]] = []
    order = {"type": "order.created", "timestamp": "2026-11-15T08:00:00Z", "data": {"id": 1001, "lines": lines}}
    while len(json.dumps(order)) < size - 120:
        digest = hashlib.sha256(str(len(lines)).encode()).hexdigest()
        lines.append({"sku": digest[:10], "name": f"Item {digest[10:26]}", "quantity": 2, "price": "19.90"})
    missing = size - len(json.dumps(order | {"note": ""}))
    return json.dumps(order | {"note": digest_text(max(0, missing))}).encode()


def digest_text(length: int) -> str:
    return (hashlib.sha512(b"note").hexdigest() * 8)[:length]


def sign(message_id: str, stamp: int, content: bytes) -> str:
    """A Standard Webhooks signature."""
    digest = hmac.digest(SECRET_BYTES, f"{message_id}.{stamp}.".encode() + content, "sha256")
    return "v1," + base64.b64encode(digest).decode()


def headers(message_id: str, content: bytes) -> dict[str, str]:
    stamp = int(time.time())
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(stamp),
        "webhook-signature": sign(message_id, stamp, content),
    }


def requests(path: str, count: int) -> tuple[list[str], list[bytes]]:
    """The ids and the bytes of `count` requests."""
    content = body()
    plain = "sha256=" + hmac.digest(SECRET_BYTES, content, "sha256").hex()
    run, stamp = secrets.token_hex(4), int(time.time())
    fixed = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nX-Hub-Signature-256: {plain}\r\nwebhook-timestamp: {stamp}\r\n"
    )
    ids = [f"msg_{run}{number:08d}" for number in range(count)]
    return ids, [
        f"{fixed}webhook-id: {id_}\r\nwebhook-signature: {sign(id_, stamp, content)}\r\n\r\n".encode() + content
        for id_ in ids
    ]


class Connection:
    """One connection, opened on the first request: a single-threaded server would block on an idle connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._rest = b""
        self.due = 0.0
        self.socket: socket.socket | None = None

    def open(self) -> socket.socket:
        self.socket = socket.create_connection(("127.0.0.1", self._port), timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.socket

    def receive(self) -> int:
        """The status of a complete answer; 0 while it is incomplete; -1 if the server closed without an answer."""
        assert self.socket
        piece = self.socket.recv(65536)
        self._rest += piece
        status, length, close = read_answer(self._rest)
        if piece and (not status or len(self._rest) < length):
            return 0
        self._rest = b""
        if close or not piece:
            self.socket.close()  # this also removes it from epoll
            self.socket = None
        return status or -1


def read_answer(text: bytes) -> tuple[int, int, bool]:
    """The status (0 while the head is incomplete), the total length, and whether the server closes."""
    end = text.find(b"\r\n\r\n")
    if end < 0:
        return 0, 0, False
    head = text[:end].lower()
    at = head.find(b"content-length:")
    length = int(head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else 0
    return int(head[9:12]), end + 4 + length, b"connection: close" in head


class Load:
    def __init__(self, port: int, all_requests: list[bytes], *, connections: int, rate: float) -> None:
        self._requests = all_requests
        self._rate = rate
        self._poll = select.epoll()
        self._idle = [Connection(port) for _ in range(connections)]
        self._waiting: dict[int, Connection] = {}
        self.sent_at: list[float] = []
        self.latencies: list[float] = []
        self.statuses: Counter[int] = Counter()

    def run(self, seconds: float) -> float:
        """Send for `seconds`, then wait for the last answers. Return the answers per second while sending."""
        start = time.monotonic()
        end = start + seconds
        while (now := time.monotonic()) < end and len(self.sent_at) < len(self._requests):
            self._send_due(start, now, end)
            self._read_answers(self._time_to_next(start, end))
        took, in_time = time.monotonic() - start, len(self.latencies)
        while self._busy and time.monotonic() < end + LAST_ANSWERS_SECONDS:
            self._read_answers(0.1)
        return in_time / took

    @property
    def _busy(self) -> bool:
        return any(connection.due for connection in self._waiting.values())

    def _send_due(self, start: float, now: float, end: float) -> None:
        while self._idle and len(self.sent_at) < len(self._requests):
            due = start + len(self.sent_at) / self._rate if self._rate else now
            if due > now or due >= end:
                return
            self._send(self._idle.pop(), due)

    def _send(self, connection: Connection, due: float) -> None:
        sock = connection.socket
        if sock is None:
            sock = connection.open()
            self._poll.register(sock, select.EPOLLIN)
            self._waiting[sock.fileno()] = connection
        connection.due = due
        sock.sendall(self._requests[len(self.sent_at)])
        self.sent_at.append(due)

    def _time_to_next(self, start: float, end: float) -> float:
        if not self._rate or not self._idle:
            return 0.1
        due = min(end, start + len(self.sent_at) / self._rate)
        return max(0.0, due - time.monotonic())

    def _read_answers(self, timeout: float) -> None:
        if self._rate:  # epoll waits in whole milliseconds, select in microseconds
            select.select([self._poll], [], [], timeout)
            timeout = 0
        for number, _ in self._poll.poll(timeout):
            connection = self._waiting[number]
            status = connection.receive()
            if connection.socket is None:
                del self._waiting[number]
            if status and connection.due:
                self._record(connection, status)

    def _record(self, connection: Connection, status: int) -> None:
        """Record an answer, or -1 for none. Closing an idle connection is not recorded."""
        self.statuses[status] += 1
        self.latencies.append(time.monotonic() - connection.due)
        connection.due = 0.0
        self._idle.append(connection)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--prepare", type=int, default=20_000, help="requests to prepare per second without a rate")
    parser.add_argument("--sent", type=Path, help="file for the time at which each id was sent")
    options = parser.parse_args()
    ids, prepared = requests(options.path, int(options.seconds * (options.rate or options.prepare)) + 1)
    load = Load(options.port, prepared, connections=options.connections, rate=options.rate)
    print("ready", flush=True)
    sys.stdin.readline()
    rate = load.run(options.seconds)
    if options.sent:
        lines = (f"{id_} {int(at * 1e9)}" for id_, at in zip(ids, load.sent_at, strict=False))
        options.sent.write_text("\n".join(lines))
    latencies = sorted(load.latencies) or [0.0]
    percentiles = {"p50": latencies[len(latencies) // 2], "p99": latencies[int(len(latencies) * 0.99)]}
    print(
        json.dumps({"rate": rate, "answers": len(load.latencies), "statuses": load.statuses, **percentiles}), flush=True
    )


if __name__ == "__main__":
    main()
