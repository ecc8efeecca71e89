"""Intake: (headers, body, store, now) -> Event, or DeliveryRefused. Verify the bytes, then read them."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import UNREADABLE, Event, event_id, follow
from receiver.contract.signing.grammar import Part
from receiver.contract.signing.signatures import Headers, Scheme, read_part, verify
from receiver.contract.stores import Store, claims_another_store
from receiver.contract.topics import translate

MAX_ID = 200
MAX_TOPIC = 100
MAX_DEPTH = 200
"""Nesting that `json` reads from any depth of a handler's own calls; orjson alone would let 1024 pass."""
KEPT_HEADERS = 64
NEVER_KEPT = frozenset(("authorization", "proxy-authorization", "cookie"))
_CREDENTIAL = re.compile(r"secret|token|passw|credential|private|auth|jwt|session|(api|access)[_-]?key")
_PROOF = re.compile(r"signature|hmac|digest|sha\d")

_CONTAINERS = (dict, list)
_NUMBERS = (int, float)
_BOM = b"\xef\xbb\xbf"
_MILLISECONDS = 10**11  # later than this in seconds is the year 5138
_DIGITS = re.compile(r"[0-9]{1,16}(\.[0-9]{1,9})?")
_NO_SUBSTANCE = re.compile(
    r"(.*[_-])?(id|ids|key|uuid|guid|hash)|.*[a-z](Id|Ids|ID|Key|Uuid|Hash)"
    r"|type|event|topic|scope|action|entity|operation|resource|producer|store|shop|merchant"
    r"|timestamp|(.*_)?(at|time|date)"
)


@dataclass(frozen=True)
class Delivery:
    """An event that was let in, with what the inbox needs to know beside it."""

    event: Event
    theirs: str
    """The topic as the store wrote it."""
    content_hash: str = ""
    """Set where nothing but the content identifies the delivery; equal marks are one for a short while."""
    unreadable: str = ""
    """Why a genuine delivery could not be understood; it is kept all the same."""
    signed_with: str = ""
    """The fingerprint of the secret that fits."""
    first_id: str = ""
    """Where the body is part of the identity: the event's id if no other body came under this delivery id."""


def receive(headers: Headers, body: bytes, *, store: Store, now: float, source: str = "webhook") -> Delivery:
    """Let a delivery in, or raise DeliveryRefused. A genuine delivery is never refused for its content."""
    scheme = store.scheme
    proof = verify(scheme, secrets=store.secrets, headers=headers, body=body, now=now, url=store.url)
    document, problem = read_document(body)
    if claims_another_store(store, headers, document):
        raise DeliveryRefused("wrong-store", "the delivery names another store")
    read = _Reader(scheme, headers, body, document)
    theirs = read.text("topic")
    topic = translate(theirs, scheme.topics)
    if not problem and not topic:
        problem = f"no topic at {' or '.join(scheme.event.topic) or 'any source'}"
    delivery_id = read.text("id")
    data_path = _data_path(scheme.event.parts["data"], document)
    key = _duplicate_key(scheme, delivery_id, body)
    mark = "" if delivery_id or _is_thin(follow(document, data_path)) else _content_mark(theirs, body)
    return Delivery(
        event=Event(
            id=event_id(store.name, key),
            store=store.name,
            topic=UNREADABLE if problem else topic,
            received_at=datetime.fromtimestamp(now, UTC),
            body=body,
            headers=stored_headers(headers, scheme.reads),
            delivery_id=_bounded(delivery_id, MAX_ID),
            resource_id=_bounded(read.text("resource_id"), MAX_ID),
            occurred_at=_time(read.first("occurred")),
            source=source,
            data_path=data_path,
        ),
        theirs=_bounded(theirs, MAX_TOPIC),
        content_hash=mark,
        unreadable=problem,
        signed_with=proof.secret.fingerprint,
        first_id=event_id(store.name, _id_key(delivery_id)) if delivery_id and scheme.dedupe != "id" else "",
    )


def read_document(body: bytes) -> tuple[Any, str]:
    """The JSON in a body, or why there is none. What passes here, `event.payload` can read."""
    if not body:
        return None, "the body is empty"
    try:
        document = orjson.loads(body.removeprefix(_BOM))
    except orjson.JSONDecodeError as error:
        return None, f"the body is not JSON: {error.msg}"
    if not isinstance(document, _CONTAINERS):
        return None, "the body is a bare value, not an object"
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _deeper_than(MAX_DEPTH, document):
        return None, f"the body is nested more than {MAX_DEPTH} deep"
    return document, ""


def _deeper_than(limit: int, document: Any) -> bool:
    """Level by level, because recursion is what deep nesting breaks."""
    level = [document]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, _CONTAINERS)
        ]
        if not level:
            return False
    return True


class _Reader:
    """Reads an event's parts from where the scheme says they stand."""

    def __init__(self, scheme: Scheme, headers: Headers, body: bytes, document: Any) -> None:
        self._parts, self._headers, self._body, self._document = scheme.event.parts, headers, body, document

    def first(self, what: str) -> Any:
        for part in self._parts[what]:
            value = read_part(part, self._headers, self._document)
            if value is not None and value != "":
                return self._exact(part) if isinstance(value, float) else value
        return None

    def text(self, what: str) -> str:
        """Scalars as text; anything else is not an id or a name."""
        value = self.first(what)
        if isinstance(value, str):
            return value
        return str(value) if isinstance(value, _NUMBERS) and not isinstance(value, bool) else ""

    def _exact(self, part: Part) -> Any:
        """orjson reads whole numbers beyond 64 bits as floats, and two ids could become one."""
        return follow(json.loads(self._body), part[1])


def _duplicate_key(scheme: Scheme, delivery_id: str, body: bytes) -> bytes:
    """What two deliveries of one event have in common, and nothing else has.

    Running twice is allowed, losing an update is not: an id counts alone only where it is signed.
    """
    if not delivery_id:
        return b"once\0" + secrets.token_bytes(16)
    if scheme.dedupe == "id":
        return _id_key(delivery_id)
    return b"id+body\0" + _id_key(delivery_id) + b"\0" + hashlib.sha256(body).digest()


def _id_key(delivery_id: str) -> bytes:
    return b"id\0" + delivery_id.encode("utf-8", "surrogatepass")


def _content_mark(theirs: str, body: bytes) -> str:
    """For deliveries without an id: the same name and the same body, soon after, are a repetition."""
    named = hashlib.sha256(theirs.encode("utf-8", "surrogatepass") + b"\0" + body)
    return named.hexdigest()[:32]


def _is_thin(data: Any) -> bool:
    """Whether the resource is only named, not shown: ids, names of kinds, times.

    Such a body is the same after every change, so it is never taken for a repetition.
    """
    if not isinstance(data, dict):
        return not data
    return len(data) <= 12 and all(
        _NO_SUBSTANCE.fullmatch(key) and not isinstance(value, _CONTAINERS) for key, value in data.items()
    )


def _data_path(sources: tuple[Part, ...], document: Any) -> str:
    """The first place that holds an object; the whole document where none does."""
    for kind, path in sources:
        if kind == "body":
            return ""
        if isinstance(follow(document, path), dict):
            return path
    return ""


@lru_cache(maxsize=4096)
def is_credential(name: str) -> bool:
    """Whether a header, by its name, is there to let somebody in: a proxy's, say. A signature is not."""
    return name in NEVER_KEPT or bool(_CREDENTIAL.search(name) and not _PROOF.search(name))


def stored_headers(headers: Headers, reads: Collection[str] = ()) -> dict[str, str]:
    """What is kept of a request's headers: a bounded number, and no credential.

    What the store's scheme reads is kept whatever its name: a delivery can be verified again.
    """
    wanted = [name for name in headers if not is_credential(name) or (name in reads and name not in NEVER_KEPT)]
    kept = {name: headers[name] for name in wanted}
    return kept if len(kept) <= KEPT_HEADERS else dict(list(kept.items())[:KEPT_HEADERS])


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _time(value: Any) -> datetime | None:
    """A time in any of the usual forms, in UTC; None where it is none."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = float(value)
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        if isinstance(value, _NUMBERS) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > _MILLISECONDS else value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None
