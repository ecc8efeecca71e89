"""Compose: makes a signed delivery as a store would send it; the reverse of intake.

`send`, the sandbox and tests use it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import orjson

from receiver.contract.record_map import MISSING, set_at
from receiver.contract.signing.grammar import Scheme
from receiver.contract.signing.signatures import format_timestamp, read_part, sign
from receiver.contract.signing.sources import Part, put
from receiver.contract.stores import Store
from receiver.contract.topics import their_names, translate

RESOURCES = ("product", "order", "customer")


class Request(NamedTuple):
    """Headers and body of a delivery."""

    headers: dict[str, str]
    """With its query fields, as `?NAME`: `with_query` writes them to the URL."""
    body: bytes


def compose(
    store: Store, *, topic: str, delivery_id: str, data: Any, now: float, occurred: float | None = None
) -> Request:
    """Write each part to the first source of the store's scheme, and sign the delivery with the store's first secret.

    `occurred` is given when a delivery is sent again, so that its body stays the same.
    The topic is written by the store's own name, if the scheme has one.
    """
    scheme = store.scheme
    draft = _Draft(scheme)
    moment = datetime.fromtimestamp(int(occurred or now), UTC).isoformat().replace("+00:00", "Z")
    standard = translate(topic, scheme.topics)
    draft.write_data(data, standard)
    draft.write("topic", next(iter(their_names(topic, scheme.topics)), topic))
    draft.write_id(delivery_id)
    if not scheme.batch:
        draft.write_timestamp(now)
    draft.write("occurred", moment)
    draft.write("store", store.domain or store.name)
    resource = scheme.record.read(standard.partition(".")[0], "id", data)
    if resource is MISSING and isinstance(data, dict):
        resource = data.get("id", MISSING)
    if resource is not MISSING:
        draft.write("resource_id", resource)
    if scheme.batch:
        draft.put_in_list()
        draft.write_timestamp(now)
    draft.write_signed_parts(delivery_id)
    signed = sign(scheme, secret=store.secrets[0], headers=draft.headers, body=draft.body(), now=now, url=store.url)
    return Request({**draft.headers, **signed.headers}, signed.body)


def in_store_shape(scheme: Scheme, topic: str, data: Any) -> Any:
    """Return a sample with standard field names as the scheme's stores send it, for `compose`."""
    kind = translate(topic, scheme.topics).partition(".")[0]
    return scheme.record.shape(kind, data) if isinstance(data, dict) else data


def event_id_in(answer: Any) -> str:
    """The id of the event that a composed delivery became, in the receiver's answer. Raises what indexing raises."""
    return str(answer["ids"][0] if "ids" in answer else answer["id"])


class _Draft:
    """A delivery that is being built. A value that is already set is not overwritten."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        kind = "application/x-www-form-urlencoded" if scheme.reads_form else "application/json"
        self.headers: dict[str, str] = {"content-type": kind}
        self.document: Any = {}

    def write(self, what: str, value: Any) -> None:
        """Write a part to the first source that it is read from, unless one of these already has a value."""
        sources = self._scheme.read_from[what] or self._scheme.event.parts[what]
        parts = [part for part in sources if part[0] != "const"]
        if parts and all(read_part(part, self.headers, self.document) is None for part in parts):
            self._write_at(parts[0], value)

    def write_data(self, data: Any, topic: str) -> None:
        """Write the resource to its source, which may be the whole body.

        Of several sources it is the one that names the topic or its kind (`data.object.order_created`,
        `data.payload.customer`), else the first one that does not name another kind.
        """
        kind = topic.partition(".")[0]
        others = tuple(other for other in RESOURCES if other != kind)
        parts = self._scheme.event.parts["data"] or (("body", ""),)
        lasts = [(part, part[1].rpartition(".")[2]) for part in parts]
        named = [part for part, last in lasts if last in (kind, topic.replace(".", "_"))]
        open_to_all = [part for part, last in lasts if not last.startswith(others)]
        place = [*named, *open_to_all, *parts][0]
        if place[0] == "json":
            self._write_at(place, dict(data) if isinstance(data, dict) else data)
        elif isinstance(data, dict):
            self.document = dict(data)

    def put_in_list(self) -> None:
        """Make the document a batch of one event. What is written then is a part of the whole delivery."""
        self.document = [self.document]
        for step in reversed(self._scheme.batch_path):
            self.document = {step: self.document}

    def write_id(self, value: str) -> None:
        """Write the delivery id to its first source, even over a field of the data."""
        for kind, path in self._scheme.event.parts["id"][:1]:
            if kind == "json":
                self.document = set_at(self.document, path.split("."), value)
            else:
                self._write_at((kind, path), value)

    def write_timestamp(self, now: float) -> None:
        """Write the timestamp, if the scheme reads it from the body: it must be there before the body is signed."""
        part = self._scheme.timestamp_source
        if part[0] in ("json", "form"):
            text = format_timestamp(self._scheme, now)
            self._write_at(part, int(text) if text.isdigit() else text)

    def write_signed_parts(self, delivery_id: str) -> None:
        """Fill every other signed header or field that is missing with the delivery id."""
        for kind, name in self._scheme.signed_parts:
            if kind in ("header", "json", "form") and read_part((kind, name), self.headers, self.document) is None:
                self._write_at((kind, name), delivery_id)

    def _write_at(self, part: Part, value: Any) -> None:
        kind, path = part
        if kind == "header":
            self.headers.setdefault(path, str(value))
        elif kind == "form":
            self.document.setdefault(path, value)
        elif kind == "json":
            put(self.document, path, value)

    def body(self) -> bytes:
        if not self._scheme.reads_form:
            return orjson.dumps(self.document)
        fields = {
            name: value if isinstance(value, str) else orjson.dumps(value) for name, value in self.document.items()
        }
        return urlencode(fields).encode()
