"""Compose: intake accepts a composed delivery, for every scheme and any data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.contract.compose import compose
from receiver.contract.errors import DeliveryRefused
from receiver.contract.intake import receive
from receiver.contract.signing.grammar import Scheme, Secret, Sources
from receiver.contract.signing.signatures import PRESETS
from receiver.contract.stores import Store
from tests.support.deliveries import WHOLE_BODY

NOW = 1_700_000_000.0
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
# No field of the data may have the name of a source of the scheme.
resources = st.dictionaries(st.text(max_size=8).map("field_{}".format), values, max_size=5)


def store_of(scheme: Scheme) -> Store:
    return Store("north", scheme, (Secret(b"a key"),), url="https://hooks.example.com/x", domain="north.example")


@given(name=st.sampled_from(list(PRESETS)), data=resources, number=st.integers(1, 2**40))
def test_a_composed_delivery_is_accepted_with_the_same_topic_id_and_data(
    name: str, data: dict[str, Any], number: int
) -> None:
    store = store_of(PRESETS[name])
    request = compose(store, topic="product.updated", delivery_id="d-1", data={**data, "id": number}, now=NOW)
    delivery = receive(request.headers, request.body, store=store, now=NOW)
    assert (delivery.event.topic, delivery.event.resource_id) == ("product.updated", str(number))
    assert delivery.unreadable == ""
    sources = PRESETS[name].event
    assert not sources.id or delivery.event.delivery_id == "d-1"
    given_id = {} if sources.data[0] == "body" and sources.id[:1] == ("json:id",) else {"id": number}
    if not PRESETS[name].reads_form:  # whose values are texts
        assert {**data, **given_id}.items() <= delivery.event.data.items()


@given(name=st.sampled_from(list(WHOLE_BODY)), at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_one_bit_changed_in_a_composed_body_is_refused(name: str, at: int, bit: int) -> None:
    store = store_of(PRESETS[name])
    request = compose(store, topic="order.created", delivery_id="d-1", data={"id": 1, "total": "42.00"}, now=NOW)
    changed = bytearray(request.body)
    changed[at % len(changed)] ^= 1 << bit
    with pytest.raises(DeliveryRefused):
        receive(request.headers, bytes(changed), store=store, now=NOW)


def test_every_signed_header_and_field_is_filled() -> None:
    scheme = Scheme(
        "own",
        headers=("X-Signature",),
        signed="{header:X-Nonce}.{json:meta.key}.{timestamp}.{body}",
        timestamp="json:sent.at",
        timestamp_unit="ms",
        event=Sources(topic=("json:meta.kind",), id=("json:meta.key",)),
    )
    store = store_of(scheme)
    request = compose(store, topic="order.created", delivery_id="d-1", data={"id": 1}, now=NOW)
    assert request.headers["x-nonce"] == "d-1"
    assert receive(request.headers, request.body, store=store, now=NOW).event.topic == "order.created"


@pytest.mark.parametrize("name", [name for name, scheme in PRESETS.items() if scheme.read_from["occurred"]])
def test_the_time_is_written_where_it_is_read(name: str) -> None:
    store = store_of(PRESETS[name])
    request = compose(store, topic="order.created", delivery_id="d-1", data={"id": 1}, now=NOW, occurred=NOW - 60)
    occurred = receive(request.headers, request.body, store=store, now=NOW).event.occurred_at
    assert occurred is not None
    assert NOW - occurred.timestamp() == (0 if PRESETS[name].timestamp in PRESETS[name].event.occurred else 60)


def test_the_given_data_is_not_changed() -> None:
    data = {"id": 1}
    compose(store_of(PRESETS["slack"]), topic="order.created", delivery_id="d-1", data=data, now=NOW)
    assert data == {"id": 1}
