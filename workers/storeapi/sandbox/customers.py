"""Customers: the customer operations of the sandbox store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.storeapi.sandbox.products import import_rows
from workers.storeapi.sandbox.shop import ErrorAnswer, Listing, SandboxCall, Shop, check_text
from workers.storeapi.sandbox.state import Json


def list_(shop: Shop, call: SandboxCall) -> Listing:  # noqa: ARG001
    return Listing("customer")


def create(shop: Shop, call: SandboxCall) -> Json:
    return shop.add("customer", new_customer(call.body))


def get(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("customer", call.path["id"])


def update(shop: Shop, call: SandboxCall) -> Json:
    changed = {**get(shop, call), **{k: v for k, v in call.body.items() if k not in ("id", "metadata")}}
    check_text(changed["name"], "name")
    return shop.save("customer", changed, "customer.updated")


def delete(shop: Shop, call: SandboxCall) -> None:
    shop.remove("customer", get(shop, call), parts="address")


def list_addresses(shop: Shop, call: SandboxCall) -> Listing:
    return Listing("address", get(shop, call)["id"])


def add_address(shop: Shop, call: SandboxCall) -> Json:
    customer = get(shop, call)
    check_text(call.body["city"], "city")
    address = shop.state.insert("address", _without_id(call.body) | {"customer_id": customer["id"]}, customer["id"])
    shop.emit("customer.updated", customer)
    return address


def update_address(shop: Shop, call: SandboxCall) -> Json:
    address = shop.state.put("address", {**_address(shop, call), **_without_id(call.body)})
    shop.emit("customer.updated", get(shop, call))
    return address


def delete_address(shop: Shop, call: SandboxCall) -> None:
    shop.state.delete("address", _address(shop, call)["id"])
    shop.emit("customer.updated", get(shop, call))


def update_metadata(shop: Shop, call: SandboxCall) -> Json:
    customer, given = get(shop, call), call.body["metadata"]
    if not isinstance(given, dict):
        raise ErrorAnswer(422, "metadata must be an object")
    merged = {name: value for name, value in {**customer["metadata"], **given}.items() if value is not None}
    return shop.save("customer", {**customer, "metadata": merged}, "customer.updated")


def bulk_import(shop: Shop, call: SandboxCall) -> Json:
    return import_rows(shop, "customer", call.body["customers"], new_customer)


def new_customer(body: Mapping[str, Any]) -> Json:
    return {"email": "", "metadata": {}, **_without_id(body), "name": check_text(body.get("name"), "name")}


def _address(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("address", call.path["address_id"], get(shop, call)["id"])


def _without_id(body: Mapping[str, Any]) -> Json:
    return {name: value for name, value in body.items() if name != "id"}
