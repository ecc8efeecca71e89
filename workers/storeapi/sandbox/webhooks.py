"""Webhooks: the subscription operations of the sandbox store, and its delivery log."""

from __future__ import annotations

import secrets
import time
from typing import Any

from workers.storeapi.sandbox.shop import TOPICS, ErrorAnswer, Listing, SandboxCall, Shop, check_text
from workers.storeapi.sandbox.state import Json

MAX_LISTED = 200
"""Number of deliveries that list_deliveries returns, the newest."""


def list_(shop: Shop, call: SandboxCall) -> Listing:  # noqa: ARG001
    return Listing("webhook", show=_without_secret)


def create(shop: Shop, call: SandboxCall) -> Json:
    body = call.body
    subscription = shop.subscription(_topic(shop, body["topic"]), _url(body["url"]))
    subscription["enabled"] = bool(body.get("enabled", True))
    if "secret" in body:
        subscription["secret"] = check_text(body["secret"], "secret")
    return _without_internal_fields(shop.state.insert("webhook", subscription))


def get(shop: Shop, call: SandboxCall) -> Json:
    return _without_secret(shop.find("webhook", call.path["id"]))


def update(shop: Shop, call: SandboxCall) -> Json:
    checks: dict[str, Any] = {"topic": lambda v: _topic(shop, v), "url": _url, "enabled": bool}
    changed = {name: check(call.body[name]) for name, check in checks.items() if name in call.body}
    if changed.get("enabled"):
        changed["failures"] = 0
    return _without_secret(shop.state.put("webhook", {**shop.find("webhook", call.path["id"]), **changed}))


def delete(shop: Shop, call: SandboxCall) -> None:
    shop.state.delete("webhook", shop.find("webhook", call.path["id"])["id"])


def list_topics(shop: Shop, call: SandboxCall) -> list[Json]:  # noqa: ARG001
    return [{"topic": shop.store_topic(topic)} for topic in TOPICS]


def send_test(shop: Shop, call: SandboxCall) -> Json:
    subscription = shop.find("webhook", call.path["id"])
    delivery = f"test_{secrets.token_hex(10)}"
    sample = {"id": 0, "test": True}
    number = shop.queue(subscription["id"], subscription["topic"], sample, delivery, "", time.time())
    return {"id": number, "delivery_id": delivery, "topic": subscription["topic"], "state": "waiting"}


def rotate_secret(shop: Shop, call: SandboxCall) -> Json:
    """The response shows the new secret. Only this one and that of `create` do."""
    rotated = {**shop.find("webhook", call.path["id"]), "secret": shop.fresh_secret(), "own": False}
    return _without_internal_fields(shop.state.put("webhook", rotated))


def list_deliveries(shop: Shop, call: SandboxCall) -> list[Json]:
    found = shop.state.execute(
        "SELECT id, delivery, topic, state, attempts, answered FROM webhook_outbox WHERE subscription = ? "
        "ORDER BY id DESC LIMIT ?",
        shop.find("webhook", call.path["id"])["id"],
        MAX_LISTED,
    )
    names = ("id", "delivery_id", "topic", "state", "attempts", "answered")
    return [dict(zip(names, row, strict=True)) for row in found]


def _without_internal_fields(subscription: Json) -> Json:
    return {name: value for name, value in subscription.items() if name not in ("own", "failures")}


def _without_secret(subscription: Json) -> Json:
    return {name: value for name, value in _without_internal_fields(subscription).items() if name != "secret"}


def _topic(shop: Shop, value: Any) -> str:
    known = [shop.store_topic(topic) for topic in TOPICS]
    if value not in known and value != "*":
        raise ErrorAnswer(422, f"unknown topic {str(value)[:60]!r}; known: {', '.join(known)}")
    return str(value)


def _url(value: Any) -> str:
    text = check_text(value, "url")
    if not text.startswith(("http://", "https://")):
        raise ErrorAnswer(422, "url must begin with http:// or https://")
    return text
