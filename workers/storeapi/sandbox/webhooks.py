"""Webhooks: who is told of what, and what became of the telling."""

from __future__ import annotations

import secrets
import time
from typing import Any
from urllib.parse import urlsplit

from workers.storeapi.sandbox.shop import TOPICS, Listing, Problem, SandboxCall, Shop, words
from workers.storeapi.sandbox.state import Json

NEWEST = 200
"""How many deliveries are listed."""


def list_(shop: Shop, call: SandboxCall) -> Listing:  # noqa: ARG001
    return Listing("webhook", show=public)


def create(shop: Shop, call: SandboxCall) -> Json:
    body = call.body
    made = shop.subscription(_topic(shop, body["topic"]), _url(body["url"]))
    made["enabled"] = bool(body.get("enabled", True))
    if "secret" in body:
        made["secret"] = words(body["secret"], "secret")
    return without_marks(shop.state.insert("webhook", made))


def get(shop: Shop, call: SandboxCall) -> Json:
    return public(shop.find("webhook", call.path["id"]))


def update(shop: Shop, call: SandboxCall) -> Json:
    checks: dict[str, Any] = {"topic": lambda v: _topic(shop, v), "url": _url, "enabled": bool}
    changed = {name: check(call.body[name]) for name, check in checks.items() if name in call.body}
    if changed.get("enabled"):
        changed["failures"] = 0
    return public(shop.state.put("webhook", {**shop.find("webhook", call.path["id"]), **changed}))


def delete(shop: Shop, call: SandboxCall) -> None:
    shop.state.delete("webhook", shop.find("webhook", call.path["id"])["id"])


def list_topics(shop: Shop, call: SandboxCall) -> list[Json]:  # noqa: ARG001
    return [{"topic": shop.their_topic(topic)} for topic in TOPICS]


def send_test(shop: Shop, call: SandboxCall) -> Json:
    subscription = shop.find("webhook", call.path["id"])
    delivery = f"test_{secrets.token_hex(10)}"
    sample = {"id": 0, "test": True}
    number = shop.queue(subscription["id"], subscription["topic"], sample, delivery, "", time.time())
    return {"id": number, "delivery_id": delivery, "topic": subscription["topic"], "state": "waiting"}


def rotate_secret(shop: Shop, call: SandboxCall) -> Json:
    """The answer shows the new secret; no other answer does."""
    found = shop.find("webhook", call.path["id"])
    return without_marks(shop.state.put("webhook", {**found, "secret": shop.fresh_secret()}))


def list_deliveries(shop: Shop, call: SandboxCall) -> list[Json]:
    found = shop.state.execute(
        "SELECT id, delivery, topic, state, attempts, answered FROM outbox WHERE subscription = ? "
        "ORDER BY id DESC LIMIT ?",
        shop.find("webhook", call.path["id"])["id"],
        NEWEST,
    )
    names = ("id", "delivery_id", "topic", "state", "attempts", "answered")
    return [dict(zip(names, row, strict=True)) for row in found]


def without_marks(subscription: Json) -> Json:
    return {name: value for name, value in subscription.items() if name not in ("own", "failures")}


def public(subscription: Json) -> Json:
    return {name: value for name, value in without_marks(subscription).items() if name != "secret"}


def _topic(shop: Shop, value: Any) -> str:
    known = [shop.their_topic(topic) for topic in TOPICS]
    if value not in known and value != "*":
        raise Problem(422, f"there is no topic {str(value)[:60]!r}; there are {', '.join(known)}")
    return str(value)


def _url(value: Any) -> str:
    if urlsplit(words(value, "url")).scheme not in ("http", "https"):
        raise Problem(422, "url is an address that begins with https://")
    return str(value)
