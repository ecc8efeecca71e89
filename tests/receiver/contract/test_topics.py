"""Topics: translated from the store's event names and back."""

from __future__ import annotations

import pytest

from receiver.contract.signing.signatures import PRESETS
from receiver.contract.topics import mapped_by, matches, normalise, their_names, translate


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("orders/create", "order.created"),
        ("order.created", "order.created"),
        ("ORDER_CREATED", "order.created"),
        ("OrderCreated", "order.created"),
        ("order-confirmed", "order.confirmed"),
        ("orders:pay", "order.paid"),
        ("order.canceled", "order.cancelled"),
        ("categories/update", "category.updated"),
        ("order_transactions/create", "order_transaction.created"),
        ("customer.login", "customer.login"),
        ("order/status/updated", "order.status.updated"),
        ("addresses/ship", "address.shipped"),
        ("ping", "ping"),
        ("  ", ""),
        ("", ""),
        ("///", ""),
        ("___", ""),
        ("<script>.alert", "-script-.alert"),
        ("Bestellung ü.neu", "bestellung.-.neu"),
    ],
)
def test_a_name_that_is_in_no_map_follows_the_rule(theirs: str, ours: str) -> None:
    assert normalise(theirs) == ours
    assert translate(theirs, {}) == ours


def test_a_topic_stays_short() -> None:
    assert len(normalise("a" * 10_000 + "/create")) == 100


def test_the_rule_does_not_change_topics() -> None:
    for scheme in PRESETS.values():
        for topic in scheme.topics.values():
            assert normalise(topic) == topic


def test_the_map_overrides_the_rule() -> None:
    assert translate("orders/create", {"orders/create": "sale.made"}) == "sale.made"


def test_mapped_by_says_which_mapping_was_used() -> None:
    mapping = {"a": "order.created", "b": "order.paid"}
    assert [mapped_by(name, mapping, {"b"}) for name in "abc"] == ["preset", "config", "rule"]


@pytest.mark.parametrize("name", [name for name, scheme in PRESETS.items() if scheme.topics])
def test_every_name_of_a_preset_can_be_found_by_its_topic(name: str) -> None:
    mapping = PRESETS[name].topics
    for theirs, ours in mapping.items():
        assert theirs in their_names(ours, mapping)


@pytest.mark.parametrize(
    "name",
    [
        "shopify",
        "woocommerce",
        "bigcommerce",
        "nuvemshop",
        "shopware",
        "salla",
        "square",
        "stripe",
        "spree",
        "paddle",
    ],
)
def test_every_store_preset_knows_products_orders_and_customers(name: str) -> None:
    resources = {topic.partition(".")[0] for topic in PRESETS[name].topics.values()}
    assert {"product", "order", "customer"} <= resources


def test_a_pattern_gives_every_name_that_matches() -> None:
    assert their_names("customer.*", PRESETS["woocommerce"].topics) == (
        "customer.created",
        "customer.updated",
        "customer.deleted",
    )
    assert their_names("order.created", PRESETS["shopify"].topics) == ("orders/create",)


def test_an_unmapped_topic_is_its_own_name_and_a_pattern_has_none() -> None:
    assert their_names("order.created", {}) == ("order.created",)
    assert their_names("order.*", {}) == ()


def test_patterns_match_whole_topics() -> None:
    assert matches("order.*", "order.created")
    assert not matches("order.*", "reorder.created")
