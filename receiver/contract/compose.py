"""Compose: a delivery as a store would send it; the reverse of intake. For `send`, the sandbox and tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from receiver.contract.signing.grammar import Part, Scheme
from receiver.contract.signing.signatures import format_timestamp, read_part, sign
from receiver.contract.stores import Store
from receiver.contract.topics import their_names


class Request(NamedTuple):
    headers: dict[str, str]
    body: bytes


def compose(
    store: Store, *, topic: str, delivery_id: str, data: Any, now: float, occurred: float | None = None
) -> Request:
    """Put each part where the store's scheme looks for it first, and sign the whole.

    What is sent again says when it occurred, so that its body is the one it had before.
    The topic is written as the store would write it, where its scheme has a name for it.
    """
    scheme = store.scheme
    draft = _Draft(scheme)
    moment = datetime.fromtimestamp(int(occurred or now), UTC).isoformat().replace("+00:00", "Z")
    draft.put_data(data)
    draft.put("topic", next(iter(their_names(topic, scheme.topics)), topic))
    draft.put("id", delivery_id)
    draft.put_time(now)
    draft.put("occurred", moment)
    draft.put("store", store.domain or store.name)
    if isinstance(data, dict) and "id" in data:
        draft.put("resource_id", data["id"])
    draft.put_signed_parts(delivery_id)
    body = orjson.dumps(draft.document)
    signature = sign(scheme, secret=store.secrets[0], headers=draft.headers, body=body, now=now, url=store.url)
    return Request({**draft.headers, **signature}, body)


class _Draft:
    """A delivery that is being written: what stands somewhere already is not overwritten."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self.headers: dict[str, str] = {"content-type": "application/json"}
        self.document: dict[str, Any] = {}

    def put(self, what: str, value: Any) -> None:
        """Write a part where its first source reads it, unless one of its sources finds something."""
        parts = self._scheme.event.parts[what]
        if parts and all(read_part(part, self.headers, self.document) is None for part in parts):
            self._put_at(parts[0], value)

    def put_data(self, data: Any) -> None:
        """The resource: at its place, or, where that is the body itself, as the body."""
        kind, path = next(iter(self._scheme.event.parts["data"]), ("body", ""))
        if kind == "json":
            self._put_at((kind, path), dict(data) if isinstance(data, dict) else data)
        elif isinstance(data, dict):
            self.document = dict(data)

    def put_time(self, now: float) -> None:
        """A time that is read from the body must be there before it is signed."""
        part = self._scheme.timestamp_source
        if part[0] == "json":
            text = format_timestamp(self._scheme, now)
            self._put_at(part, int(text) if text.isdigit() else text)

    def put_signed_parts(self, delivery_id: str) -> None:
        """Whatever else is signed must be there: where nothing says what, it is the delivery's id."""
        for kind, name in self._scheme.signed_parts:
            missing = kind in ("header", "json") and read_part((kind, name), self.headers, self.document) is None
            if missing and (kind, name) != self._scheme.timestamp_source:
                self._put_at((kind, name), delivery_id)

    def _put_at(self, part: Part, value: Any) -> None:
        kind, path = part
        if kind == "header":
            self.headers.setdefault(path, str(value))
            return
        *above, last = path.split(".")
        place = self.document
        for step in above:
            place = place.setdefault(step, {})
        place.setdefault(last, value)
