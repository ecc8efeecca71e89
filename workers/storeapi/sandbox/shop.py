"""Shop: the sandbox store itself. It does operations, keeps what they change, and tells its subscribers."""

from __future__ import annotations

import base64
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import orjson

from receiver.contract.signing.signatures import Secret
from receiver.contract.stores import Store
from receiver.contract.topics import their_names
from workers.storeapi.catalogue import Catalogue, Operation
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


class Problem(Exception):
    """An answer with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class SandboxCall:
    """A request, understood: parameters of the path, the query, and the body by our names."""

    operation: Operation
    path: Mapping[str, int] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Json = field(default_factory=dict)


@dataclass
class Listing:
    """An answer with many records of a kind."""

    kind: str
    parent: int = 0
    show: Callable[[Json], Json] = lambda record: record


class Shop:
    def __init__(
        self, state: SandboxState, catalogue: Catalogue, store: Store, pathologies: Misbehaviour, *, secret: str = ""
    ) -> None:
        self.state = state
        self.catalogue = catalogue
        self.store = store
        self.pathologies = pathologies
        self.first_secret = secret
        self.news = threading.Event()
        """Set when there may be something to send."""

    # What operations use

    def find(self, kind: str, id_: int, parent: int | None = None) -> Json:
        found = self.state.get(kind, id_, parent)
        if found is None:
            raise Problem(404, f"there is no {kind} {id_}")
        return found

    def keep(self, kind: str, record: Json, topic: str) -> Json:
        """A record that has changed, and the word about it."""
        self.state.put(kind, record)
        self.emit(topic, record)
        return record

    def emit(self, topic: str, data: Mapping[str, Any]) -> None:
        """Tell every subscriber, in the same transaction as the change; the pathologies have their say."""
        n = self.state.add("events")
        theirs = self.their_topic(topic)
        now = time.time()
        for subscription in self.state.every("webhook"):
            if subscription["enabled"] and subscription["topic"] in (theirs, "*"):
                delivery = f"msg_{secrets.token_hex(10)}"
                for planned in self.pathologies.plan(n):
                    self.queue(subscription["id"], theirs, data, delivery, planned.twist, now, planned.delay)

    def queue(
        self,
        subscription: int,
        theirs: str,
        data: Mapping[str, Any],
        delivery: str,
        twist: str,
        occurred: float,
        delay: float = 0.0,
    ) -> int:
        self.state.execute(
            "INSERT INTO outbox (subscription, topic, data, delivery, twist, due, occurred) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            subscription,
            theirs,
            orjson.dumps(data),
            delivery,
            twist,
            occurred + delay,
            occurred,
        )
        self.news.set()
        return int(self.state.execute("SELECT last_insert_rowid()")[0][0])

    def their_topic(self, topic: str) -> str:
        """The store's own name for what happened, as its scheme has it."""
        return their_names(topic, self.store.scheme.topics)[0]

    def signed_by(self, subscription: Json) -> Store:
        """The store as it signs for one subscription."""
        key = self.store.scheme.key_of(subscription["secret"])
        return replace(self.store, secrets=(Secret(key=key),), url=subscription["url"])

    def fresh_secret(self) -> str:
        """A new signing secret, written as the store's scheme wants it."""
        scheme, key = self.store.scheme, secrets.token_bytes(24)
        in_base64 = scheme.secret_encoding.startswith("base")
        return scheme.secret_prefix + (base64.b64encode(key).decode() if in_base64 else key.hex())

    # Setting up

    def subscribe(self) -> None:
        """The subscriptions of whoever runs this sandbox: every topic, to the configured receiver."""
        with self.state.transaction():
            for old in self.state.every("webhook"):
                if old.get("own"):
                    self.state.delete("webhook", old["id"])
            for topic in TOPICS:
                self.state.insert("webhook", self.subscription(self.their_topic(topic), self.store.url) | {"own": True})

    def subscription(self, topic: str, url: str) -> Json:
        secret = self.first_secret or self.fresh_secret()
        return {"topic": topic, "url": url, "enabled": True, "secret": secret, "failures": 0}

    # Misbehaving now

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
            for subscription in self.state.every("webhook"):
                do(subscription)


def amount(value: Any, name: str = "price") -> str:
    """Money as the API carries it, or 422."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not _AMOUNT.fullmatch(text):
        raise Problem(422, f'{name} is an amount like "19.90"')
    return f"{Decimal(text):.2f}"


def whole(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 10**9:
        raise Problem(422, f"{name} is a whole number")
    return value


def words(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 10_000:
        raise Problem(422, f"{name} is text")
    return value
