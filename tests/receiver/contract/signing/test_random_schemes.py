"""For random schemes of the whole grammar: what is composed is valid, and a change of any signed part is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import orjson
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from receiver.contract.compose import Request, compose
from receiver.contract.diagnosis.explain import explain
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import follow, form_fields
from receiver.contract.intake import receive
from receiver.contract.signing.grammar import Scheme, SchemeError, Secret, Sources
from receiver.contract.signing.signatures import verify
from receiver.contract.signing.sources import Part, put, query_fields, with_query
from receiver.contract.stores import Store
from tests.support.deliveries import NOW, URL

examples = settings(deadline=None, max_examples=80)
PARTS = [
    "{body}",
    "{body_sha256}",
    "{body_sha256_base64}",
    "{timestamp}",
    "{url}",
    "{path}",
    "{method}",
    "{header:X-Part}",
    "{query:part}",
    "{query:Part?}",
]
OF_JSON = ["{json:a.0.b}", "{json:c}", "{json:d?}"]
OF_FORM = ["{form:c}", "{form:data.id}", "{form:d?}", "{form_sorted}"]
DATA = {"total": "42.00", "note": "Größe"}


@st.composite
def schemes(draw: st.DrawFn) -> Scheme:
    """A random scheme. Combinations that the grammar refuses are not drawn."""
    form = draw(st.booleans())
    field = "form:" if form else "json:"
    separator = draw(st.sampled_from(["", ".", "|", "\n", "::", "&"]))
    algorithm = draw(st.sampled_from(["hmac-sha256", "hmac-sha512", "hmac-sha1", "sha256"]))
    parts = draw(st.lists(st.sampled_from(PARTS + (OF_FORM if form else OF_JSON)), min_size=1, max_size=4, unique=True))
    if algorithm == "sha256":
        parts = draw(st.sampled_from([["{secret}", *parts], [*parts, "{secret}"]]))
    place = draw(st.sampled_from(["header", "headers", "positional", "pairs", "query", "body"]))
    times = ["", "header:X-Time", "query:t", f"{field}sent.at"]
    times += {"positional": ["sig:0", "sig:2"], "pairs": ["sig:t"]}.get(place, [])
    splits: dict[str, Any] = {
        "positional": {"list_sep": ":", "sig_index": 1},
        "pairs": {"list_sep": ",", "pair_sep": ":", "sig_keys": ("s",)},
    }
    places: dict[str, Any] = {
        "headers": {"headers": ("X-First", "X-Second")},
        "query": {"headers": (), "signature": ("query:sig",)},
        "body": {"headers": (), "signature": (f"{field}sign.ature",)},
    }
    data = ("form",) if form else ("json:data",)
    try:
        return Scheme(
            "random",
            **{"headers": ("X-Sig",), **places.get(place, {}), **splits.get(place, {})},
            algorithm=algorithm,  # type: ignore[arg-type]
            encoding=draw(st.sampled_from(["hex", "base64", "base64url"])),
            signed=separator.join(parts),
            allow_unsigned_body=True,
            timestamp=draw(st.sampled_from(times)),
            timestamp_unit=draw(st.sampled_from(["s", "ms"])),
            event=Sources(topic=("const:order.created",), id=(f"{field}c",), resource_id=(), data=data, occurred=()),
        )
    except SchemeError:
        assume(False)
        raise


secrets = st.binary(min_size=1, max_size=80).map(Secret)


def composed(scheme: Scheme, secret: Secret) -> tuple[Store, Request]:
    store = Store("shop", scheme, (secret,), url=URL)
    return store, compose(store, topic="order.created", delivery_id="d-1", data=DATA, now=NOW)


def is_valid(store: Store, request: Request) -> bool:
    try:
        verify(store.scheme, secrets=store.secrets, headers=request.headers, body=request.body, now=NOW, url=store.url)
    except DeliveryRefused:
        return False
    return True


@examples
@given(schemes(), secrets)
def test_a_composed_delivery_is_valid_and_read_the_same_after_it_was_sent(scheme: Scheme, secret: Secret) -> None:
    store, request = composed(scheme, secret)
    url, headers = with_query(URL, request.headers)
    arrived = headers | query_fields(url.partition("?")[2])
    assert arrived == request.headers
    delivery = receive(arrived, request.body, store=store, now=NOW)
    assert (delivery.event.topic, delivery.unreadable) == ("order.created", "")
    assert delivery.event.data["note"] == DATA["note"]
    assert explain(store, arrived, request.body, NOW).valid
    assert not is_valid(replace(store, secrets=(Secret(secret.key + b"x"),)), request)


@examples
@given(schemes(), secrets, st.data())
def test_a_change_of_any_signed_part_is_refused(scheme: Scheme, secret: Secret, data: st.DataObject) -> None:
    store, request = composed(scheme, secret)
    assert is_valid(store, request)
    changes = [changed for part in scheme.signed_parts for changed in with_changed(scheme, part, request)]
    assert not any(is_valid(store, changed) for changed in changes)
    if scheme.signed_parts & {("url", ""), ("path", "")}:
        assert not is_valid(replace(store, url=URL + "/x"), request)
    if scheme.signs_body:
        at = data.draw(st.integers(0, len(request.body) - 1))
        body = bytearray(request.body)
        body[at] ^= data.draw(st.integers(1, 255))
        assert not is_valid(store, Request(request.headers, bytes(body)))


def with_changed(scheme: Scheme, part: Part, request: Request) -> list[Any]:
    """The delivery with another value of a signed part, and without it."""
    kind, name = scheme.timestamp_source if part == ("timestamp", "") else part
    headers, body = request
    if kind == "header":
        without = {key: text for key, text in headers.items() if key != name}
        return [Request({**headers, name: headers[name] + "0"}, body), Request(without, body)]
    if kind == "json":
        document = orjson.loads(body)
        put(document, name, f"{follow(document, name)}0", overwrite=True)
        return [Request(headers, orjson.dumps(document))]
    fields = form_fields(body) or {}
    if kind == "form":
        return [Request(headers, urlencode({**fields, name: fields[name] + "0"}).encode())]
    if kind == "form_sorted":
        return [Request(headers, urlencode({**fields, key: text + "0"}).encode()) for key, text in fields.items()]
    return []
