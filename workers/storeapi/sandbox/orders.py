"""Orders: bought, paid, shipped; with a lifecycle that only goes certain ways."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from workers.storeapi.sandbox.products import rows_of
from workers.storeapi.sandbox.shop import Listing, Problem, SandboxCall, Shop, whole, words
from workers.storeapi.sandbox.state import Json

NEXT = {
    "new": ("paid", "cancelled"),
    "paid": ("shipped", "refunded", "cancelled"),
    "shipped": ("delivered", "refunded"),
    "delivered": ("refunded",),
    "cancelled": (),
    "refunded": (),
}
"""From which status an order may go to which."""


def list_(shop: Shop, call: SandboxCall) -> Listing:  # noqa: ARG001
    return Listing("order")


def create(shop: Shop, call: SandboxCall) -> Json:
    customer_id = call.body.get("customer_id")
    customer = shop.find("customer", whole(customer_id, "customer_id")) if customer_id is not None else None
    extra = {name: value for name, value in call.body.items() if name not in ("id", "customer_id", "status")}
    return _made(shop, {**extra, "customer": _who(customer), "lines": _lines(shop, call.body["lines"])})


def get(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("order", call.path["id"])


def update(shop: Shop, call: SandboxCall) -> Json:
    order = get(shop, call)
    fixed = {"id", "status", "lines", "total"} & set(call.body)
    if fixed:
        raise Problem(422, f"{', '.join(sorted(fixed))} cannot be set here")
    return shop.keep("order", {**order, **call.body}, "order.updated")


def delete(shop: Shop, call: SandboxCall) -> None:
    gone = get(shop, call)
    shop.state.delete("order", gone["id"])
    shop.emit("order.deleted", gone)


def update_status(shop: Shop, call: SandboxCall) -> Json:
    order, status = get(shop, call), call.body["status"]
    if status == order["status"]:
        return order
    if status not in NEXT:
        raise Problem(422, f"there is no status {status!r}; there are {', '.join(NEXT)}")
    if status not in NEXT[order["status"]]:
        raise Problem(409, f"an order that is {order['status']} cannot become {status}")
    return shop.keep("order", {**order, "status": status}, f"order.{status}")


def add_products(shop: Shop, call: SandboxCall) -> Json:
    order = _open(get(shop, call))
    return _with_lines(shop, order, [*order["lines"], *_lines(shop, call.body["lines"])])


def remove_product(shop: Shop, call: SandboxCall) -> Json:
    order = _open(get(shop, call))
    left = [line for line in order["lines"] if line["product_id"] != call.path["product_id"]]
    if len(left) == len(order["lines"]):
        raise Problem(404, f"order {order['id']} has no product {call.path['product_id']}")
    return _with_lines(shop, order, left)


def list_comments(shop: Shop, call: SandboxCall) -> Listing:
    return Listing("comment", get(shop, call)["id"])


def add_comment(shop: Shop, call: SandboxCall) -> Json:
    order = get(shop, call)
    author = words(call.body.get("author", "api"), "author")
    comment = {"order_id": order["id"], "text": words(call.body["text"], "text"), "author": author}
    made = shop.state.insert("comment", comment, order["id"])
    shop.emit("order.updated", order)
    return made


def duplicate(shop: Shop, call: SandboxCall) -> Json:
    order = get(shop, call)
    copy = {name: value for name, value in order.items() if name not in ("id", "status", "total")}
    return _made(shop, {**copy, "duplicate_of": order["id"]})


# What several of them need


def _made(shop: Shop, order: Json) -> Json:
    made = shop.state.insert("order", {"status": "new", "total": _total(order["lines"]), **order})
    shop.emit("order.created", made)
    return made


def _with_lines(shop: Shop, order: Json, lines: list[Json]) -> Json:
    return shop.keep("order", {**order, "lines": lines, "total": _total(lines)}, "order.updated")


def _open(order: Json) -> Json:
    if order["status"] != "new":
        raise Problem(409, f"an order that is {order['status']} keeps its products")
    return order


def _lines(shop: Shop, given: Any) -> list[Json]:
    """Lines with the price of today."""
    lines = []
    for line in rows_of(given):
        product = shop.find("product", whole(line.get("product_id"), "product_id"))
        quantity = whole(line.get("quantity", 1), "quantity")
        if quantity < 1:
            raise Problem(422, "quantity is at least 1")
        lines.append({"product_id": product["id"], "quantity": quantity, "price": product["price"]})
    if not lines:
        raise Problem(422, "an order has at least one line")
    return lines


def _total(lines: list[Json]) -> str:
    return f"{sum((Decimal(line['price']) * line['quantity'] for line in lines), Decimal(0)):.2f}"


def _who(customer: Json | None) -> Json | None:
    return customer and {name: customer.get(name) for name in ("id", "name", "email")}
