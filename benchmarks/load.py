"""The load generator: signed requests, each with an id of its own, over many connections; a process of its own.

`python -m benchmarks.load` prints one line of JSON. Without a rate each connection sends its next request when it
is answered. With a rate requests are due at fixed times whatever the server does, and the time to an answer counts
from when the request was due, so that a stalled server is not spared what it kept from being sent.
Every side is sent the same bytes but for the path.
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
LAST_ANSWERS = 2.0


def body(size: int = 2048) -> bytes:
    """An order, as a store would send it: about `size` bytes, with text that is not all alike."""
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
    """As the Standard Webhooks say."""
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


def requests(path: str, many: int) -> tuple[list[str], list[bytes]]:
    """So many requests, ready to be sent, and their ids."""
    content = body()
    plain = "sha256=" + hmac.digest(SECRET_BYTES, content, "sha256").hex()
    run, stamp = secrets.token_hex(4), int(time.time())
    fixed = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nX-Hub-Signature-256: {plain}\r\nwebhook-timestamp: {stamp}\r\n"
    )
    ids = [f"msg_{run}{number:08d}" for number in range(many)]
    return ids, [
        f"{fixed}webhook-id: {one}\r\nwebhook-signature: {sign(one, stamp, content)}\r\n\r\n".encode() + content
        for one in ids
    ]


class Connection:
    """One connection, made when there is something to send: a server with one thread would wait on an idle one."""

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
        """The status of an answer that is complete; 0 while it is not; -1 where the server closed without one."""
        assert self.socket
        piece = self.socket.recv(65536)
        self._rest += piece
        status, length, close = read_answer(self._rest)
        if piece and (not status or len(self._rest) < length):
            return 0
        self._rest = b""
        if close or not piece:
            self.socket.close()  # which takes it out of epoll, too
            self.socket = None
        return status or -1


def read_answer(text: bytes) -> tuple[int, int, bool]:
    """Status (0 while the head is not there), length in all, and whether the server closes."""
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
        self.waits: list[float] = []
        self.statuses: Counter[int] = Counter()

    def run(self, seconds: float) -> float:
        """Send for so long, then wait for the last answers; give answers for each second of sending."""
        start = time.monotonic()
        end = start + seconds
        while (now := time.monotonic()) < end and len(self.sent_at) < len(self._requests):
            self._send_what_is_due(start, now, end)
            self._listen(self._patience(start, end))
        took, in_time = time.monotonic() - start, len(self.waits)
        while self._busy and time.monotonic() < end + LAST_ANSWERS:
            self._listen(0.1)
        return in_time / took

    @property
    def _busy(self) -> bool:
        return any(one.due for one in self._waiting.values())

    def _send_what_is_due(self, start: float, now: float, end: float) -> None:
        while self._idle and len(self.sent_at) < len(self._requests):
            due = start + len(self.sent_at) / self._rate if self._rate else now
            if due > now or due >= end:
                return
            self._send(self._idle.pop(), due)

    def _send(self, one: Connection, due: float) -> None:
        link = one.socket
        if link is None:
            link = one.open()
            self._poll.register(link, select.EPOLLIN)
            self._waiting[link.fileno()] = one
        one.due = due
        link.sendall(self._requests[len(self.sent_at)])
        self.sent_at.append(due)

    def _patience(self, start: float, end: float) -> float:
        if not self._rate or not self._idle:
            return 0.1
        due = min(end, start + len(self.sent_at) / self._rate)
        return max(0.0, due - time.monotonic())

    def _listen(self, patience: float) -> None:
        if self._rate:  # epoll waits in whole milliseconds, select in microseconds
            select.select([self._poll], [], [], patience)
            patience = 0
        for number, _ in self._poll.poll(patience):
            one = self._waiting[number]
            status = one.receive()
            if one.socket is None:
                del self._waiting[number]
            if status and one.due:
                self._note(one, status)

    def _note(self, one: Connection, status: int) -> None:
        """An answer, or (-1) none: an idle connection that is closed was owed nothing."""
        self.statuses[status] += 1
        self.waits.append(time.monotonic() - one.due)
        one.due = 0.0
        self._idle.append(one)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--most", type=int, default=20_000, help="requests prepared for each second without a rate")
    parser.add_argument("--sent", type=Path, help="write when each id was sent")
    given = parser.parse_args()
    ids, prepared = requests(given.path, int(given.seconds * (given.rate or given.most)) + 1)
    load = Load(given.port, prepared, connections=given.connections, rate=given.rate)
    print("ready", flush=True)
    sys.stdin.readline()
    rate = load.run(given.seconds)
    if given.sent:
        lines = (f"{one} {int(at * 1e9)}" for one, at in zip(ids, load.sent_at, strict=False))
        given.sent.write_text("\n".join(lines))
    waits = sorted(load.waits) or [0.0]
    shares = {"p50": waits[len(waits) // 2], "p99": waits[int(len(waits) * 0.99)]}
    print(json.dumps({"rate": rate, "answers": len(load.waits), "statuses": load.statuses, **shares}), flush=True)


if __name__ == "__main__":
    main()
