"""What is signed is what is read: no second field, other kind of body or added item is read under a valid signature."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.contract.errors import DeliveryRefused
from receiver.contract.intake import Delivery, receive
from receiver.contract.signing import sources
from receiver.contract.signing.grammar import Scheme, SchemeError, Sources
from receiver.contract.signing.signatures import verify
from receiver.contract.signing.sources import BodyFields, query_fields
from tests.support.deliveries import KEY, NOW, URL, Sent, send

BOM = b"\xef\xbb\xbf"
FIELDS = Scheme(
    "fields",
    headers=("x-sig",),
    signed="{json:id?}|{json:type?}",
    allow_unsigned_body=True,
    event=Sources(topic=("json:type", "const:a.b"), id=("json:id",)),
)
FORM_FIELDS = replace(
    FIELDS, signed="{form:id?}|{form:type?}", event=Sources(topic=("form:type", "const:a.b"), id=("form:id",))
)


def accepted(sent: Sent, body: bytes, **headers: str) -> Delivery | None:
    """What another body and other headers under the same signature become; None if they are refused."""
    try:
        return receive({**sent.headers, **headers}, body, store=sent.store, now=NOW)
    except DeliveryRefused:
        return None


@pytest.mark.parametrize("body", [BOM + b'{"id":"evil"}', b"id=evil", b"id=evil&type=order.paid"])
def test_an_optional_field_that_was_not_sent_cannot_be_added_in_a_body_of_another_kind(body: bytes) -> None:
    sent = send(FIELDS, b"{}")
    assert accepted(sent, b'{"total":1}'), "the body is not signed"
    assert accepted(sent, body) is None


@pytest.mark.parametrize("body", [b'{"id":"evil"}', BOM + b'{"id":"evil"}', b'[{"id":"evil"}]'])
def test_an_optional_field_of_a_form_cannot_be_added_as_json(body: bytes) -> None:
    sent = send(FORM_FIELDS, b"total=1")
    assert accepted(sent, b"total=2"), "the body is not signed"
    assert accepted(sent, body) is None


names = st.sampled_from(["id", "type", "other", "\\u0069d", "ID", " id"])
values = st.sampled_from(['"a"', '"b"', "1", "1.5", "null", "true", "{}", '["a"]', '""', '"a|b"', '{"id":"c"}'])
json_bodies = st.lists(st.tuples(names, values), max_size=5).map(
    lambda pairs: "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"
)
texts = st.sampled_from(["id", "type", "i%64", "%69d", "other", "a", "b", "", "+id", "id%00", "%ff", "a%7Cb"])
form_bodies = st.lists(st.tuples(texts, texts), min_size=1, max_size=5).map(
    lambda pairs: "&".join(f"{name}={value}" for name, value in pairs)
)
prefixes = st.sampled_from([b"", BOM, b" ", b"\n"])


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([FIELDS, FORM_FIELDS]), json_bodies | form_bodies, prefixes, st.sampled_from(["", " ", "&id=x"]))
def test_the_id_that_is_read_is_the_one_that_was_signed(scheme: Scheme, text: str, before: bytes, after: str) -> None:
    """With fields that occur twice or not at all, escaped names and values, and a body of each kind."""
    body = before + text.encode() + after.encode()
    try:
        content = scheme.signed_content({}, BodyFields(body), "", "")
    except DeliveryRefused:
        return
    delivery = accepted(send(scheme, body), body)
    assert delivery is None or delivery.unreadable or delivery.event.delivery_id in ("", *_ids_in(content))


def _ids_in(content: bytes) -> list[str]:
    """The type is what comes after the last separator, or "a|b", the only one here that has it."""
    own_id = content.rpartition(b"|")[0]
    ids = [own_id, own_id.rpartition(b"|")[0]] if content.endswith(b"a|b") else [own_id]
    return [one.decode("utf-8", "replace") for one in ids]


def test_of_a_repeated_query_field_the_one_that_is_read_is_signed() -> None:
    scheme = Scheme(
        "query", headers=("x-sig",), signed="{query:id}.{body}", event=Sources(topic=("const:a.b",), id=("query:id",))
    )
    sent = send(scheme, b"{}", **{"?id": "1"})
    for query in ("id=2&id=1", "id=1%00", "id=%0a1", "ID=1", "id=2&id=1", "", "id", "%69d=2&id=1", "id[]=1"):
        assert accepted(replace(sent, headers={"x-sig": sent.headers["x-sig"]}), b"{}", **query_fields(query)) is None
    for query in ("id=1&id=2", "id=%31", "i%64=1", "id=%00&id=1"):
        found = accepted(replace(sent, headers={"x-sig": sent.headers["x-sig"]}), b"{}", **query_fields(query))
        assert found
        assert found.event.delivery_id == "1"


def test_neither_the_content_type_nor_a_second_signature_changes_what_is_read() -> None:
    scheme = Scheme("two", headers=("x-one", "x-two"), event=Sources(topic=("json:type",), id=("json:id",)))
    body = b'{"id":"1","type":"a.b"}'
    sent = send(scheme, body)
    own = accepted(sent, body)
    for kind in ("application/x-www-form-urlencoded", "text/plain; charset=utf-16", "multipart/form-data; boundary=a"):
        other = accepted(sent, body, **{"content-type": kind, "x-two": "0" * 64})
        assert own
        assert other
        assert (other.event.id, other.event.topic, other.event.payload) == (
            own.event.id,
            own.event.topic,
            {**own.event.data},
        )
        assert accepted(sent, b"id=1&type=a.b", **{"content-type": kind}) is None


@pytest.mark.parametrize("batch", ["body", "json:events"])
def test_a_batch_needs_a_signed_body(batch: str) -> None:
    """Else an attacker could add an item: one signature covers the fields of one."""
    with pytest.raises(SchemeError, match="add events to the list"):
        replace(FIELDS, signed="{json:0.id}", batch=batch)


@pytest.mark.parametrize("name", ["storehooks-item", "?storehooks-item", "Storehooks-Item"])
def test_a_sender_cannot_make_an_event_look_like_an_item_of_a_batch(name: str) -> None:
    scheme = Scheme("plain", headers=("x-sig",), event=Sources(topic=("json:type",), id=(f"header:{name}",)))
    body = b'{"type":"a.b"}'
    found = accepted(send(scheme, body), body, **{name: "7"})
    assert found
    assert "storehooks-item" not in found.event.headers


def test_a_body_is_parsed_once_before_it_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender is not known yet, and a long one takes milliseconds."""
    parsed: list[bytes] = []
    loads = orjson.loads

    def counted(body: bytes) -> Any:
        parsed.append(body)
        return loads(body)

    scheme = replace(
        FIELDS,
        headers=(),
        signature=tuple(f"json:signatures.{number}" for number in range(8)),
        signed="{json:id}|{json:type}|{timestamp}",
        timestamp="json:sent",
    )
    body = orjson.dumps({"signatures": ["0" * 64] * 8, "id": "1", "type": "a.b", "sent": int(NOW)})
    monkeypatch.setattr(sources, "orjson", SimpleNamespace(loads=counted, JSONDecodeError=orjson.JSONDecodeError))
    with pytest.raises(DeliveryRefused, match="none of the store's secrets"):
        verify(scheme, secrets=(KEY,), headers={}, body=body, now=NOW, url=URL)
    assert parsed == [body]
