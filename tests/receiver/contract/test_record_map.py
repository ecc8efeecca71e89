"""Record maps: `event.record` has the same fields for every store, whatever its payload calls them."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver import config
from receiver.contract.compose import compose, in_store_shape
from receiver.contract.diagnosis.detect import to_toml
from receiver.contract.errors import ConfigError
from receiver.contract.event import Event
from receiver.contract.intake import receive
from receiver.contract.record_map import FIELDS, RecordMap, set_at
from receiver.contract.records import Customer, Order, OrderLine, Product, RecordError, make, record_of
from receiver.contract.signing.grammar import Secret
from receiver.contract.signing.presets import PRESETS
from receiver.contract.stores import Store
from receiver.spool.spooled_events import pack_delivery, unpack_delivery
from tests.support.standard_fields import standard_fields
from workers.storeapi.samples import sample

NOW = 1_700_000_000.0
MAPPED = [name for name, scheme in PRESETS.items() if scheme.record]
SHOPS = ("shopify", "woocommerce", "shopware", "salla", "square", "stripe", "spree", "paddle")
SHOPS += ("lemonsqueezy", "commercelayer", "webflow", "recharge")

# Excerpts of payloads as the vendors document them.
DOCUMENTED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "shopify": (
        "orders/paid",
        {
            "id": 820982911946154508,
            "name": "#9999",
            "currency": "USD",
            "financial_status": "paid",
            "total_price": "403.00",
            "customer": {"id": 115310627314723954, "email": "john@example.com", "first_name": "John", "last_name": "S"},
            "line_items": [{"id": 487817672276298554, "product_id": 788032119674292922, "quantity": 1, "price": "1.9"}],
        },
        {
            "id": 820982911946154508,
            "status": "paid",
            "total": "403.00",
            "currency": "USD",
            "lines": [
                {
                    "id": 487817672276298554,
                    "product_id": 788032119674292922,
                    "quantity": 1,
                    "price": "1.9",
                    "currency": "USD",
                }
            ],
            "customer": {"id": 115310627314723954, "name": "John S", "email": "john@example.com"},
        },
    ),
    "woocommerce": (
        "order.updated",
        {
            "id": 727,
            "status": "processing",
            "currency": "USD",
            "total": "29.35",
            "customer_id": 0,
            "billing": {"first_name": "John", "last_name": "Doe", "email": "john.doe@example.com"},
            "line_items": [{"id": 315, "name": "Woo Single", "product_id": 93, "quantity": 2, "price": 3.1}],
        },
        {
            "id": 727,
            "status": "processing",
            "total": "29.35",
            "currency": "USD",
            "lines": [{"id": 315, "product_id": 93, "quantity": 2, "price": "3.1", "currency": "USD"}],
            "customer": {"id": 0, "name": "John Doe", "email": "john.doe@example.com"},
        },
    ),
    "shopware": (
        "checkout.order.placed",
        {
            "id": "0190f7",
            "amountTotal": 119.95,
            "currency": {"isoCode": "EUR"},
            "stateMachineState": {"technicalName": "open"},
            "orderCustomer": {"customerId": "c1", "firstName": "Max", "lastName": "M", "email": "max@example.com"},
            "lineItems": [{"id": "l1", "productId": "p1", "quantity": 3, "unitPrice": 39.98, "price": {"quantity": 3}}],
        },
        {
            "id": "0190f7",
            "status": "open",
            "total": "119.95",
            "currency": "EUR",
            "lines": [{"id": "l1", "product_id": "p1", "quantity": 3, "price": "39.98", "currency": "EUR"}],
            "customer": {"id": "c1", "name": "Max M", "email": "max@example.com"},
        },
    ),
    "salla": (
        "order.created",
        {
            "id": 2116149737,
            "status": {"id": 566146469, "slug": "under_review"},
            "currency": "SAR",
            "amounts": {"total": {"amount": 196, "currency": "SAR"}},
            "customer": {"id": 225167971, "first_name": "Ahmed", "last_name": "Ali", "email": "a@example.com"},
            "items": [
                {
                    "id": 365435777,
                    "product": {"id": 7},
                    "quantity": 1,
                    "currency": "SAR",
                    "amounts": {"price_without_tax": {"amount": 150.5, "currency": "SAR"}},
                }
            ],
        },
        {
            "id": 2116149737,
            "status": "under_review",
            "total": "196",
            "currency": "SAR",
            "lines": [{"id": 365435777, "product_id": 7, "quantity": 1, "price": "150.5", "currency": "SAR"}],
            "customer": {"id": 225167971, "name": "Ahmed Ali", "email": "a@example.com"},
        },
    ),
    "square": (
        "order.created",
        {"order_id": "eA3vssLHKJrv9H0IdJCM3gNqfdcZY", "state": "OPEN", "version": 1, "location_id": "FPYCBCHYMXFK1"},
        {"id": "eA3vssLHKJrv9H0IdJCM3gNqfdcZY", "status": "OPEN"},
    ),
    "stripe": (
        "checkout.session.completed",
        {
            "id": "cs_test_a1",
            "object": "checkout.session",
            "amount_total": 2198,
            "currency": "usd",
            "customer": "cus_1",
            "customer_details": {"email": "jenny@example.com", "name": None},
            "payment_status": "paid",
            "status": "complete",
        },
        {
            "id": "cs_test_a1",
            "status": "paid",
            "total": "21.98",
            "currency": "USD",
            "customer": {"id": "cus_1", "email": "jenny@example.com"},
        },
    ),
    "spree": (
        "order.paid",
        {
            "id": "or_m3Rp9wXz",
            "email": "c@example.com",
            "currency": "USD",
            "payment_status": "paid",
            "total": "99.99",
            "billing_address": {"full_name": "John Doe"},
            "items": [{"id": "li_1", "variant_id": "variant_1", "quantity": 3, "currency": "USD", "price": "29.99"}],
        },
        {
            "id": "or_m3Rp9wXz",
            "status": "paid",
            "total": "99.99",
            "currency": "USD",
            "lines": [{"id": "li_1", "quantity": 3, "price": "29.99", "currency": "USD"}],
            "customer": {"name": "John Doe", "email": "c@example.com"},
        },
    ),
    "paddle": (
        "transaction.completed",
        {
            "id": "txn_01",
            "status": "completed",
            "customer_id": "ctm_01",
            "currency_code": "JPY",
            "items": [
                {
                    "price": {"product_id": "pro_01", "unit_price": {"amount": "1500", "currency_code": "USD"}},
                    "quantity": 10,
                }
            ],
            "details": {"totals": {"total": "300500", "grand_total": "300000", "currency_code": "JPY"}},
        },
        {
            "id": "txn_01",
            "status": "completed",
            "total": "300500",
            "currency": "JPY",
            "lines": [{"product_id": "pro_01", "quantity": 10, "price": "15.00", "currency": "USD"}],
            "customer": {"id": "ctm_01"},
        },
    ),
    "lemonsqueezy": (
        "order_created",
        {
            "type": "orders",
            "id": "1",
            "attributes": {
                "customer_id": 9,
                "user_name": "Luke S",
                "user_email": "luke@example.com",
                "currency": "USD",
                "total": 1199,
                "status": "paid",
            },
        },
        {
            "id": "1",
            "status": "paid",
            "total": "11.99",
            "currency": "USD",
            "customer": {"id": 9, "name": "Luke S", "email": "luke@example.com"},
        },
    ),
    "commercelayer": (
        "orders.place",
        {
            "id": "PzdJhdLdYV",
            "type": "orders",
            "attributes": {
                "status": "placed",
                "currency_code": "EUR",
                "total_amount_cents": 5880,
                "customer_email": "john@example.com",
            },
        },
        {
            "id": "PzdJhdLdYV",
            "status": "placed",
            "total": "58.80",
            "currency": "EUR",
            "customer": {"email": "john@example.com"},
        },
    ),
    "webflow": (
        "ecomm_new_order",
        {
            "orderId": "dfa-3f1",
            "status": "unfulfilled",
            "customerPaid": {"unit": "USD", "value": "5892", "string": "$58.92"},
            "customerInfo": {"fullName": "Customerio Namen", "email": "renning+customer@example.com"},
            "purchasedItems": [
                {"count": 1, "productId": "5eb9", "variantPrice": {"unit": "USD", "value": "5500"}},
            ],
        },
        {
            "id": "dfa-3f1",
            "status": "unfulfilled",
            "total": "58.92",
            "currency": "USD",
            "lines": [{"product_id": "5eb9", "quantity": 1, "price": "55.00", "currency": "USD"}],
            "customer": {"name": "Customerio Namen", "email": "renning+customer@example.com"},
        },
    ),
    "recharge": (
        "order/created",
        {
            "id": 390000000,
            "status": "success",
            "currency": "USD",
            "total_price": "24.00",
            "customer": {"id": 72971931, "email": "mike@example.com"},
            "line_items": [{"external_product_id": {"ecommerce": "6642"}, "quantity": 2, "unit_price": "12.00"}],
        },
        {
            "id": 390000000,
            "status": "success",
            "total": "24.00",
            "currency": "USD",
            "lines": [{"product_id": "6642", "quantity": 2, "price": "12.00", "currency": "USD"}],
            "customer": {"id": 72971931, "email": "mike@example.com"},
        },
    ),
}


def store_of(preset: str) -> Store:
    return Store("north", PRESETS[preset], (Secret(b"a key"),), url="https://hooks.example.com/x", domain="n.example")


def delivered(preset: str, topic: str, data: Any) -> Any:
    store = store_of(preset)
    request = compose(store, topic=topic, delivery_id="d-1", data=data, now=NOW)
    return receive(request.headers, request.body, store=store, now=NOW)


def test_every_shop_with_full_payloads_has_a_map_and_every_map_a_documented_payload() -> None:
    assert set(SHOPS) <= set(MAPPED)
    assert set(MAPPED) == set(DOCUMENTED)
    assert not any(PRESETS[name].record for name in ("github", "slack", "bigcommerce", "nuvemshop"))


@pytest.mark.parametrize("preset", DOCUMENTED)
def test_the_documented_payload_of_a_platform_is_read_by_standard_names(preset: str) -> None:
    theirs, data, expected = DOCUMENTED[preset]
    event = delivered(preset, theirs, data).event
    assert event.topic.startswith("order.")
    assert isinstance(event.record, Order)
    assert standard_fields(event.record) == expected
    assert data.items() <= event.data.items()  # the store's own fields are untouched


@pytest.mark.parametrize("topic", ["order.created", "product.updated", "customer.created"])
@pytest.mark.parametrize("preset", MAPPED)
def test_a_sample_in_the_shape_of_a_platform_is_read_as_the_same_record(preset: str, topic: str) -> None:
    scheme, record = PRESETS[preset], sample(topic)
    kind = topic.partition(".")[0]
    data = in_store_shape(scheme, topic, record)
    event = delivered(preset, topic, data).event
    expected = standard_fields(make(kind, record))
    found = standard_fields(event.record)
    assert found == _sent(scheme.record, kind, expected)
    assert event.resource_id == str(record["id"])
    assert set(found) >= {
        name for name in ("id", "total", "lines") if scheme.record.paths(kind, name) and name in record
    }


def _sent(record_map: RecordMap, kind: str, expected: dict[str, Any]) -> dict[str, Any]:
    """The fields that the platform's payload has."""
    found = {name: value for name, value in expected.items() if record_map.paths(kind, name)}
    if "lines" in found:
        found["lines"] = [_sent(record_map, "line", line) for line in found["lines"]]
    if "customer" in found and "buyer" in record_map.fields:
        found["customer"] = {name: found["customer"][name] for name, path in record_map.fields["buyer"].items() if path}
    elif "customer" in found:
        found["customer"] = _sent(record_map, "customer", found["customer"])
    return found


def test_a_store_without_a_map_sends_a_sample_unchanged() -> None:
    record = sample("order.created")
    assert in_store_shape(PRESETS["github"], "order.created", record) == record


def test_a_name_of_one_word_or_of_three_survives_its_two_fields() -> None:
    names = PRESETS["shopify"].record
    for name in ("Ada", "Ada Lovelace", "Ada King Lovelace"):
        shaped = names.shape("customer", {"id": 1, "name": name})
        assert set(shaped) == {"id", "first_name", "last_name"}
        assert make("customer", shaped, names).name == name  # type: ignore[attr-defined]


def test_a_name_is_joined_from_the_fields_that_are_there() -> None:
    names = PRESETS["shopify"].record
    for first, last in (("Ada", None), ("", "Ada"), (None, "Ada")):
        assert Customer({"first_name": first, "last_name": last}, names).name == "Ada"
    for only in ("first_name", "last_name"):
        assert Customer({only: "Ada"}, names).name == "Ada"
    with pytest.raises(RecordError, match="this customer has no field 'first_name last_name'"):
        _ = Customer({"id": 1}, names).name


def test_a_replaced_field_leaves_the_rest_of_its_list() -> None:
    product = Product({"variants": [{"price": "1.00", "sku": "a"}, {"price": "2.00"}]}, PRESETS["shopify"].record)
    changed = product.replace(price=Decimal("3.00"))
    assert changed.to_json() == {"variants": [{"price": "3.00", "sku": "a"}, {"price": "2.00"}]}


# Where the data is written


@pytest.mark.parametrize(
    ("preset", "topic", "path"),
    [
        ("square", "order.created", "data.object.order_created"),
        ("square", "order.updated", "data.object.order_updated"),
        ("square", "customer.updated", "data.object.customer"),
        ("shopware", "order.created", "data.payload.order"),
        ("shopware", "customer.created", "data.payload.customer"),
        ("shopware", "product.updated", "data.payload.0"),
        ("stripe", "order.created", "data.object"),
        ("shopify", "order.created", ""),
    ],
)
def test_the_data_is_where_the_platform_has_it(preset: str, topic: str, path: str) -> None:
    event = delivered(preset, topic, in_store_shape(PRESETS[preset], topic, sample(topic))).event
    assert (event.data_path, event.topic, event.resource_id) == (path, topic, "1001")


# Money in minor units


@pytest.mark.parametrize(
    ("currency", "minor", "total"),
    [
        ("usd", 2198, "21.98"),
        ("JPY", 2198, "2198"),
        ("kwd", 2198, "2.198"),
        ("ISK", 2198, "21.98"),
        ("MGA", 5, "5"),
        ("CLF", 12345, "1.2345"),
    ],
)
def test_minor_units_follow_the_currency(currency: str, minor: int, total: str) -> None:
    names = PRESETS["stripe"].record
    order = Order({"amount_total": minor, "currency": currency}, names)
    assert (str(order.total), order.currency) == (total, currency.upper())
    shaped = names.shape("order", {"total": total, "currency": currency})
    assert shaped == {"amount_total": minor, "currency": currency}


def test_minor_units_without_a_currency_or_with_a_fraction_are_an_error() -> None:
    names = PRESETS["stripe"].record
    with pytest.raises(RecordError, match=r"amount_total of this order is in minor units, and it has no currency"):
        _ = Order({"amount_total": 100}, names).total
    with pytest.raises(RecordError, match="amount_total of this order is not an amount of money"):
        _ = Order({"amount_total": Decimal("10.5"), "currency": "eur"}, names).total


def test_minor_units_are_exact_whatever_the_precision_of_a_handler() -> None:
    order = Order({"amount_total": 123456789012345678901234567890, "currency": "eur"}, PRESETS["stripe"].record)
    with localcontext(prec=3):
        assert str(order.total) == "1234567890123456789012345678.90"


def test_lines_that_are_null_are_none() -> None:
    assert Order({"lines": None}).lines == ()


@pytest.mark.parametrize("lines", [{"data": []}, "x", [1]])
def test_lines_that_are_not_a_list_of_objects_are_an_error(lines: Any) -> None:
    with pytest.raises(RecordError, match="lines of this order is not a list of objects"):
        _ = Order({"lines": lines}).lines


def test_a_line_has_the_currency_of_its_order_unless_it_has_its_own() -> None:
    names = RecordMap({"line": {"price": "cents"}}, money="minor")
    raw = {"currency": "JPY", "lines": [{"cents": 500}, {"cents": 500, "currency": "EUR"}]}
    assert [(line.price, line.currency) for line in Order(raw, names).lines] == [
        (Decimal(500), "JPY"),
        (Decimal("5.00"), "EUR"),
    ]


def test_a_replaced_amount_is_written_in_minor_units() -> None:
    names = RecordMap({"product": {"price": "price.cents"}}, money="minor")
    product = Product({"id": 1, "price": {"cents": 100, "was": 200}, "currency": "EUR"}, names)
    changed = product.replace(price=Decimal("9.90"))
    assert changed.to_json() == {"id": 1, "price": {"cents": 990, "was": 200}, "currency": "EUR"}
    assert (product.price, changed.price) == (Decimal("1.00"), Decimal("9.90"))


# Missing, null, and alternatives


def test_paths_are_tried_in_order_and_null_is_skipped() -> None:
    names = RecordMap({"order": {"status": ("state", "status")}})
    assert Order({"state": None, "status": "paid"}, names).status == "paid"
    assert Order({"status": "paid"}, names).status == "paid"
    with pytest.raises(RecordError, match="state of this order is null"):
        _ = Order({"state": None}, names).status


def test_a_missing_field_names_the_key_to_set() -> None:
    record = record_of("order.paid", {"id": 1, "sum": 2}, None)
    assert isinstance(record, Order)
    with pytest.raises(RecordError) as caught:
        _ = record.total
    assert str(caught.value) == (
        "this order has no field 'total'; its fields are id, sum; if the store uses another name, "
        'set [schemes.NAME.record] order = {total = "..."}'
    )
    assert record.get("total") is None


def test_a_field_that_the_store_does_not_send_says_so() -> None:
    order = record_of("order.paid", {"id": 1}, PRESETS["stripe"].record)
    with pytest.raises(RecordError, match="this order has no lines: the store's payload does not have it"):
        _ = order.lines  # type: ignore[union-attr]


def test_a_null_name_is_an_error_and_not_the_word_none() -> None:
    with pytest.raises(RecordError, match="name of this customer is null"):
        _ = Customer({"name": None}).name


def test_an_order_without_any_buyer_has_no_customer() -> None:
    names = PRESETS["stripe"].record
    assert Order({"customer": None, "customer_details": {"email": None}}, names).customer is None
    assert Order({}, names).customer is None


def test_lines_and_customers_of_an_unmapped_store_are_read_by_their_own_names() -> None:
    line = {"product_id": 1, "quantity": 2, "price": "1.00"}
    order = record_of("order.paid", {"lines": [line], "customer": {"id": 3}})
    assert isinstance(order, Order)
    assert order.lines == (OrderLine(line),)
    assert order.customer == Customer({"id": 3})


def test_the_map_is_not_stored_with_a_delivery() -> None:
    delivery = delivered("shopify", "order.created", {"id": 1, "total_price": "2.00"})
    again = unpack_delivery(pack_delivery(delivery), delivery.event.body)
    assert again.event.record_map is None
    assert again == delivery


paths = st.lists(st.text("abc", min_size=1, max_size=2) | st.sampled_from(["0", "1"]), min_size=1, max_size=4)


@given(paths, st.integers())
def test_what_is_put_at_a_path_is_read_there(steps: list[str], value: int) -> None:
    names = RecordMap({"order": {"status": ".".join(steps)}})
    changed = set_at({}, steps, value)
    read = names.read("order", "status", changed)
    assert read == value or "1" in steps  # a list that is made begins at 0


# In the config

STORE = '[stores.north]\nscheme = "acme"\nsigning_secrets = ["a secret of the store"]\n'
ACME = '[schemes.acme]\nextends = "hex-body"\n'


def load(tmp_path: Path, text: str) -> config.Config:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return config.load(file, {})


def test_a_scheme_maps_fields_and_inherits_those_of_its_preset(tmp_path: Path) -> None:
    text = '[schemes.acme]\nextends = "shopify"\n[schemes.acme.record.order]\ntotal = "current_total_price"\n' + STORE
    loaded = load(tmp_path, text)
    names = loaded.record_map("north")
    assert names is not None
    order = Order({"total_price": "1.00", "current_total_price": "2.00", "financial_status": "paid"}, names)
    assert (order.total, order.status) == (Decimal("2.00"), "paid")
    assert loaded.record_map("removed") is None


def test_minor_units_are_inherited_and_need_no_other_field(tmp_path: Path) -> None:
    text = '[schemes.acme]\nextends = "stripe"\n[schemes.acme.record]\ndecimals = {XTS = 1}\n' + STORE
    names = load(tmp_path, text).record_map("north")
    assert names is not None
    assert (names.money, dict(names.decimals)) == ("minor", {"ISK": 2, "UGX": 2, "MGA": 0, "XTS": 1})
    cents = RecordMap(money="minor")
    assert cents
    assert cents.shape("order", {"id": 1, "total": "1.50"}) == {"id": 1, "total": 150, "currency": "EUR"}


@pytest.mark.parametrize("preset", MAPPED)
def test_a_shown_map_loads_again(tmp_path: Path, preset: str) -> None:
    text = to_toml(PRESETS[preset], "acme")
    assert tomllib.loads(text)["schemes"]["acme"]["record"]
    again = load(tmp_path, text).known_schemes["acme"].record
    assert again == PRESETS[preset].record
    assert json.dumps(again.as_table())


@pytest.mark.parametrize(
    ("line", "lines", "message"),
    [
        (4, '[schemes.acme.record.order]\ntotle = "x"', "record.order.totle: unknown field; did you mean total?"),
        (4, '[schemes.acme.record.buyer]\nxyz = "x"', "record.buyer.xyz: unknown field; there are id, name, email"),
        (3, '[schemes.acme.record.ordr]\ntotal = "x"', "unknown key schemes.acme.record.ordr; did you mean order?"),
        (4, '[schemes.acme.record]\nmony = "minor"', "unknown key schemes.acme.record.mony; did you mean money?"),
        (4, '[schemes.acme.record.order]\ntotal = "a..b"', "record.order.total: 'a..b' is not a path; write it like"),
        (4, '[schemes.acme.record.order]\ntotal = "json:a.b"', 'a path into the data needs none: "a.b"'),
        (4, '[schemes.acme.record.order]\ntotal = "a b"', "joins several fields with a space, which only name may"),
        (
            4,
            "[schemes.acme.record.order]\ntotal = 5",
            'schemes.acme.record.order.total: not a path; write "total_price"',
        ),
        (5, '[schemes.acme.record]\nmoney = "minor"\norder = {currency = ""}', 'money = "minor" needs the currency'),
        (5, '[schemes.acme.record]\nmoney = "minor"\ndecimals = {yen = 0}', "record.decimals: yen = 0"),
        (5, '[schemes.acme.record]\nmoney = "minor"\ndecimals = {JPY = 9}', "record.decimals: JPY = 9"),
    ],
)
def test_a_wrong_map_is_refused_with_its_line_and_the_fix(tmp_path: Path, line: int, lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, ACME + lines + "\n" + STORE)
    assert message in str(caught.value)
    assert f"config.toml:{line}: " in str(caught.value)


def test_the_standard_fields_are_properties_of_the_records() -> None:
    for kind, record in {"product": Product, "order": Order, "customer": Customer, "line": OrderLine}.items():
        assert all(isinstance(getattr(record, name), property) for name in FIELDS[kind])


@pytest.mark.parametrize(
    "number", ["1e-99999999999999999999", "0e99999999999999999999", "NaN", "Infinity", "-Infinity"]
)
@pytest.mark.parametrize("money", ["major", "minor"])
def test_a_number_that_no_decimal_holds_is_no_amount(number: str, money: Literal["major", "minor"]) -> None:
    body = b'{"id": 7, "total": %b, "currency": "EUR"}' % number.encode()
    event = Event("id", "north", "order.paid", datetime.now(UTC), body, record_map=RecordMap(money=money))
    assert isinstance(event.record, Order)
    with pytest.raises(RecordError, match="total of this order is not an amount of money"):
        _ = event.record.total
