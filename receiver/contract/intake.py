"""Intake: (headers, body, store, now) -> Event, or Rejected. Verify the bytes, then read them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from receiver.contract.errors import Rejected
from receiver.contract.event import UNREADABLE, Event, event_id, follow
from receiver.contract.scheme import Headers, Scheme, read_source, verify
from receiver.contract.stores import Store
from receiver.contract.topics import translate

MAX_ID = 200
MAX_TOPIC = 100
KEPT_HEADERS = 64


@dataclass(frozen=True)
class Delivery:
    """An event that was let in, with what the inbox needs to know beside it."""

    event: Event
    theirs: str
    """The topic as the store wrote it."""
    repeat_mark: str = ""
    """Set where nothing but the body identifies the delivery; equal marks are one for a short while."""
    unreadable: str = ""
    """Why a genuine delivery could not be understood; it is kept all the same."""


def receive(headers: Headers, body: bytes, *, store: Store, now: float, source: str = "webhook") -> Delivery:
    """Let a delivery in, or raise Rejected. A genuine delivery is never refused for its content."""
    verify(store.scheme, secrets=store.secrets, headers=headers, body=body, now=now, url=store.url)
    document, problem = _parse(body)
    scheme = store.scheme
    if _claims_another_store(scheme, headers, document, store):
        raise Rejected("wrong-store", "the delivery names another store")
    theirs = _text(_first(scheme.event.topic, headers, document))
    topic = translate(theirs, scheme.topics)
    if not problem and not topic:
        problem = f"no topic at {', '.join(scheme.event.topic)}"
    delivery_id = _text(_first(scheme.event.id, headers, document))
    key, mark = _identity(scheme, delivery_id, body)
    return Delivery(
        event=Event(
            id=event_id(store.name, key),
            store=store.name,
            topic=UNREADABLE if problem else topic,
            received_at=datetime.fromtimestamp(now, UTC),
            body=body,
            headers=dict(list(headers.items())[:KEPT_HEADERS]),
            delivery_id=_bounded(delivery_id, MAX_ID),
            resource_id=_bounded(_text(_first(scheme.event.resource_id, headers, document)), MAX_ID),
            occurred_at=_time(_first(scheme.event.occurred, headers, document)),
            source=source,
            data_path=_data_path(scheme.event.data, document),
        ),
        theirs=_bounded(theirs, MAX_TOPIC),
        repeat_mark=mark,
        unreadable=problem,
    )


def _parse(body: bytes) -> tuple[Any, str]:
    try:
        return orjson.loads(body), ""
    except orjson.JSONDecodeError as error:
        return None, f"the body is not JSON: {error.msg}"


def _identity(scheme: Scheme, delivery_id: str, body: bytes) -> tuple[bytes, str]:
    """The duplicate key, and the mark for deliveries that carry no id of their own."""
    if delivery_id and scheme.dedupe == "id":
        return b"id\0" + delivery_id.encode(), ""
    digest = hashlib.sha256(body).digest()
    if delivery_id:
        return b"id+body\0" + delivery_id.encode() + b"\0" + digest, ""
    return b"once\0" + secrets.token_bytes(16), digest.hex()[:32]


def _claims_another_store(scheme: Scheme, headers: Headers, document: Any, store: Store) -> bool:
    claimed = _text(_first(scheme.event.store, headers, document))
    return bool(claimed and store.domain and claimed.lower() != store.domain.lower())


def _first(sources: Iterable[str], headers: Headers, document: Any) -> Any:
    for source in sources:
        value = read_source(source, headers, document)
        if value is not None and value != "":
            return value
    return None


def _data_path(sources: Iterable[str], document: Any) -> str:
    """The first place that holds an object; the whole document where none does."""
    for source in sources:
        kind, _, path = source.partition(":")
        if kind == "json" and isinstance(follow(document, path), dict):
            return path
    return ""


def _text(value: Any) -> str:
    """Scalars as text; anything else is not an id or a name. Lone surrogates cannot be stored."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value).encode("utf-8", "replace").decode()


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _time(value: Any) -> datetime | None:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None
