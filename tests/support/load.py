"""A load of signed deliveries over HTTP: several senders, each one delivery after another; every answer is recorded."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence

import httpx2

from receiver.contract.compose import compose
from tests.support.harness import System


class Load:
    """Senders that run until the block ends. With `keep_alive` off, each delivery has its own connection."""

    def __init__(
        self,
        system: System,
        senders: int = 3,
        *,
        keep_alive: bool = True,
        stores: Sequence[str] = ("north",),
        pause: float = 0.01,
    ) -> None:
        self.system = system
        self.answered: list[tuple[str, float]] = []
        self.others: list[int] = []
        """Statuses other than 2xx."""
        self.failed: list[Exception] = []
        """Errors of deliveries that got no answer."""
        self.worst = 0.0
        self._name = secrets.token_hex(4)
        self._stores = stores
        self._headers = {} if keep_alive else {"connection": "close"}
        self._pause = pause
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send_forever, args=(n,)) for n in range(senders)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(15)

    @property
    def ids(self) -> set[str]:
        return {event_id for event_id, _ in self.answered}

    def __str__(self) -> str:
        others = ", ".join(f"{count:,} x {status}" for status, count in sorted(Counter(self.others).items()))
        return (
            f"{len(self.answered):,} answered 2xx, {others or 'no other status'}, {len(self.failed):,} unanswered; "
            f"slowest answer {self.worst:.2f} s"
        )

    def _send_forever(self, number: int) -> None:
        store, count = self.system.config.known_stores[self._stores[number % len(self._stores)]], 0
        url = f"http://127.0.0.1:{self.system.port}/webhooks/{store.name}"
        with httpx2.Client(timeout=10, headers=self._headers) as client:
            while not self._stop.is_set():
                count += 1
                one = compose(
                    store,
                    topic="order.created",
                    delivery_id=f"{self._name}-{number}-{count}",
                    data={"id": count},
                    now=time.time(),
                )
                began = time.monotonic()
                try:
                    self._record(client.post(url, headers=one.headers, content=one.body), began)
                except httpx2.HTTPError as error:
                    self.failed.append(error)
                self._stop.wait(self._pause)

    def _record(self, answer: httpx2.Response, began: float) -> None:
        self.worst = max(self.worst, time.monotonic() - began)
        if answer.is_success:
            self.answered.append((answer.json()["id"], time.time()))
        else:
            self.others.append(answer.status_code)
