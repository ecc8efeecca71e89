"""Compose: a delivery as a store would send it; the reverse of intake. For `send`, the sandbox and tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from receiver.contract.scheme import sign
from receiver.contract.stores import Store


class Request(NamedTuple):
    headers: dict[str, str]
    body: bytes


def compose(store: Store, *, topic: str, delivery_id: str, data: Any, now: float) -> Request:
    """Put each part where the store's scheme looks for it first, and sign the whole."""
    headers: dict[str, str] = {"content-type": "application/json"}
    sources = store.scheme.event
    document: dict[str, Any] = {}
    moment = datetime.fromtimestamp(int(now), UTC).isoformat().replace("+00:00", "Z")
    if not _put(headers, document, sources.data[:1], data):
        document = dict(data)
    _put(headers, document, sources.topic[:1], topic)
    _put(headers, document, sources.id[:1], delivery_id)
    _put(headers, document, sources.occurred[:1], moment)
    _put(headers, document, sources.store[:1], store.domain or store.name)
    body = orjson.dumps(document)
    signature = sign(store.scheme, secret=store.secrets[0], headers=headers, body=body, now=now, url=store.url)
    return Request({**headers, **signature}, body)


def _put(headers: dict[str, str], document: dict[str, Any], sources: tuple[str, ...], value: Any) -> bool:
    """Write a value where a source would be read; False where the source is the body itself, or there is none."""
    for source in sources:
        kind, _, name = source.partition(":")
        if kind == "header":
            headers[name.lower()] = str(value)
            return True
        if kind == "json":
            *above, last = name.split(".")
            for step in above:
                document = document.setdefault(step, {})
            document.setdefault(last, value)
            return True
    return False
