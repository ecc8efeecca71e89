"""All 49 operations, end to end: the client calls the sandbox store over a real socket. One test for each."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from receiver.contract.records import Customer, Order, Product, Subscription
from workers.storeapi import Client
from workers.storeapi.catalogue import bundled_catalogue
from workers.storeapi.errors import InvalidRequest, ResourceNotFound

OperationTest = Callable[[Client], None]
TESTS: dict[str, OperationTest] = {}


def operation(name: str) -> Callable[[OperationTest], OperationTest]:
    def register(function: OperationTest) -> OperationTest:
        assert name not in TESTS
        TESTS[name] = function
        return function

    return register


@pytest.mark.parametrize("name", list(bundled_catalogue().operations))
def test_an_operation_works_end_to_end(client: Client, name: str) -> None:
    TESTS[name](client)


def create_product(client: Client, **fields: Any) -> Product:
    return client.products.create(**{"name": "Mug", "price": "4.50", **fields})


def create_order(client: Client) -> Order:
    return client.orders.create(lines=[{"product_id": create_product(client).id, "quantity": 2}])


def create_customer(client: Client) -> Customer:
    return client.customers.create(name="Ada", email="ada@example.com")


def create_subscription(client: Client, **fields: Any) -> Subscription:
    return client.webhooks.create(topic="order.created", url="http://127.0.0.1:9/unused", **fields)


def error_status(call: Callable[[], Any]) -> int:
    with pytest.raises((ResourceNotFound, InvalidRequest)) as caught:
        call()
    return caught.value.status


# Products


@operation("products.list")
def _(client: Client) -> None:
    made = create_product(client)
    found = list(client.products.list())
    assert made in found
    assert all(isinstance(one, Product) and isinstance(one.price, Decimal) for one in found)
    assert len({one.id for one in found}) == len(found)


@operation("products.create")
def _(client: Client) -> None:
    made = client.products.create(name="Lamp", price=Decimal("12.30"), colour="red")
    assert (made.name, made.price, made["colour"]) == ("Lamp", Decimal("12.30"), "red")
    assert error_status(lambda: client.products.create(name="Lamp", price="cheap")) == 422


@operation("products.get")
def _(client: Client) -> None:
    made = create_product(client)
    assert client.products.get(made.id) == made
    assert error_status(lambda: client.products.get(10**9)) == 404


@operation("products.update")
def _(client: Client) -> None:
    made = create_product(client, sku="M-1")
    assert client.products.update(made.id, price="5.00").to_json() == {**made, "price": "5.00"}
    assert client.products.get(made.id).price == Decimal("5.00")


@operation("products.delete")
def _(client: Client) -> None:
    made = create_product(client)
    client.products.delete(made.id)
    assert error_status(lambda: client.products.get(made.id)) == 404


@operation("products.bulk_import")
def _(client: Client) -> None:
    rows = [{"name": "A", "price": "1.00"}, {"name": "", "price": "1.00"}, {"name": "C", "price": Decimal("3")}]
    done = client.products.bulk_import(products=rows)
    assert done["accepted"] == 2
    assert done["refused"] == [{"row": 1, "error": "name must be text"}]


@operation("products.get_import")
def _(client: Client) -> None:
    done = client.products.bulk_import(products=[{"name": "A", "price": "1.00"}])
    assert client.products.get_import(done.id) == done


@operation("products.list_inventory")
def _(client: Client) -> None:
    made = create_product(client, stock=3)
    assert {"id": made.id, "sku": "", "stock": 3} in [one.to_json() for one in client.products.list_inventory()]


@operation("products.get_inventory")
def _(client: Client) -> None:
    assert client.products.get_inventory(create_product(client, stock=8).id)["stock"] == 8


@operation("products.set_inventory")
def _(client: Client) -> None:
    made = create_product(client)
    assert client.products.set_inventory(made.id, stock=5)["stock"] == 5
    assert client.products.get_inventory(made.id)["stock"] == 5


@operation("products.adjust_inventory")
def _(client: Client) -> None:
    made = create_product(client, stock=5)
    assert client.products.adjust_inventory(made.id, by=-2)["stock"] == 3
    assert error_status(lambda: client.products.adjust_inventory(made.id, by=-9)) == 409


@operation("products.set_inventory_bulk")
def _(client: Client) -> None:
    ids = [create_product(client).id for _ in range(3)]
    found = client.products.set_inventory_bulk(inventory=[{"id": id_, "stock": 40 + at} for at, id_ in enumerate(ids)])
    assert [one["stock"] for one in found] == [40, 41, 42]
    assert client.products.get_inventory(ids[2])["stock"] == 42


@operation("products.list_variants")
def _(client: Client) -> None:
    made = create_product(client)
    names = ["S", "M", "L"]
    for name in names:
        client.products.create_variant(made.id, name=name)
    assert [one["name"] for one in client.products.list_variants(made.id)] == names
    assert list(client.products.list_variants(create_product(client).id)) == []


@operation("products.create_variant")
def _(client: Client) -> None:
    made = create_product(client)
    variant = client.products.create_variant(made.id, name="XL", price="9.00")
    assert (variant["product_id"], variant["price"]) == (made.id, "9.00")


@operation("products.get_variant")
def _(client: Client) -> None:
    made, other = create_product(client), create_product(client)
    variant = client.products.create_variant(made.id, name="XL")
    assert client.products.get_variant(made.id, variant.id) == variant
    assert error_status(lambda: client.products.get_variant(other.id, variant.id)) == 404


@operation("products.update_variant")
def _(client: Client) -> None:
    made = create_product(client)
    variant = client.products.create_variant(made.id, name="XL")
    assert client.products.update_variant(made.id, variant.id, name="XXL")["name"] == "XXL"


@operation("products.delete_variant")
def _(client: Client) -> None:
    made = create_product(client)
    variant = client.products.create_variant(made.id, name="XL")
    client.products.delete_variant(made.id, variant.id)
    assert list(client.products.list_variants(made.id)) == []


@operation("products.set_variant_inventory")
def _(client: Client) -> None:
    made = create_product(client)
    variant = client.products.create_variant(made.id, name="XL")
    assert client.products.set_variant_inventory(made.id, variant.id, stock=7)["stock"] == 7
    assert client.products.get_variant(made.id, variant.id)["stock"] == 7


# Orders


@operation("orders.list")
def _(client: Client) -> None:
    made = create_order(client)
    assert made in list(client.orders.list())


@operation("orders.create")
def _(client: Client) -> None:
    customer, product = create_customer(client), create_product(client)
    order = client.orders.create(lines=[{"product_id": product.id, "quantity": 3}], customer_id=customer.id)
    assert (order.status, order.total) == ("new", Decimal("13.50"))
    assert order.customer is not None
    assert order.customer.id == customer.id
    assert [(line.product_id, line.quantity) for line in order.lines] == [(product.id, 3)]
    assert error_status(lambda: client.orders.create(lines=[])) == 422


@operation("orders.get")
def _(client: Client) -> None:
    made = create_order(client)
    assert client.orders.get(made.id) == made


@operation("orders.update")
def _(client: Client) -> None:
    made = create_order(client)
    assert client.orders.update(made.id, note="ring twice")["note"] == "ring twice"
    assert error_status(lambda: client.orders.update(made.id, total="0.00")) == 422


@operation("orders.delete")
def _(client: Client) -> None:
    made = create_order(client)
    client.orders.delete(made.id)
    assert error_status(lambda: client.orders.get(made.id)) == 404


@operation("orders.update_status")
def _(client: Client) -> None:
    made = create_order(client)
    for status in ("paid", "shipped", "delivered"):
        assert client.orders.update_status(made.id, status=status).status == status
    assert error_status(lambda: client.orders.update_status(made.id, status="new")) == 409
    assert error_status(lambda: client.orders.update_status(made.id, status="lost")) == 422


@operation("orders.add_products")
def _(client: Client) -> None:
    made, more = create_order(client), create_product(client, price="1.00")
    order = client.orders.add_products(made.id, lines=[{"product_id": more.id}])
    assert (order.total, len(order.lines)) == (Decimal("10.00"), 2)


@operation("orders.remove_product")
def _(client: Client) -> None:
    made, more = create_order(client), create_product(client, price="1.00")
    client.orders.add_products(made.id, lines=[{"product_id": more.id}])
    assert client.orders.remove_product(made.id, more.id).total == made.total
    assert error_status(lambda: client.orders.remove_product(made.id, more.id)) == 404


@operation("orders.list_comments")
def _(client: Client) -> None:
    made = create_order(client)
    client.orders.add_comment(made.id, text="first")
    client.orders.add_comment(made.id, text="second")
    assert [one["text"] for one in client.orders.list_comments(made.id)] == ["first", "second"]


@operation("orders.add_comment")
def _(client: Client) -> None:
    made = create_order(client)
    comment = client.orders.add_comment(made.id, text="call back", author="Grace")
    assert (comment["order_id"], comment["author"]) == (made.id, "Grace")


@operation("orders.duplicate")
def _(client: Client) -> None:
    made = client.orders.update_status(create_order(client).id, status="paid")
    copy = client.orders.duplicate(made.id)
    assert copy.id != made.id
    assert (copy.status, copy.total, copy["duplicate_of"]) == ("new", made.total, made.id)


# Customers


@operation("customers.list")
def _(client: Client) -> None:
    made = create_customer(client)
    assert made in list(client.customers.list())


@operation("customers.create")
def _(client: Client) -> None:
    made = client.customers.create(name="Linus", email="l@example.com", metadata={"vip": True})
    assert (made.name, made.email, made.metadata) == ("Linus", "l@example.com", {"vip": True})


@operation("customers.get")
def _(client: Client) -> None:
    made = create_customer(client)
    assert client.customers.get(made.id) == made


@operation("customers.update")
def _(client: Client) -> None:
    made = create_customer(client)
    assert client.customers.update(made.id, email="new@example.com").email == "new@example.com"


@operation("customers.delete")
def _(client: Client) -> None:
    made = create_customer(client)
    client.customers.delete(made.id)
    assert error_status(lambda: client.customers.get(made.id)) == 404


@operation("customers.list_addresses")
def _(client: Client) -> None:
    made = create_customer(client)
    client.customers.add_address(made.id, city="Oslo")
    client.customers.add_address(made.id, city="Bergen")
    assert [one["city"] for one in client.customers.list_addresses(made.id)] == ["Oslo", "Bergen"]


@operation("customers.add_address")
def _(client: Client) -> None:
    made = create_customer(client)
    assert client.customers.add_address(made.id, city="Oslo", street="Gate 1")["customer_id"] == made.id
    assert error_status(lambda: client.customers.add_address(made.id, street="Gate 1")) == 422


@operation("customers.update_address")
def _(client: Client) -> None:
    made = create_customer(client)
    address = client.customers.add_address(made.id, city="Oslo")
    changed = client.customers.update_address(made.id, address.id, postcode="0150")
    assert (changed["city"], changed["postcode"]) == ("Oslo", "0150")


@operation("customers.delete_address")
def _(client: Client) -> None:
    made = create_customer(client)
    address = client.customers.add_address(made.id, city="Oslo")
    client.customers.delete_address(made.id, address.id)
    assert list(client.customers.list_addresses(made.id)) == []


@operation("customers.update_metadata")
def _(client: Client) -> None:
    made = create_customer(client)
    client.customers.update_metadata(made.id, metadata={"tier": "gold", "old": 1})
    assert client.customers.update_metadata(made.id, metadata={"old": None}).metadata == {"tier": "gold"}


@operation("customers.bulk_import")
def _(client: Client) -> None:
    done = client.customers.bulk_import(customers=[{"name": "A"}, {"email": "x@example.com"}])
    assert (done["accepted"], [one["row"] for one in done["refused"]]) == (1, [1])


# Webhooks


@operation("webhooks.list")
def _(client: Client) -> None:
    made = create_subscription(client)
    assert made.id in [one.id for one in client.webhooks.list()]


@operation("webhooks.create")
def _(client: Client) -> None:
    made = create_subscription(client, enabled=False)
    assert (made.topic, made.enabled) == ("order.created", False)
    assert made.secret.startswith("whsec_")
    assert error_status(lambda: client.webhooks.create(topic="moon.rose", url="http://x.example")) == 422


@operation("webhooks.get")
def _(client: Client) -> None:
    made = create_subscription(client)
    found = client.webhooks.get(made.id)
    assert found.url == made.url
    assert "secret" not in found


@operation("webhooks.update")
def _(client: Client) -> None:
    made = create_subscription(client)
    changed = client.webhooks.update(made.id, url="https://new.example/hook", enabled=False)
    assert (changed.url, changed.enabled) == ("https://new.example/hook", False)


@operation("webhooks.delete")
def _(client: Client) -> None:
    made = create_subscription(client)
    client.webhooks.delete(made.id)
    assert error_status(lambda: client.webhooks.get(made.id)) == 404


@operation("webhooks.list_topics")
def _(client: Client) -> None:
    topics = [one["topic"] for one in client.webhooks.list_topics()]
    assert {"product.created", "order.paid", "customer.updated"} <= set(topics)


@operation("webhooks.send_test")
def _(client: Client) -> None:
    made = create_subscription(client)
    sent = client.webhooks.send_test(made.id)
    assert sent["topic"] == "order.created"
    assert sent["delivery_id"] in [one["delivery_id"] for one in client.webhooks.list_deliveries(made.id)]


@operation("webhooks.rotate_secret")
def _(client: Client) -> None:
    made = create_subscription(client)
    assert client.webhooks.rotate_secret(made.id).secret != made.secret


@operation("webhooks.list_deliveries")
def _(client: Client) -> None:
    made = create_subscription(client)
    order = create_order(client)
    (delivery,) = client.webhooks.list_deliveries(made.id)
    assert (delivery["topic"], order.status) == ("order.created", "new")
    client.webhooks.delete(made.id)
