"""Intake: the fields of an event, duplicates, unreadable content, and the store that a delivery names."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import Event, event_id
from receiver.contract.intake import MAX_DEPTH, Delivery, receive
from receiver.contract.signing.grammar import Scheme, Sources
from receiver.contract.signing.signatures import PRESETS
from receiver.contract.stores import Store, StoreIndex
from tests.support.deliveries import BODY, KEY, NOW, URL, WHOLE_BODY, send

BODY_ONLY = PRESETS["hex-body"]


def accept(scheme: Scheme, body: bytes = BODY, *, now: float = NOW, domain: str = "", **headers: str) -> Delivery:
    sent = send(scheme, body, **headers)
    store = Store("north", scheme, (KEY,), url=URL, domain=domain)
    return receive(sent.headers, sent.body, store=store, now=now)


def test_an_event_has_every_part_that_its_scheme_defines() -> None:
    body = b'{"type":"order.created","timestamp":"2023-11-14T22:13:19Z","data":{"id":7,"total":"42.00"}}'
    delivery = accept(PRESETS["standard-webhooks"], body, webhook_id="msg_9")
    event = delivery.event
    assert (event.store, event.topic, event.delivery_id, event.resource_id) == (
        "north",
        "order.created",
        "msg_9",
        "7",
    )
    assert event.occurred_at == datetime(2023, 11, 14, 22, 13, 19, tzinfo=UTC)
    assert event.data == {"id": 7, "total": "42.00"}
    assert (delivery.theirs, delivery.unreadable, delivery.content_hash) == ("order.created", "", "")
    assert delivery.signed_with == KEY.fingerprint
    assert event.source == "webhook"
    sent = send(PRESETS["standard-webhooks"], body)
    probe = receive(sent.headers, sent.body, store=sent.store, now=NOW, source="send")
    assert probe.event.source == "send"


REAL_DELIVERIES = {
    "shopify": (b'{"id":820982911946154508,"total_price":"9.00"}', "order.created", "820982911946154508"),
    "woocommerce": (b'{"id":727,"status":"processing"}', "order.created", "727"),
    "bigcommerce": (
        b'{"scope":"store/order/created","store_id":"1025646","data":{"type":"order","id":250},'
        b'"hash":"dd70c0976e06b67aaf671e73f49dcb79230ebf9d","created_at":1561479335,"producer":"stores/abcde"}',
        "order.created",
        "250",
    ),
    "nuvemshop": (b'{"store_id":123,"event":"order/created","id":1948209}', "order.created", "1948209"),
    "shopware": (
        b'{"data":{"payload":{"order":{"id":"7b04","orderNumber":"10060"}},"event":"checkout.order.placed"},'
        b'"source":{"url":"http://shop.example","shopId":"dgrH7nLU6tlE","eventId":"ev1"},"timestamp":1700000000}',
        "order.created",
        "7b04",
    ),
    "salla": (b'{"event":"order.created","merchant":1234,"data":{"id":55,"total":1}}', "order.created", "55"),
    "square": (
        b'{"merchant_id":"M1","type":"order.created","event_id":"e1","created_at":"2023-11-14T22:13:19Z",'
        b'"data":{"type":"order_created","id":"o1","object":{"order_created":{"order_id":"o1","version":1}}}}',
        "order.created",
        "o1",
    ),
    "stripe": (
        b'{"id":"evt_1","type":"checkout.session.completed","created":1700000000,'
        b'"data":{"object":{"id":"cs_1","amount_total":4200}}}',
        "order.created",
        "cs_1",
    ),
    "spree": (
        b'{"id":"e1","name":"order.canceled","data":{"id":"or_1","total":"1"}}',
        "order.cancelled",
        "or_1",
    ),
    "paddle": (
        b'{"event_id":"evt_1","event_type":"transaction.paid","occurred_at":"2023-11-14T22:13:19.5Z",'
        b'"data":{"id":"txn_1","status":"paid"}}',
        "order.paid",
        "txn_1",
    ),
}


@pytest.mark.parametrize("name", REAL_DELIVERIES)
def test_a_real_delivery_of_each_preset_is_read(name: str) -> None:
    body, topic, resource = REAL_DELIVERIES[name]
    event = accept(PRESETS[name], body, x_shopify_topic="orders/create", x_wc_webhook_topic="order.created").event
    assert (event.topic, event.resource_id) == (topic, resource)
    assert isinstance(event.data, dict)
    assert event.data


# Duplicates


def test_a_redelivery_has_the_same_event_id() -> None:
    for name in ("standard-webhooks", "shopify"):
        assert accept(PRESETS[name], x_shopify_webhook_id="1").event.id == (
            accept(PRESETS[name], x_shopify_webhook_id="1").event.id
        )


def test_the_same_body_under_a_new_id_is_another_event() -> None:
    first = accept(PRESETS["shopify"], x_shopify_webhook_id="1")
    assert first.event.id != accept(PRESETS["shopify"], x_shopify_webhook_id="2").event.id


def test_an_unsigned_id_with_another_body_is_another_event() -> None:
    first = accept(PRESETS["shopify"], b'{"id":1}', x_shopify_webhook_id="1")
    assert first.event.id != accept(PRESETS["shopify"], b'{"id":2}', x_shopify_webhook_id="1").event.id


def test_a_signed_id_alone_identifies_the_event() -> None:
    first = accept(PRESETS["standard-webhooks"], b'{"type":"a.b","data":{"n":1}}', webhook_id="m")
    second = accept(PRESETS["standard-webhooks"], b'{"type":"a.b"}', webhook_id="m")
    assert (first.event.id, first.first_id) == (second.event.id, "")
    assert first.others_count
    assert second.others_count


def test_one_id_at_two_stores_is_two_events() -> None:
    sent = send(PRESETS["shopify"], x_shopify_webhook_id="1")
    ids = {
        receive(sent.headers, sent.body, store=replace(sent.store, name=name), now=NOW).event.id
        for name in ("north", "south")
    }
    assert len(ids) == 2


def test_without_an_id_equal_content_has_equal_hashes() -> None:
    first, second = accept(BODY_ONLY, x_topic="a/b"), accept(BODY_ONLY, x_topic="a/b")
    assert first.event.id != second.event.id
    assert first.content_hash == second.content_hash == sha256(b"a/b\0" + BODY).hexdigest()[:32]
    assert accept(BODY_ONLY, x_topic="a/c").content_hash != first.content_hash
    assert accept(BODY_ONLY, BODY + b" ", x_topic="a/b").content_hash != first.content_hash


@pytest.mark.parametrize(
    "body",
    [
        b'{"store_id":123,"event":"product/created","id":1948209}',
        b'{"event":"order/paid","id":"x","created_at":"2026-01-01T00:00:00Z"}',
        b'{"event":"order/paid","orderId":3,"type":"order"}',
        b'{"event":"order/paid"}',
    ],
)
def test_equal_thin_bodies_are_never_duplicates(body: bytes) -> None:
    first, second = accept(PRESETS["nuvemshop"], body), accept(PRESETS["nuvemshop"], body)
    assert first.event.id != second.event.id
    assert first.content_hash == second.content_hash == ""


@pytest.mark.parametrize("more", [b'"total":"1"', b'"paid":true', b'"lines":[]', b'"customer":{"id":1}'])
def test_a_body_with_any_content_is_not_thin(more: bytes) -> None:
    assert accept(PRESETS["nuvemshop"], b'{"event":"order/paid","id":1,' + more + b"}").content_hash


@pytest.mark.parametrize(("body", "is_thin"), [(b"[]", True), (b"[1]", False)])
def test_a_list_is_thin_if_it_is_empty(body: bytes, is_thin: bool) -> None:
    assert (accept(BODY_ONLY, body, x_topic="a/b").content_hash == "") == is_thin


def test_ids_beyond_64_bits_keep_all_their_digits() -> None:
    scheme = Scheme("acme", dedupe="id", event=Sources(id=("json:id",)))
    ids = {accept(scheme, b'{"type":"a.b","id":12345678901234567890%d}' % n).event.id for n in (1, 2)}
    assert len(ids) == 2
    assert accept(scheme, b'{"type":"a.b","id":123456789012345678901}').event.delivery_id == "123456789012345678901"


@pytest.mark.parametrize("strange", ["a:b", "a\nb", "x" * 10_000, "\u0000", "ü", "<script>"])
def test_an_unusual_delivery_id_is_accepted(strange: str) -> None:
    scheme = Scheme("acme", dedupe="id", event=Sources(id=("json:id",)))
    body = orjson.dumps({"type": "a.b", "id": strange})
    delivery = accept(scheme, body)
    assert len(delivery.event.delivery_id) <= 200
    assert delivery.event.id == accept(scheme, body).event.id
    longer = orjson.dumps({"type": "a.b", "id": strange + "y"})
    assert delivery.event.id != accept(scheme, longer).event.id


def test_an_event_id_is_130_bits_of_a_hash_as_letters() -> None:
    five_bits = [byte % 32 for byte in sha256(b"north\0key").digest()[:26]]
    assert event_id("north", b"key") == "".join("abcdefghijklmnopqrstuvwxyz234567"[bits] for bits in five_bits)


# Unreadable content

UNREADABLE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "scalar": (b"42", "bare value"),
    "text": (b'"order"', "bare value"),
    "nested 100,000 deep": (b"[" * 100_000, "objects and arrays"),
    "nested 100,000 deep and closed": (b"[" * 100_000 + b"]" * 100_000, "objects and arrays"),
    "nested 1,000 deep": (b'{"a":' * 1000 + b"1" + b"}" * 1000, "nested"),
    "4,301-digit integer": (b'{"type":"a.b","n":' + b"9" * 4301 + b"}", "not JSON"),
    "1e999": (b'{"type":"a.b","n":1e999}', "not JSON"),
    "NaN": (b'{"type":"a.b","n":NaN}', "not JSON"),
    "raw NUL": (b'{"type":"a.b","n":"\x00"}', "not JSON"),
    "UTF-16": ('{"type":"a.b"}'.encode("utf-16"), "not JSON"),
    "UTF-32": ('{"type":"a.b"}'.encode("utf-32"), "not JSON"),
    "invalid UTF-8": (b'{"type":"a.b","n":"\xff"}', "not JSON"),
    "trailing garbage": (b'{"type":"a.b"}x', "not JSON"),
    "form without a topic": (b"payload=%7B%7D", "no topic at json:type"),
    "not quite a form": (b"payload={}", "not JSON"),
    "gzip": (b"\x1f\x8b\x08\x00\x00", "not JSON"),
    "no topic": (b"{}", "no topic at json:type"),
    "topic is an object": (b'{"type":{}}', "no topic"),
    "topic is a flag": (b'{"type":true}', "no topic"),
    "topic of separators": (b'{"type":"///"}', "no topic"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_genuine_delivery_that_is_unreadable_is_accepted_with_the_reason(name: str) -> None:
    body, reason = UNREADABLE[name]
    delivery = accept(PRESETS["standard-webhooks"], body, webhook_id="msg_1")
    assert reason in delivery.unreadable
    assert delivery.event.topic == "unreadable"
    assert delivery.event.body == body
    assert delivery.event.id == accept(PRESETS["standard-webhooks"], body, webhook_id="msg_1").event.id


READABLE: dict[str, bytes] = {
    "BOM": b'\xef\xbb\xbf{"type":"a.b"}',
    "duplicate keys": b'{"type":"x","type":"a.b"}',
    "lone surrogate": b'{"type":"a.b","n":"\\ud800"}',
    "escaped NUL": b'{"type":"a.b","n":"\\u0000"}',
    "300,000 keys": orjson.dumps({"type": "a.b", **{str(number): number for number in range(300_000)}}),
    "long number": b'{"type":"a.b","n":' + b"9" * 300 + b"}",
    "list": b'{"type":"a.b","data":[1,2]}',
    "nested to the limit": b'{"type":"a.b","n":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}",
}


@pytest.mark.parametrize("name", READABLE)
def test_a_delivery_not_marked_unreadable_can_be_read(name: str) -> None:
    delivery = accept(PRESETS["standard-webhooks"], READABLE[name])
    assert delivery.unreadable == ""
    assert delivery.event.topic == "a.b"
    assert delivery.event.payload == json.loads(READABLE[name].replace(b"ud800", b"ufffd"))
    assert delivery.event.body == READABLE[name]
    assert delivery.event.data is not None


def test_credentials_in_headers_are_not_stored() -> None:
    stored = accept(BODY_ONLY, authorization="Bearer x", cookie="y", x_topic="a.b").event.headers
    assert "x-topic" in stored
    assert not {"authorization", "cookie"} & set(stored)


def test_at_most_64_headers_are_stored() -> None:
    assert len(accept(BODY_ONLY, **{f"x_{number}": "y" for number in range(100)}).event.headers) == 64


def test_a_delivery_that_is_made_without_its_bytes_stands_alone_under_its_id() -> None:
    """One that is edited, brought in or read from the spool: another body under its id is no other event of its own."""
    read = accept(BODY_ONLY)
    made = Delivery(read.event, read.theirs)
    assert (made.first_id, made.others_count, made.rest) == ("", False, ())
    assert (made.content_hash, made.unreadable, made.signed_with) == ("", "", "")


def test_a_delivery_and_its_event_have_every_field_and_no_other() -> None:
    """They are built without their constructors, which take longer than reading."""
    delivery = accept(BODY_ONLY)
    assert set(vars(delivery)) == {one.name for one in fields(Delivery)}
    assert set(vars(delivery.event)) == {one.name for one in fields(Event)}


@pytest.mark.parametrize(
    ("written", "year"),
    [
        ("2023-11-14T22:13:20Z", 2023),
        ("2023-11-14 22:13:20", 2023),
        (1700000000, 2023),
        (1700000000.25, 2023),
        (1700000000000, 2023),
        (10**11, 5138),
        (10**11 + 1, 1973),
        ("1700000000", 2023),
        ("yesterday", None),
        ("0001-01-01T00:00:00+14:00", None),
        (10**18, None),
        (-(10**18), None),
        (True, None),
        ({}, None),
    ],
)
def test_a_time_is_read_in_the_usual_forms_and_is_otherwise_none(written: Any, year: int | None) -> None:
    occurred = accept(
        PRESETS["standard-webhooks"], orjson.dumps({"type": "a.b", "timestamp": written})
    ).event.occurred_at
    assert (occurred.year if occurred else None) == year


@pytest.mark.parametrize(
    ("data", "occurred"),
    [
        ({"id": 7, "updated_at": "2026-11-16T07:00:00-05:00"}, datetime(2026, 11, 16, 12, tzinfo=UTC)),
        ({"id": 7}, None),  # a deletion has no other field
    ],
)
def test_a_time_that_who_has_captured_a_delivery_can_change_is_not_read(
    data: dict[str, Any], occurred: datetime | None
) -> None:
    event = accept(PRESETS["shopify"], orjson.dumps(data), x_shopify_triggered_at="2099-01-01T00:00:00Z").event
    assert event.occurred_at == occurred
    assert event.headers["x-shopify-triggered-at"] == "2099-01-01T00:00:00Z"


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)
envelopes = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("type", "event", "id", "data", "timestamp", "source", "scope"), anything)
)
bodies = st.binary(max_size=200) | (anything | envelopes).map(lambda value: json.dumps(value).encode())


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(list(WHOLE_BODY.values())),
    bodies,
    st.dictionaries(st.text(max_size=9), st.text(max_size=20)),
)
def test_no_signed_content_makes_the_intake_fail(scheme: Scheme, body: bytes, headers: dict[str, str]) -> None:
    scheme = replace(scheme, timestamp="", signed="{body}", dedupe="id+body")
    sent = send(scheme, body)
    delivery = receive({**headers, **sent.headers}, body, store=sent.store, now=NOW)
    if not delivery.unreadable:
        assert delivery.event.payload == json.loads(body)
        assert delivery.event.data is not None
    orjson.dumps([delivery.theirs, delivery.event.delivery_id, delivery.event.resource_id, delivery.event.topic])


# The store that a delivery names


def test_a_delivery_that_names_another_store_is_refused() -> None:
    body = b'{"store_id":123,"event":"order/paid","id":1}'
    assert accept(PRESETS["nuvemshop"], body, domain="123")
    with pytest.raises(DeliveryRefused) as caught:
        accept(PRESETS["nuvemshop"], body, domain="124")
    assert caught.value.reason == "wrong-store"


@pytest.mark.parametrize("domain", ["shop.example", "SHOP.example", "https://shop.example/", ""])
def test_a_domain_is_compared_without_scheme_case_and_slash(domain: str) -> None:
    accept(PRESETS["woocommerce"], domain=domain, x_wc_webhook_source="https://Shop.example/")


def test_one_source_that_names_the_store_is_enough() -> None:
    body = REAL_DELIVERIES["shopware"][0]
    accept(PRESETS["shopware"], body, domain="shop.example")
    accept(PRESETS["shopware"], body, domain="dgrH7nLU6tlE")


STORES = {
    name: Store(name, PRESETS[scheme], (KEY,), domain=domain)
    for name, scheme, domain in [
        ("north", "shopify", "north.myshopify.com"),
        ("south", "nuvemshop", "123"),
        ("west", "shopware", "https://west.example"),
        ("east", "shopify", ""),
    ]
}
LISTED = Scheme("listed", event=Sources(store=("json:shops.1", "json:0.shop")))
STORES["listed"] = Store("listed", LISTED, (KEY,), domain="listed.example")


def test_a_body_with_too_many_containers_is_unreadable_unless_it_is_long() -> None:
    dense, sparse = b"[" + b"[]," * 60_000 + b"0]", b"[" + b'{"sku":"abcdefghijkl","quantity":1},' * 60_000 + b"0]"
    for body, problem in ((dense, "the body has more than 50,000 objects and arrays"), (sparse, "no topic")):
        assert accept(PRESETS["standard-webhooks"], body).unreadable.startswith(problem)


@pytest.mark.parametrize(
    ("headers", "body", "name"),
    [
        ({"x-shopify-shop-domain": "north.myshopify.com"}, b"", "north"),
        ({"x-shopify-shop-domain": "NORTH.myshopify.com "}, b"", "north"),
        ({"x-shopify-shop-domain": "other.myshopify.com"}, b"", None),
        ({"x-shopify-shop-domain": ""}, b"", None),
        ({}, b'{"store_id":123}', "south"),
        ({}, b'{"store_id":"123"}', "south"),
        ({}, b'{"store_id":123.0}', None),
        ({}, b'{"store_id":true}', None),
        ({}, b'{"source":{"url":"https://west.example/"}}', "west"),
        ({}, b'{"shops": [ "other.example", "https://listed.example" ]}', "listed"),
        ({}, b'[{"shop": "listed.example"}]', "listed"),
        ({}, b'{"shops": ["' + b"x" * 2_000 + b'", "listed.example"]}', None),
        ({}, b"[" * 100_000, None),
        ({}, b"", None),
        ({}, b'{"store_id":"' + b"1" * 100_000 + b'"}', None),
    ],
)
def test_the_index_finds_the_store_that_a_delivery_names(
    headers: dict[str, str], body: bytes, name: str | None
) -> None:
    found = StoreIndex(STORES).find(headers, body)
    assert (found.name if found else None) == name


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(["x-shopify-shop-domain", "x"]), st.text(max_size=20)), bodies)
def test_no_unverified_content_makes_the_search_for_a_store_fail(headers: dict[str, str], body: bytes) -> None:
    StoreIndex(STORES).find(headers, body)
