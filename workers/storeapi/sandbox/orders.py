"""Orders: the order operations of the sandbox store, with the order lifecycle."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from receiver.contract.record_map import SAMPLE_CURRENCY
from workers.storeapi.sandbox.products import check_rows
from workers.storeapi.sandbox.shop import ErrorAnswer, Listing, SandboxCall, Shop, check_integer, check_text
from workers.storeapi.sandbox.state import Json

TRANSITIONS = {
    "new": ("paid", "cancelled"),
    "paid": ("shipped", "refunded", "cancelled"),
    "shipped": ("delivered", "refunded"),
    "delivered": ("refunded",),
    "cancelled": (),
    "refunded": (),
}
"""Which statuses may follow a status."""


def list_(shop: Shop, call: SandboxCall) -> Listing:  # noqa: ARG001
    return Listing("order")


def create(shop: Shop, call: SandboxCall) -> Json:
    customer_id = call.body.get("customer_id")
    customer = None
    if customer_id is not None:
        found = shop.find("customer", check_integer(customer_id, "customer_id"))
        customer = {name: found.get(name) for name in ("id", "name", "email")}
    extra = {name: value for name, value in call.body.items() if name not in ("id", "customer_id", "status")}
    lines = _lines(shop, call.body["lines"])
    currency = shop.find("product", lines[0]["product_id"]).get("currency", SAMPLE_CURRENCY)
    return _insert(shop, {"currency": currency, **extra, "customer": customer, "lines": lines})


def get(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("order", call.path["id"])


def update(shop: Shop, call: SandboxCall) -> Json:
    order = get(shop, call)
    fixed = {"id", "status", "lines", "total"} & set(call.body)
    if fixed:
        raise ErrorAnswer(422, f"{', '.join(sorted(fixed))} cannot be set here")
    return shop.save("order", {**order, **call.body}, "order.updated")


def delete(shop: Shop, call: SandboxCall) -> None:
    shop.remove("order", get(shop, call))


def update_status(shop: Shop, call: SandboxCall) -> Json:
    order, status = get(shop, call), call.body["status"]
    if status == order["status"]:
        return order
    if status not in TRANSITIONS:
        raise ErrorAnswer(422, f"unknown status {status!r}; known: {', '.join(TRANSITIONS)}")
    if status not in TRANSITIONS[order["status"]]:
        raise ErrorAnswer(409, f"an order with status {order['status']} cannot become {status}")
    return shop.save("order", {**order, "status": status}, f"order.{status}")


def add_products(shop: Shop, call: SandboxCall) -> Json:
    order = _check_open(get(shop, call))
    return _with_lines(shop, order, [*order["lines"], *_lines(shop, call.body["lines"])])


def remove_product(shop: Shop, call: SandboxCall) -> Json:
    order = _check_open(get(shop, call))
    left = [line for line in order["lines"] if line["product_id"] != call.path["product_id"]]
    if len(left) == len(order["lines"]):
        raise ErrorAnswer(404, f"order {order['id']} has no product {call.path['product_id']}")
    return _with_lines(shop, order, left)


def list_comments(shop: Shop, call: SandboxCall) -> Listing:
    return Listing("comment", get(shop, call)["id"])


def add_comment(shop: Shop, call: SandboxCall) -> Json:
    order = get(shop, call)
    author = check_text(call.body.get("author", "api"), "author")
    body = {"order_id": order["id"], "text": check_text(call.body["text"], "text"), "author": author}
    comment = shop.state.insert("comment", body, order["id"])
    shop.emit("order.updated", order)
    return comment


def duplicate(shop: Shop, call: SandboxCall) -> Json:
    order = get(shop, call)
    copy = {name: value for name, value in order.items() if name not in ("id", "status", "total")}
    lines = [_with_id(shop, line) for line in order["lines"]]
    return _insert(shop, {**copy, "lines": lines, "duplicate_of": order["id"]})


# Shared by several operations


def _insert(shop: Shop, order: Json) -> Json:
    return shop.add("order", {"status": "new", "total": _total(order["lines"]), **order})


def _with_lines(shop: Shop, order: Json, lines: list[Json]) -> Json:
    return shop.save("order", {**order, "lines": lines, "total": _total(lines)}, "order.updated")


def _check_open(order: Json) -> Json:
    if order["status"] != "new":
        raise ErrorAnswer(409, f"the products of an order with status {order['status']} cannot change")
    return order


def _lines(shop: Shop, given: Any) -> list[Json]:
    """Order lines with the current prices."""
    lines = []
    for line in check_rows(given):
        product = shop.find("product", check_integer(line.get("product_id"), "product_id"))
        quantity = check_integer(line.get("quantity", 1), "quantity")
        if quantity < 1:
            raise ErrorAnswer(422, "quantity must be at least 1")
        lines.append(_with_id(shop, {"product_id": product["id"], "quantity": quantity, "price": product["price"]}))
    if not lines:
        raise ErrorAnswer(422, "an order needs at least one line")
    return lines


def _with_id(shop: Shop, line: Json) -> Json:
    return {**line, "id": shop.state.increment("last line")}


def _total(lines: list[Json]) -> str:
    return f"{sum((Decimal(line['price']) * line['quantity'] for line in lines), Decimal(0)):.2f}"
