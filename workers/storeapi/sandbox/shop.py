"""Shop: what every operation of the sandbox store uses: its records, its webhooks and its subscriptions."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import orjson

from receiver.contract.signing.grammar import Secret, encode_secret
from receiver.contract.stores import Store
from receiver.contract.topics import their_names
from workers.storeapi.catalogue import Catalogue
from workers.storeapi.sandbox.misbehaviour import Misbehaviour
from workers.storeapi.sandbox.state import Json, SandboxState

TOPICS = (
    "product.created",
    "product.updated",
    "product.deleted",
    "order.created",
    "order.updated",
    "order.deleted",
    "order.paid",
    "order.shipped",
    "order.delivered",
    "order.cancelled",
    "order.refunded",
    "customer.created",
    "customer.updated",
    "customer.deleted",
)
_AMOUNT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,2})?")


class ErrorAnswer(Exception):
    """The operation failed; the API answers with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class SandboxCall:
    """A parsed request: path parameters, and the body with storehooks' field names."""

    path: Mapping[str, int] = field(default_factory=dict)
    body: Json = field(default_factory=dict)


@dataclass
class Listing:
    """The result of an operation that lists records of one kind."""

    kind: str
    parent: int = 0
    show: Callable[[Json], Json] = lambda record: record


class Shop:
    def __init__(
        self, state: SandboxState, catalogue: Catalogue, store: Store, misbehaviour: Misbehaviour, *, secret: str = ""
    ) -> None:
        self.state = state
        self.catalogue = catalogue
        self.store = store
        self.misbehaviour = misbehaviour
        self.first_secret = secret
        self.reloads = 0
        self.work_queued = threading.Event()
        """Set when there may be a webhook to send."""

    # Used by the operations

    def find(self, kind: str, id_: int, parent: int | None = None) -> Json:
        record = self.state.get(kind, id_, parent)
        if record is None:
            raise ErrorAnswer(404, f"there is no {kind} {id_}")
        return record

    def add(self, kind: str, body: Mapping[str, Any]) -> Json:
        """Store a new record, and send its webhook."""
        record = self.state.insert(kind, body)
        self.emit(f"{kind}.created", record)
        return record

    def remove(self, kind: str, record: Json, parts: str = "") -> None:
        """Delete a record with its parts of this kind, and send its webhook."""
        for part in self.state.all_of(parts, record["id"]) if parts else ():
            self.state.delete(parts, part["id"])
        self.state.delete(kind, record["id"])
        self.emit(f"{kind}.deleted", record)

    def save(self, kind: str, record: Json, topic: str) -> Json:
        """Store a changed record, and send its webhook."""
        self.state.put(kind, record)
        self.emit(topic, record)
        return record

    def emit(self, topic: str, data: Mapping[str, Any]) -> None:
        """Queue the webhooks of an event, in the same transaction as the change. Faults apply to each delivery."""
        n = self.state.increment("events")
        store_topic = self.store_topic(topic)
        now = time.time()
        for subscription in self.state.all_of("webhook"):
            if subscription["enabled"] and subscription["topic"] in (store_topic, "*"):
                delivery = f"msg_{secrets.token_hex(10)}"
                for planned in self.misbehaviour.plan(n):
                    self.queue(subscription["id"], store_topic, data, delivery, planned.defect, now, planned.delay)

    def queue(
        self,
        subscription: int,
        store_topic: str,
        data: Mapping[str, Any],
        delivery: str,
        defect: str,
        occurred: float,
        delay: float = 0.0,
    ) -> int:
        self.state.execute(
            "INSERT INTO webhook_outbox (subscription, topic, data, delivery, defect, due, occurred) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(subscription, store_topic, orjson.dumps(data), delivery, defect, occurred + delay, occurred),
        )
        self.work_queued.set()
        return int(self.state.execute("SELECT last_insert_rowid()")[0][0])

    def store_topic(self, topic: str) -> str:
        """The store's own name of a topic, as its scheme maps it."""
        return their_names(topic, self.store.scheme.topics)[0]

    def signed_by(self, subscription: Json) -> Store:
        """The store with the secret and URL of one subscription, to sign its deliveries."""
        key = self.store.scheme.key_of(subscription["secret"])
        return replace(self.store, secrets=(Secret(key=key),), url=subscription["url"])

    def fresh_secret(self) -> str:
        """A new signing secret, in the format of the store's scheme."""
        return encode_secret(self.store.scheme, secrets.token_bytes(24))

    # Setup

    def subscribe(self) -> None:
        """Subscribe the configured receiver to every topic, if the store is new.

        Later the subscriptions are changed through the API, as at a real store. At a later start those that the
        sandbox made itself only get the URL and secret of the current config.
        """
        with self.state.transaction():
            if not self.state.last_id("webhook"):
                for topic in TOPICS:
                    made = self.subscription(self.store_topic(topic), self.store.url)
                    self.state.insert("webhook", made | {"own": True})
            for own in [one for one in self.state.all_of("webhook") if one.get("own")]:
                self._follow_config(own)

    def _follow_config(self, own: Json) -> None:
        others = [one for one in self.state.all_of("webhook") if one["id"] != own["id"]]
        if (own["topic"], self.store.url) in [(one["topic"], one["url"]) for one in others]:
            self.state.delete("webhook", own["id"])
            return
        secret = self.first_secret or own["secret"]
        self.state.put("webhook", own | {"url": self.store.url, "secret": secret, "enabled": True, "failures": 0})

    def subscription(self, topic: str, url: str) -> Json:
        secret = self.first_secret or self.fresh_secret()
        return {"topic": topic, "url": url, "enabled": True, "secret": secret, "failures": 0}

    # Actions of `storehooks sandbox do`

    def rotate_all(self) -> None:
        self._each_subscription(lambda one: self.state.put("webhook", one | {"secret": self.fresh_secret()}))

    def disable_all(self) -> None:
        self._each_subscription(lambda one: self.state.put("webhook", one | {"enabled": False}))

    def delete_all(self) -> None:
        self._each_subscription(lambda one: self.state.delete("webhook", one["id"]))

    def revoke_tokens(self) -> None:
        self.state.execute("DELETE FROM tokens")

    def _each_subscription(self, do: Callable[[Json], Any]) -> None:
        with self.state.transaction():
            for subscription in self.state.all_of("webhook"):
                do(subscription)


def check_amount(value: Any, name: str = "price") -> str:
    """An amount of money as the API writes it, or 422."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not _AMOUNT.fullmatch(text):
        raise ErrorAnswer(422, f'{name} must be an amount like "19.90"')
    return f"{Decimal(text):.2f}"


def check_integer(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 10**9:
        raise ErrorAnswer(422, f"{name} must be an integer")
    return value


def check_text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 10_000:
        raise ErrorAnswer(422, f"{name} must be text")
    return value
