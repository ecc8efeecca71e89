"""Products: the product operations of the sandbox store, with variants and inventory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from receiver.contract.record_map import SAMPLE_CURRENCY
from workers.storeapi.sandbox.shop import (
    ErrorAnswer,
    Listing,
    SandboxCall,
    Shop,
    check_amount,
    check_integer,
    check_text,
)
from workers.storeapi.sandbox.state import Json


def list_(shop: Shop, call: SandboxCall) -> Listing:  # noqa: ARG001
    return Listing("product")


def create(shop: Shop, call: SandboxCall) -> Json:
    return shop.add("product", new_product(call.body))


def get(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("product", call.path["id"])


def update(shop: Shop, call: SandboxCall) -> Json:
    return shop.save("product", {**get(shop, call), **checked_fields(call.body)}, "product.updated")


def delete(shop: Shop, call: SandboxCall) -> None:
    shop.remove("product", get(shop, call), parts="variant")


def bulk_import(shop: Shop, call: SandboxCall) -> Json:
    return import_rows(shop, "product", call.body["products"], new_product)


def get_import(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("import", call.path["import_id"])


def list_inventory(shop: Shop, call: SandboxCall) -> Listing:  # noqa: ARG001
    return Listing("product", show=inventory)


def get_inventory(shop: Shop, call: SandboxCall) -> Json:
    return inventory(get(shop, call))


def set_inventory(shop: Shop, call: SandboxCall) -> Json:
    return inventory(_set_stock(shop, get(shop, call), check_integer(call.body["stock"], "stock")))


def adjust_inventory(shop: Shop, call: SandboxCall) -> Json:
    product = get(shop, call)
    return inventory(_set_stock(shop, product, product["stock"] + check_integer(call.body["by"], "by")))


def set_inventory_bulk(shop: Shop, call: SandboxCall) -> list[Json]:
    result = []
    for row in check_rows(call.body["inventory"]):
        product = shop.find("product", check_integer(row.get("id"), "id"))
        result.append(inventory(_set_stock(shop, product, check_integer(row.get("stock"), "stock"))))
    return result


def list_variants(shop: Shop, call: SandboxCall) -> Listing:
    return Listing("variant", get(shop, call)["id"])


def create_variant(shop: Shop, call: SandboxCall) -> Json:
    product = get(shop, call)
    defaults = {"product_id": product["id"], "name": call.body["name"], "price": product["price"], "stock": 0}
    variant = shop.state.insert("variant", {**defaults, **checked_fields(call.body)}, product["id"])
    shop.emit("product.updated", product)
    return variant


def get_variant(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("variant", call.path["variant_id"], get(shop, call)["id"])


def update_variant(shop: Shop, call: SandboxCall) -> Json:
    variant = shop.state.put("variant", {**get_variant(shop, call), **checked_fields(call.body)})
    shop.emit("product.updated", get(shop, call))
    return variant


def delete_variant(shop: Shop, call: SandboxCall) -> None:
    shop.state.delete("variant", get_variant(shop, call)["id"])
    shop.emit("product.updated", get(shop, call))


def set_variant_inventory(shop: Shop, call: SandboxCall) -> Json:
    variant = {**get_variant(shop, call), "stock": _check_stock(check_integer(call.body["stock"], "stock"))}
    shop.state.put("variant", variant)
    shop.emit("product.updated", get(shop, call))
    return inventory(variant)


# Shared by several operations


def new_product(body: Mapping[str, Any]) -> Json:
    checked = {"name": check_text(body.get("name"), "name"), "price": check_amount(body.get("price"))}
    defaults = {"currency": SAMPLE_CURRENCY, "sku": "", "stock": 0}
    return {**defaults, **body, **checked, **checked_fields({k: v for k, v in body.items() if k == "stock"})}


def checked_fields(body: Mapping[str, Any]) -> Json:
    """The fields to set, checked. The caller cannot set `id`."""
    checks: dict[str, Any] = {"name": check_text, "price": check_amount, "stock": check_integer}
    given = {name: value for name, value in body.items() if name != "id"}
    return {name: checks[name](value, name) if name in checks else value for name, value in given.items()}


def inventory(product: Json) -> Json:
    return {"id": product["id"], "sku": product.get("sku"), "stock": product["stock"]}


def _set_stock(shop: Shop, product: Json, stock: int) -> Json:
    return shop.save("product", {**product, "stock": _check_stock(stock)}, "product.updated")


def _check_stock(stock: int) -> int:
    if stock < 0:
        raise ErrorAnswer(409, "stock cannot be negative")
    return stock


def check_rows(value: Any) -> list[Json]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ErrorAnswer(422, "the rows must be a list of objects")
    return value


def import_rows(shop: Shop, kind: str, rows: Any, new: Any) -> Json:
    """Insert the valid rows. The result lists each refused row with its error."""
    good, refused = [], []
    for number, row in enumerate(check_rows(rows)):
        try:
            good.append(new({name: value for name, value in row.items() if name != "id"}))
        except ErrorAnswer as error:
            refused.append({"row": number, "error": str(error)})
    inserted = shop.state.insert_many(kind, good)
    if shop.state.count("webhook"):
        for record in inserted:
            shop.emit(f"{kind}.created", record)
    return shop.state.insert("import", {"status": "done", "accepted": len(inserted), "refused": refused})
