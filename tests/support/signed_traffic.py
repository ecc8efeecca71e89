"""Signed traffic: sends deliveries at a fixed rate, signed with the sandbox's current secrets.

The sandbox's own sender has one thread; this one has several. It reads the secrets from the sandbox's state file.
Like a store, it retries a delivery that was not answered 2xx, with the same id and body and a new signature.
"""

from __future__ import annotations

import itertools
import queue
import socket
import sqlite3
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from receiver.contract.compose import compose
from receiver.contract.signing.signatures import Secret
from receiver.contract.stores import Store

RETRY_AFTER = 0.25
THREADS = 16


@dataclass
class Sending:
    """Sends deliveries, and records the responses."""

    store: Store
    state_file: Path
    port: int
    rate: float
    answers: Counter[str] = field(default_factory=Counter)
    accepted: dict[str, str] = field(default_factory=dict)
    """Event ids, by delivery id."""
    first_tries: list[float] = field(default_factory=list)
    longest: float = 0.0

    def __post_init__(self) -> None:
        self._due: queue.PriorityQueue[tuple[float, int, str, str, float]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._occurred = time.time()
        self.sent = 0
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(THREADS)]

    def start(self) -> Sending:
        for thread in self._threads:
            thread.start()
        self._pacer = threading.Thread(target=self._pace, daemon=True)
        self._pacer.start()
        return self

    def finish(self, within: float = 60.0) -> None:
        """Send no new deliveries, and wait until all were answered 2xx."""
        self._stop.set()
        self._pacer.join()
        until = time.monotonic() + within
        while len(self.accepted) < self.sent and time.monotonic() < until:
            time.sleep(0.05)

    def _pace(self) -> None:
        began = time.monotonic()
        for number in itertools.count():
            wait = began + number / self.rate - time.monotonic()
            if self._stop.wait(max(0.0, wait)):
                return
            self.sent += 1
            now = time.monotonic()
            self._due.put((now, next(self._numbers), f"msg_{number:06}", "", now))

    def _work(self) -> None:
        source, connection = SandboxSecrets(self.state_file, self.store.url), Connection(self.port)
        while True:
            due, _, delivery, topic, began = self._due.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not topic:
                self.first_tries.append(time.monotonic())
            topics = source.secrets()
            topic = topic or sorted(topics)[int(delivery[4:]) % len(topics)]
            self._record(connection.post(self._request(topic, topics[topic], delivery)), delivery, topic, began)

    def _request(self, topic: str, secret: str, delivery: str) -> Any:
        key = Secret(key=self.store.scheme.key_of(secret))
        signed_by = replace(self.store, secrets=(key,))
        return compose(
            signed_by,
            topic=topic,
            delivery_id=delivery,
            data={"id": delivery},
            now=time.time(),
            occurred=self._occurred,
        )

    def _record(self, answer: tuple[str, str], delivery: str, topic: str, began: float) -> None:
        status, event_id = answer
        with self._lock:
            self.answers[status] += 1
            if status == "200":
                self.accepted[delivery] = event_id
                self.longest = max(self.longest, time.monotonic() - began)
                return
        self._due.put((time.monotonic() + RETRY_AFTER, next(self._numbers), delivery, topic, began))

    @property
    def attained(self) -> float:
        """First attempts a second, over the whole time."""
        return (len(self.first_tries) - 1) / (self.first_tries[-1] - self.first_tries[0])


class SandboxSecrets:
    """Reads the current secret of each subscription from the sandbox, by topic."""

    def __init__(self, state_file: Path, url: str) -> None:
        self._database = sqlite3.connect(f"file:{state_file}?mode=ro", uri=True)
        self._url = url
        self._version = -1
        self._secrets: dict[str, str] = {}

    def secrets(self) -> dict[str, str]:
        (version,) = self._database.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            rows = self._database.execute("SELECT body FROM records WHERE kind = 'webhook'").fetchall()
            found = [orjson.loads(body) for (body,) in rows]
            self._secrets = {one["topic"]: one["secret"] for one in found if one["url"] == self._url}
            self._version = version
        return self._secrets


class Connection:
    """One persistent connection. A client library would use more CPU than the receiver."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def post(self, request: Any) -> tuple[str, str]:
        """Send a request; returns the status and event id of the response, or "no answer"."""
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        start = f"POST /webhooks/demo HTTP/1.1\r\nhost: here\r\n{head}content-length: {len(request.body)}\r\n\r\n"
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), 10)
            self._socket.sendall(start.encode() + request.body)
            head_bytes, body = self._read(self._socket)
        except (OSError, ValueError):
            if self._socket is not None:
                self._socket.close()
            self._socket = None
            return "no answer", ""
        status = head_bytes[9:12].decode()
        if b"connection: close" in head_bytes:
            self._socket.close()
            self._socket = None
        return status, str(orjson.loads(body).get("id", "")) if status == "200" else ""

    @staticmethod
    def _read(connection: socket.socket) -> tuple[bytes, bytes]:
        got = b""
        while b"\r\n\r\n" not in got:
            if not (part := connection.recv(65536)):
                raise ValueError("closed")
            got += part
        head, _, body = got.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(body) < length:
            if not (part := connection.recv(65536)):
                raise ValueError("closed")
            body += part
        return head.lower(), body
