"""Deliveries with a list of events, signed, for tests with real processes."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import httpx2
import orjson

from receiver.contract.compose import Request
from receiver.inbox import keys
from tests.support.harness import System

SECRET = "the secret of a store that sends batches"
CONFIG = f"""
[schemes.list]
headers = ["X-Signature"]
batch = "body"
[schemes.list.event]
topic = ["json:type"]
id = ["json:id"]
resource_id = ["json:order.id"]
data = ["json:order"]
[stores.batches]
scheme = "list"
signing_secrets = ["{SECRET}"]
"""


def item(name: str, topic: str = "order.created") -> dict[str, Any]:
    return {"id": name, "type": topic, "order": {"id": name, "total": "7.00"}}


def items(name: str, count: int) -> list[dict[str, Any]]:
    return [item(f"{name}_{number}") for number in range(count)]


def signed(content: Any, secret: str = SECRET) -> Request:
    body = content if isinstance(content, bytes) else orjson.dumps(content)
    return Request({"x-signature": hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}, body)


def post(system: System, content: Any) -> httpx2.Response:
    return system.post(signed(content), "batches")


def in_inbox(system: System, name: str) -> int:
    """The events of a batch that are in the inbox, by their delivery ids."""
    pipeline = system.client.pipeline(transaction=False)
    for key in system.client.scan_iter(keys.EVENT + "*", count=1000):
        pipeline.hget(key, "delivery")
    return sum(one.startswith(f"{name}_".encode()) for one in pipeline.execute() if one)
