"""Records: money is exact, unknown fields are preserved, and a round trip loses nothing."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.contract.record_map import RecordMap
from receiver.contract.records import Customer, Order, Product, Record, RecordError, Subscription
from workers.storeapi import exact_json

documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.decimals(allow_nan=False, allow_infinity=False, places=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def test_a_products_price_is_a_decimal_from_its_string() -> None:
    product = Product({"id": 1, "name": "Mug", "price": "19.90"})
    assert (product.id, product.name, product.price) == (1, "Mug", Decimal("19.90"))
    assert str(product.price) == "19.90"


@pytest.mark.parametrize("price", ["NaN", "1e5", " 1.00", "1,00", "\u0663.00", "", None, True, "1_0.00", ["1.00"]])
def test_an_invalid_amount_is_an_error(price: Any) -> None:
    with pytest.raises(RecordError, match="price of this product is not an amount"):
        _ = Product({"price": price}).price


def test_an_amount_sent_as_a_number_is_exact() -> None:
    product = Product(exact_json.loads(b'{"id": 1, "price": 0.1000000000000000055511151231257827}'))
    assert product.price == Decimal("0.1000000000000000055511151231257827")


def test_an_order_has_lines_and_a_customer() -> None:
    line = {"product_id": 4, "quantity": 2, "price": "3.50"}
    order = Order({"id": 1, "status": "new", "total": "7.00", "lines": [line], "customer": {"id": 9, "name": "Ada"}})
    assert [(one.product_id, one.quantity, one.price) for one in order.lines] == [(4, 2, Decimal("3.50"))]
    assert isinstance(order.customer, Customer)
    assert order.customer.name == "Ada"
    assert Order({"customer": None}).customer is None
    assert Order({"customer": 9}).customer is None
    with pytest.raises(RecordError, match="this order has no field 'customer'; its fields are id"):
        _ = Order({"id": 1}).customer


def test_a_field_with_another_name_is_read_and_written_by_storehooks_name() -> None:
    subscription = Subscription(
        {"id": 3, "address": "https://a.example"}, RecordMap({"subscription": {"url": "address"}})
    )
    assert subscription.url == "https://a.example"
    assert subscription.replace(url="https://b.example").to_json() == {"id": 3, "address": "https://b.example"}


def test_a_missing_field_error_names_the_fields_and_the_line_to_set() -> None:
    hint = "[stores.north.catalogue.webhooks] fields"
    with pytest.raises(RecordError) as caught:
        _ = Subscription({"id": 3, "address": "x"}, None, hint).url
    assert str(caught.value) == (
        "this subscription has no field 'url'; its fields are id, address; if the store uses another name, "
        'set [stores.north.catalogue.webhooks] fields = {url = "..."}'
    )


@given(st.dictionaries(st.text(), documents))
def test_a_round_trip_loses_nothing(document: dict[str, Any]) -> None:
    sent = exact_json.dumps(document)
    record = Record(exact_json.loads(sent))
    assert record.to_json() == document
    again = json.loads(exact_json.dumps(record), parse_float=Decimal)
    assert again == document


def test_replacing_one_field_preserves_unknown_fields() -> None:
    product = Product({"id": 1, "name": "Mug", "price": "1.00", "x-colour": {"deep": [1, None]}})
    changed = product.replace(price=Decimal("2.50"))
    assert changed.to_json() == {"id": 1, "name": "Mug", "price": "2.50", "x-colour": {"deep": [1, None]}}
    assert product.price == Decimal("1.00")


@pytest.mark.parametrize(
    ("value", "enabled"),
    [
        (True, True),
        (False, False),
        ("active", True),
        ("DISABLED", False),
        ("paused", False),
        ("false", False),
        (0, False),
    ],
)
def test_enabled_may_be_a_boolean_a_number_or_a_word(value: object, enabled: bool) -> None:
    assert Subscription({"id": 3, "enabled": value}).enabled is enabled


@pytest.mark.parametrize("value", [None, "archived", 7, ["on"]])
def test_an_unclear_enabled_value_is_an_error(value: object) -> None:
    with pytest.raises(RecordError, match="enabled of this subscription is neither true nor false"):
        _ = Subscription({"id": 3, "enabled": value}).enabled
