"""Products: what the sandbox store sells, with variants and stock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.storeapi.sandbox.shop import Listing, Problem, SandboxCall, Shop, amount, whole, words
from workers.storeapi.sandbox.state import Json


def list_(shop: Shop, call: SandboxCall) -> Listing:  # noqa: ARG001
    return Listing("product")


def create(shop: Shop, call: SandboxCall) -> Json:
    made = shop.state.insert("product", new_product(call.body))
    shop.emit("product.created", made)
    return made


def get(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("product", call.path["id"])


def update(shop: Shop, call: SandboxCall) -> Json:
    return shop.keep("product", {**get(shop, call), **changes(call.body)}, "product.updated")


def delete(shop: Shop, call: SandboxCall) -> None:
    gone = get(shop, call)
    for variant in shop.state.every("variant", gone["id"]):
        shop.state.delete("variant", variant["id"])
    shop.state.delete("product", gone["id"])
    shop.emit("product.deleted", gone)


def bulk_import(shop: Shop, call: SandboxCall) -> Json:
    return import_rows(shop, "product", call.body["products"], new_product)


def get_import(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("import", call.path["import_id"])


def list_inventory(shop: Shop, call: SandboxCall) -> Listing:  # noqa: ARG001
    return Listing("product", show=inventory)


def get_inventory(shop: Shop, call: SandboxCall) -> Json:
    return inventory(get(shop, call))


def set_inventory(shop: Shop, call: SandboxCall) -> Json:
    return inventory(_stocked(shop, get(shop, call), whole(call.body["stock"], "stock")))


def adjust_inventory(shop: Shop, call: SandboxCall) -> Json:
    product = get(shop, call)
    return inventory(_stocked(shop, product, product["stock"] + whole(call.body["by"], "by")))


def set_inventory_bulk(shop: Shop, call: SandboxCall) -> list[Json]:
    rows = rows_of(call.body["inventory"])
    return [
        inventory(_stocked(shop, shop.find("product", whole(row.get("id"), "id")), whole(row.get("stock"), "stock")))
        for row in rows
    ]


def list_variants(shop: Shop, call: SandboxCall) -> Listing:
    return Listing("variant", get(shop, call)["id"])


def create_variant(shop: Shop, call: SandboxCall) -> Json:
    product = get(shop, call)
    body = {"name": words(call.body["name"], "name"), "price": product["price"], "stock": 0, **changes(call.body)}
    made = shop.state.insert("variant", {"product_id": product["id"], **body}, product["id"])
    shop.emit("product.updated", product)
    return made


def get_variant(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("variant", call.path["variant_id"], get(shop, call)["id"])


def update_variant(shop: Shop, call: SandboxCall) -> Json:
    variant = shop.state.put("variant", {**get_variant(shop, call), **changes(call.body)})
    shop.emit("product.updated", get(shop, call))
    return variant


def delete_variant(shop: Shop, call: SandboxCall) -> None:
    shop.state.delete("variant", get_variant(shop, call)["id"])
    shop.emit("product.updated", get(shop, call))


def set_variant_inventory(shop: Shop, call: SandboxCall) -> Json:
    variant = {**get_variant(shop, call), "stock": _positive(whole(call.body["stock"], "stock"))}
    shop.state.put("variant", variant)
    shop.emit("product.updated", get(shop, call))
    return inventory(variant)


# What several of them need


def new_product(body: Mapping[str, Any]) -> Json:
    checked = {"name": words(body.get("name"), "name"), "price": amount(body.get("price"))}
    return {"stock": 0, **body, **checked, **changes({k: v for k, v in body.items() if k == "stock"})}


def changes(body: Mapping[str, Any]) -> Json:
    """Fields to set, checked; `id` is not for the caller to choose."""
    checks: dict[str, Any] = {"name": words, "price": amount, "stock": whole}
    kept = {name: value for name, value in body.items() if name != "id"}
    return {name: checks[name](value, name) if name in checks else value for name, value in kept.items()}


def inventory(product: Json) -> Json:
    return {"id": product["id"], "sku": product.get("sku"), "stock": product["stock"]}


def _stocked(shop: Shop, product: Json, stock: int) -> Json:
    return shop.keep("product", {**product, "stock": _positive(stock)}, "product.updated")


def _positive(stock: int) -> int:
    if stock < 0:
        raise Problem(409, "stock cannot be less than none")
    return stock


def rows_of(value: Any) -> list[Json]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise Problem(422, "the rows are a list of objects")
    return value


def import_rows(shop: Shop, kind: str, rows: Any, new: Any) -> Json:
    """Keep the rows that fit; say of each other one why not."""
    good, refused = [], []
    for number, row in enumerate(rows_of(rows)):
        try:
            good.append(new({name: value for name, value in row.items() if name != "id"}))
        except Problem as problem:
            refused.append({"row": number, "error": str(problem)})
    made = shop.state.insert_many(kind, good)
    if shop.state.count("webhook"):
        for record in made:
            shop.emit(f"{kind}.created", record)
    return shop.state.insert("import", {"status": "done", "accepted": len(made), "refused": refused})
