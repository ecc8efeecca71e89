"""Deliveries: sends what is in the outbox, signed, with retries; gives up on a subscriber that never answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from receiver.contract.compose import Request, compose
from receiver.contract.errors import DeliveryRefused
from receiver.contract.signing.signatures import sign
from receiver.contract.stores import Store
from workers.storeapi.sandbox.shop import Shop
from workers.storeapi.sandbox.state import Json

SEND_SECONDS = 5.0
LOOK_EVERY = 0.25
KEPT = 50_000
"""How many ended deliveries are kept for the log."""


@dataclass(frozen=True)
class Due:
    id: int
    subscription: int
    topic: str
    data: Any
    delivery: str
    twist: str
    attempts: int
    occurred: float


class Sender(threading.Thread):
    """One thread, so that deliveries leave in the order of their times."""

    def __init__(self, shop: Shop, *, retries: Sequence[float], disable_after: int) -> None:
        super().__init__(daemon=True, name="sender")
        self._shop = shop
        self._retries = retries
        self._disable_after = disable_after
        self._stopping = threading.Event()
        self._http = httpx2.Client(timeout=SEND_SECONDS, trust_env=False)

    def run(self) -> None:
        while not self._stopping.is_set():
            due = self._next()
            if due is None:
                self._shop.news.wait(LOOK_EVERY)
                self._shop.news.clear()
            else:
                self._deliver(due)
        self._http.close()

    def stop(self) -> None:
        self._stopping.set()
        self._shop.news.set()
        self.join(SEND_SECONDS + 1)

    def _next(self) -> Due | None:
        found = self._shop.state.execute(
            "SELECT id, subscription, topic, data, delivery, twist, attempts, occurred FROM outbox "
            "WHERE state = 'waiting' AND due <= ? ORDER BY due, id LIMIT 1",
            time.time(),
        )
        if not found:
            return None
        id_, subscription, topic, data, *rest = found[0]
        return Due(id_, subscription, topic, orjson.loads(data), *rest)

    def _deliver(self, due: Due) -> None:
        subscription = self._shop.state.get("webhook", due.subscription)
        if subscription is None or not subscription["enabled"]:
            self._end(due, "dropped", "the subscription is gone or disabled")
            return
        answered = self._send(subscription, due)
        if answered.startswith("2"):
            self._succeeded(due, subscription, answered)
        else:
            self._failed(due, subscription, answered)

    def _send(self, subscription: Json, due: Due) -> str:
        """The status of the answer, or why there is none."""
        request = self.request(subscription, due)
        try:
            return str(self._http.post(subscription["url"], headers=request.headers, content=request.body).status_code)
        except httpx2.HTTPError as error:
            return type(error).__name__

    def request(self, subscription: Json, due: Due) -> Request:
        """Composed and signed when it is sent: a retry is signed anew, under the same id and with the same body."""
        store, now = self._shop.signed_by(subscription), time.time()
        topic, data = due.topic, due.data
        if due.twist == "unknown_topic":
            topic = "warehouse.flooded"
        if due.twist == "huge":
            data = {**data, "padding": "x" * self._shop.pathologies.size("huge_size")}
        request = compose(store, topic=topic, delivery_id=due.delivery, data=data, now=now, occurred=due.occurred)
        return _malformed(store, request, now) if due.twist == "malformed" else request

    def _succeeded(self, due: Due, subscription: Json, answered: str) -> None:
        self._end(due, "done", answered)
        if subscription["failures"]:
            self._change(due.subscription, failures=0)
        self._silent_changes(due)

    def _failed(self, due: Due, subscription: Json, answered: str) -> None:
        if due.attempts < len(self._retries):
            again = time.time() + self._retries[due.attempts]
            statement = "UPDATE outbox SET attempts = attempts + 1, due = ?, answered = ? WHERE id = ?"
            self._shop.state.execute(statement, again, answered, due.id)
            return
        self._end(due, "failed", answered)
        failures = subscription["failures"] + 1
        self._change(due.subscription, failures=failures)
        if failures >= self._disable_after:
            self._change(due.subscription, enabled=False)

    def _end(self, due: Due, state: str, answered: str) -> None:
        statement = "UPDATE outbox SET attempts = attempts + 1, state = ?, answered = ? WHERE id = ?"
        self._shop.state.execute(statement, state, answered, due.id)
        self._shop.state.execute("DELETE FROM outbox WHERE id < ? AND state <> 'waiting'", due.id - KEPT)

    def _silent_changes(self, due: Due) -> None:
        """What a store does to a subscription without a word."""
        bad = self._shop.pathologies
        if bad.strikes("rotate", due.id):
            self._change(due.subscription, secret=self._shop.fresh_secret())
        if bad.strikes("disable", due.id):
            self._change(due.subscription, enabled=False)
        if bad.strikes("delete", due.id):
            self._shop.state.delete("webhook", due.subscription)

    def _change(self, subscription: int, **fields: Any) -> None:
        """Read again before it is written: the API may have changed it while we were sending."""
        with self._shop.state.transaction():
            found = self._shop.state.get("webhook", subscription)
            if found is not None:
                self._shop.state.put("webhook", {**found, **fields})


def _malformed(store: Store, request: Request, now: float) -> Request:
    """A body cut short, signed as if nothing were wrong. A scheme that signs a field of the body cannot do that."""
    body = request.body[:-7] + b'"\xff'
    signature = {name.lower() for name in store.scheme.headers}
    headers = {name: value for name, value in request.headers.items() if name not in signature}
    try:
        added = sign(store.scheme, secret=store.secrets[0], headers=headers, body=body, now=now, url=store.url)
    except DeliveryRefused:
        return request
    return Request({**headers, **added}, body)
