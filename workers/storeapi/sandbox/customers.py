"""Customers: profiles, addresses and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.storeapi.sandbox.products import import_rows
from workers.storeapi.sandbox.shop import Listing, Problem, SandboxCall, Shop, words
from workers.storeapi.sandbox.state import Json


def list_(shop: Shop, call: SandboxCall) -> Listing:  # noqa: ARG001
    return Listing("customer")


def create(shop: Shop, call: SandboxCall) -> Json:
    made = shop.state.insert("customer", new_customer(call.body))
    shop.emit("customer.created", made)
    return made


def get(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("customer", call.path["id"])


def update(shop: Shop, call: SandboxCall) -> Json:
    changed = {**get(shop, call), **{k: v for k, v in call.body.items() if k not in ("id", "metadata")}}
    words(changed["name"], "name")
    return shop.keep("customer", changed, "customer.updated")


def delete(shop: Shop, call: SandboxCall) -> None:
    gone = get(shop, call)
    for address in shop.state.every("address", gone["id"]):
        shop.state.delete("address", address["id"])
    shop.state.delete("customer", gone["id"])
    shop.emit("customer.deleted", gone)


def list_addresses(shop: Shop, call: SandboxCall) -> Listing:
    return Listing("address", get(shop, call)["id"])


def add_address(shop: Shop, call: SandboxCall) -> Json:
    customer = get(shop, call)
    words(call.body["city"], "city")
    made = shop.state.insert("address", _without_id(call.body) | {"customer_id": customer["id"]}, customer["id"])
    shop.emit("customer.updated", customer)
    return made


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
        raise Problem(422, "metadata is an object")
    merged = {name: value for name, value in {**customer["metadata"], **given}.items() if value is not None}
    return shop.keep("customer", {**customer, "metadata": merged}, "customer.updated")


def bulk_import(shop: Shop, call: SandboxCall) -> Json:
    return import_rows(shop, "customer", call.body["customers"], new_customer)


def new_customer(body: Mapping[str, Any]) -> Json:
    return {"email": "", "metadata": {}, **_without_id(body), "name": words(body.get("name"), "name")}


def _address(shop: Shop, call: SandboxCall) -> Json:
    return shop.find("address", call.path["address_id"], get(shop, call)["id"])


def _without_id(body: Mapping[str, Any]) -> Json:
    return {name: value for name, value in body.items() if name != "id"}
