"""Deliveries as a store sends them, at a rate, signed with the secret that the sandbox has at that moment.

The sandbox's own sender is one thread; this one has several, reads the secrets from the sandbox's state file, and, like
a store, sends again what was not answered 2xx: under the same id, signed anew.
"""

from __future__ import annotations

import http.client
import itertools
import queue
import sqlite3
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from receiver.contract.compose import compose
from receiver.contract.scheme import Secret
from receiver.contract.stores import Store

AGAIN_AFTER = 0.25
THREADS = 12


@dataclass
class Sending:
    """What has been sent, and how it was answered."""

    store: Store
    state_file: Path
    port: int
    rate: float
    answers: Counter[str] = field(default_factory=Counter)
    accepted: dict[str, str] = field(default_factory=dict)
    """Our id of the event, by delivery."""
    first_tries: list[float] = field(default_factory=list)
    longest: float = 0.0

    def __post_init__(self) -> None:
        self._due: queue.PriorityQueue[tuple[float, int, str, str, float]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.sent = 0
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(THREADS)]

    def start(self) -> Sending:
        for thread in self._threads:
            thread.start()
        self._pacer = threading.Thread(target=self._pace, daemon=True)
        self._pacer.start()
        return self

    def finish(self, within: float = 60.0) -> None:
        """Begin no more, and wait until everything was answered 2xx."""
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

    def _secrets(self, database: sqlite3.Connection) -> dict[str, str]:
        """The store's truth at this moment: the secret of each subscription, by topic."""
        rows = database.execute("SELECT body FROM records WHERE kind = 'webhook'").fetchall()
        found = [orjson.loads(body) for (body,) in rows]
        return {one["topic"]: one["secret"] for one in found if one["url"] == self.store.url and one["enabled"]}

    def _work(self) -> None:
        database = sqlite3.connect(f"file:{self.state_file}?mode=ro", uri=True)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        while True:
            due, _, delivery, topic, began = self._due.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not topic:
                self.first_tries.append(time.monotonic())
            topics = self._secrets(database)
            topic = topic or sorted(topics)[int(delivery[4:]) % len(topics)]
            answer = self._post(connection, self._request(topic, topics[topic], delivery))
            self._note(answer, delivery, topic, began)

    def _request(self, topic: str, secret: str, delivery: str) -> Any:
        key = Secret(key=self.store.scheme.key_of(secret))
        signed_by = replace(self.store, secrets=(key,))
        return compose(signed_by, topic=topic, delivery_id=delivery, data={"id": delivery}, now=time.time())

    def _post(self, connection: http.client.HTTPConnection, request: Any) -> tuple[str, str]:
        try:
            connection.request("POST", "/webhooks/demo", body=request.body, headers=request.headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return "no answer", ""
        event_id = str(orjson.loads(content).get("id", "")) if response.status == 200 else ""
        return str(response.status), event_id

    def _note(self, answer: tuple[str, str], delivery: str, topic: str, began: float) -> None:
        status, event_id = answer
        with self._lock:
            self.answers[status] += 1
            if status == "200":
                self.accepted[delivery] = event_id
                self.longest = max(self.longest, time.monotonic() - began)
                return
        self._due.put((time.monotonic() + AGAIN_AFTER, next(self._numbers), delivery, topic, began))

    @property
    def attained(self) -> float:
        """First tries a second, over the whole time."""
        return (len(self.first_tries) - 1) / (self.first_tries[-1] - self.first_tries[0])
