"""Webhook sender: sends the queued deliveries, signed and with retries; disables a subscription that keeps failing."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson

from receiver.contract.compose import Request, compose, in_store_shape
from receiver.contract.errors import DeliveryRefused
from receiver.contract.signing.signatures import sign
from receiver.contract.signing.sources import with_query
from receiver.contract.stores import Store
from workers.storeapi.sandbox.shop import Shop
from workers.storeapi.sandbox.state import Json

SEND_SECONDS = 5.0
POLL_SECONDS = 0.25
LOG_SIZE = 50_000
"""Number of finished deliveries that stay in the log."""


@dataclass(frozen=True)
class DueDelivery:
    """A row of the outbox that is to be sent now."""

    id: int
    subscription: int
    topic: str
    data: Any
    delivery: str
    defect: str
    attempts: int
    occurred: float


class WebhookSender(threading.Thread):
    """One thread, so that deliveries are sent in the order of their due times."""

    def __init__(self, shop: Shop, *, retries: Sequence[float], disable_after: int, ca_file: str = "") -> None:
        super().__init__(daemon=True, name="sender")
        self._shop = shop
        self._retries = retries
        self._disable_after = disable_after
        self._stopping = threading.Event()
        trusted = httpx2.create_ssl_context(trust_env=False)
        if ca_file:
            trusted.load_verify_locations(ca_file)
        self._http = httpx2.Client(timeout=SEND_SECONDS, trust_env=False, verify=trusted)

    def run(self) -> None:
        while not self._stopping.is_set():
            due = self._next()
            if due is None:
                self._shop.work_queued.wait(POLL_SECONDS)
                self._shop.work_queued.clear()
            else:
                self._deliver(due)
        self._http.close()

    def stop(self) -> None:
        self._stopping.set()
        self._shop.work_queued.set()
        self.join(SEND_SECONDS + 1)

    def _next(self) -> DueDelivery | None:
        found = self._shop.state.execute(
            "SELECT id, subscription, topic, data, delivery, defect, attempts, occurred FROM webhook_outbox "
            "WHERE state = 'waiting' AND due <= ? ORDER BY due, id LIMIT 1",
            time.time(),
        )
        if not found:
            return None
        id_, subscription, topic, data, *rest = found[0]
        return DueDelivery(id_, subscription, topic, orjson.loads(data), *rest)

    def _deliver(self, due: DueDelivery) -> None:
        subscription = self._shop.state.get("webhook", due.subscription)
        if subscription is None or not subscription["enabled"]:
            self._finish(due, "dropped", "the subscription is deleted or disabled")
            return
        answered = self._send(subscription, due)
        if answered.startswith("2"):
            self._succeeded(due, subscription, answered)
        else:
            self._failed(due, subscription, answered)

    def _send(self, subscription: Json, due: DueDelivery) -> str:
        """The status of the response, or the name of the error."""
        request = self.request(subscription, due)
        try:
            url, headers = with_query(subscription["url"], request.headers)
            return str(self._http.post(url, headers=headers, content=request.body).status_code)
        except httpx2.HTTPError as error:
            return type(error).__name__

    def request(self, subscription: Json, due: DueDelivery) -> Request:
        """The request of a delivery, signed now: a retry has a new signature, and the same id and body."""
        store, now = self._shop.signed_by(subscription), time.time()
        topic, data = due.topic, in_store_shape(store.scheme, due.topic, due.data)
        if due.defect == "unknown_topic":
            topic = "warehouse.flooded"
        if due.defect == "huge":
            data = {**data, "padding": "x" * self._shop.misbehaviour.size("huge_size")}
        request = compose(store, topic=topic, delivery_id=due.delivery, data=data, now=now, occurred=due.occurred)
        return _malformed(store, request, now) if due.defect == "malformed" else request

    def _succeeded(self, due: DueDelivery, subscription: Json, answered: str) -> None:
        self._finish(due, "done", answered)
        if subscription["failures"]:
            self._change(due.subscription, failures=0)
        self._change_without_notice(due)

    def _failed(self, due: DueDelivery, subscription: Json, answered: str) -> None:
        if due.attempts < len(self._retries):
            again = time.time() + self._retries[due.attempts]
            statement = "UPDATE webhook_outbox SET attempts = attempts + 1, due = ?, answered = ? WHERE id = ?"
            self._shop.state.execute(statement, again, answered, due.id)
            return
        self._finish(due, "failed", answered)
        failures = subscription["failures"] + 1
        self._change(due.subscription, failures=failures)
        if failures >= self._disable_after:
            self._change(due.subscription, enabled=False)

    def _finish(self, due: DueDelivery, state: str, answered: str) -> None:
        statement = "UPDATE webhook_outbox SET attempts = attempts + 1, state = ?, answered = ? WHERE id = ?"
        self._shop.state.execute(statement, state, answered, due.id)
        self._shop.state.execute("DELETE FROM webhook_outbox WHERE id < ? AND state <> 'waiting'", due.id - LOG_SIZE)

    def _change_without_notice(self, due: DueDelivery) -> None:
        """The faults that change a subscription after a delivery."""
        bad = self._shop.misbehaviour
        if bad.happens("rotate", due.id):
            self._change(due.subscription, secret=self._shop.fresh_secret())
        if bad.happens("disable", due.id):
            self._change(due.subscription, enabled=False)
        if bad.happens("delete", due.id):
            self._shop.state.delete("webhook", due.subscription)

    def _change(self, subscription: int, **fields: Any) -> None:
        """Read it again before writing: the API may have changed it during the delivery."""
        with self._shop.state.transaction():
            found = self._shop.state.get("webhook", subscription)
            if found is not None:
                self._shop.state.put("webhook", {**found, **fields})


def _malformed(store: Store, request: Request, now: float) -> Request:
    """A truncated body with a valid signature. A scheme that signs a field of the body cannot sign it: unchanged."""
    body = request.body[:-7] + b'"\xff'
    signature = {name.lower() for name in store.scheme.headers}
    headers = {name: value for name, value in request.headers.items() if name not in signature}
    try:
        signed = sign(store.scheme, secret=store.secrets[0], headers=headers, body=body, now=now, url=store.url)
    except (DeliveryRefused, ValueError):  # also where the signature is a field of the body
        return request
    return Request({**headers, **signed.headers}, signed.body)
