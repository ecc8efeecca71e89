"""`send` and the sandbox in the payload shapes of shop platforms: handlers read the same record from each of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from receiver.contract.compose import compose, in_store_shape
from receiver.contract.records import make
from receiver.contract.signing.presets import PRESETS
from tests.support.harness import System, own_server
from tests.support.standard_fields import standard_fields
from workers.storeapi.samples import sample

PLATFORMS = ("shopify", "woocommerce", "shopware", "salla", "square", "stripe", "spree", "paddle")
OWN = """
[schemes.acme]
extends = "hex-body"
[schemes.acme.record]
money = "minor"
order = {id = "order.no", status = "order.state", total = "order.sum", currency = "order.cur", lines = "order.rows"}
line = {product_id = "sku.id", quantity = "pieces", price = "each"}
buyer = {name = "buyer.given buyer.family", email = "buyer.mail"}
"""
STORES = "".join(
    f'[stores.{name}]\nscheme = "{name}"\nsigning_secrets = ["the secret of the store"]\n'
    for name in (*PLATFORMS, "acme", "hex-body")
)
PLUGIN = """
import json
from pathlib import Path
from tests.support.standard_fields import standard_fields
from workers import Router
router = Router("erp")

@router.on("*.*", when=lambda event: event.record.id == 1001)
def export(event, ctx):
    fields = {"record": standard_fields(event.record), "data": event.data}
    (Path(FOLDER) / f"{event.id}.json").write_text(json.dumps(fields, default=str))
"""
PATHS_OF_TOTAL = {
    "shopify": "total_price",
    "woocommerce": "total",
    "shopware": "amountTotal",
    "salla": "amounts",
    "square": "order_id",
    "stripe": "amount_total",
    "spree": "total",
    "paddle": "details",
    "acme": "order",
}

TOPICS = {
    "shopify": "orders/create",
    "shopware": "checkout.order.placed",
    "stripe": "checkout.session.completed",
    "paddle": "transaction.created",
}
ORDER = {"id": 1001, "total": "2.00", "status": "new"}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with own_server(tmp_path_factory.mktemp("server")) as server:
        folder = tmp_path_factory.mktemp("system")
        made = System(folder, server.url, more=OWN + STORES, plugin=f"FOLDER = {str(folder)!r}\n" + PLUGIN)
        made.start("web", "worker", "housekeeper")
        yield made
        made.close()


def handled(system: System, event_id: str) -> dict[str, Any]:
    """What the handler read from an event."""
    assert system.settled(event_id) == "settled"
    found: dict[str, Any] = json.loads((system.folder / f"{event_id}.json").read_text())
    return found


def expected(system: System, store: str, topic: str) -> dict[str, Any]:
    """The standard fields of the sample, without those that the platform's payload does not have."""
    names, kind = system.config.known_stores[store].scheme.record, topic.partition(".")[0]
    found = standard_fields(make(kind, sample(topic)))
    found = {name: value for name, value in found.items() if names.paths(kind, name)}
    for line in found.get("lines", []):
        for name in [name for name in line if not names.paths("line", name)]:
            del line[name]
        if "currency" in found:
            line["currency"] = found["currency"]
    if customer := found.get("customer"):
        known = names.fields.get("buyer") or [name for name in customer if names.paths("customer", name)]
        found["customer"] = {name: customer[name] for name in known}
    return found


@pytest.mark.parametrize("store", [*PLATFORMS, "acme"])
def test_an_order_is_sent_in_the_shape_of_the_platform_and_read_as_the_same_record(system: System, store: str) -> None:
    done = system.run_cli("send", "order.created", "--store", store)
    assert done.returncode == 0, done.stdout + done.stderr
    event = next(one for one in system.ledger.events(store=store) if one.topic == "order.created")
    found = handled(system, event.id)
    assert PATHS_OF_TOTAL[store] in found["data"]
    assert found["record"] == expected(system, store, "order.created")
    if store != "square":
        assert found["record"]["total"] == sample("order.created")["total"]
    assert [name.theirs for name in system.ledger.event_names(store)] == [TOPICS.get(store, "order.created")]


@pytest.mark.parametrize("topic", ["product.updated", "customer.created"])
@pytest.mark.parametrize("store", PLATFORMS)
def test_products_and_customers_are_read_as_the_same_record(system: System, store: str, topic: str) -> None:
    known = system.config.known_stores[store]
    data = in_store_shape(known.scheme, topic, sample(topic))
    request = compose(known, topic=topic, delivery_id=f"{store}-{topic}", data=data, now=time.time())
    answer = system.post(request, store).json()
    assert answer["status"] == "accepted"
    found = handled(system, answer["id"])
    assert found["record"] == expected(system, store, topic)


def test_a_store_without_a_map_and_a_file_are_sent_as_they_are(system: System) -> None:
    printed = system.run_cli("send", "order.created", "--store", "hex-body", "--print").stdout
    assert json.loads(printed)["data"] == sample("order.created")
    file = system.folder / "captured.json"
    file.write_text('{"id": 5, "total_price": "1.00"}')
    printed = system.run_cli("send", "order.created", "--store", "shopify", "--data", str(file), "--print").stdout
    assert json.loads(printed).items() >= {"id": 5, "total_price": "1.00"}.items()


def test_set_changes_a_field_by_the_stores_own_name(system: System) -> None:
    arguments = ("send", "orders/paid", "--store", "shopify", "--set", "total_price=9.99", "--print")
    sent = json.loads(system.run_cli(*arguments).stdout)
    assert sent["total_price"] == 9.99
    assert sent["financial_status"] == "paid"


def test_the_event_of_a_store_that_was_removed_is_read_by_default_names(system: System) -> None:
    """Its record raises RecordError for a missing field, as for any store without a map."""
    shopify = PRESETS["shopify"]
    text = system.config_file.read_text()
    event_id = system.deliver("order.created", store="shopify", data=in_store_shape(shopify, "order.created", ORDER))
    assert handled(system, event_id)["record"]["total"] == "2.00"
    (system.folder / f"{event_id}.json").unlink()
    table = '[stores.shopify]\nscheme = "shopify"\nsigning_secrets = ["the secret of the store"]\n'
    assert table in text
    system.config_file.write_text(text.replace(table, ""))
    try:
        done = system.run_cli("handlers", "run", "erp.export", "--event", event_id)
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads((system.folder / f"{event_id}.json").read_text())
        assert found["record"] == {"id": 1001}
    finally:
        system.config_file.write_text(text)
