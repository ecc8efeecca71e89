"""Two real shops' APIs, in config only: the config of docs/real-apis.md is used with servers that behave as described.

The paths, envelopes, headers and paging of the servers are those of the packages that docs/real-apis.md names. A `full`
test compares the paths with the first package itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from receiver import config as config_room
from tests.support.foreign_shop import ForeignShop, ShopAnswer, ShopRequest, foreign_shop
from tests.support.harness import SECRET
from tests.support.programs import ROOT
from workers.storeapi import Client, client_for_store
from workers.storeapi.catalogue import configured_catalogue
from workers.storeapi.errors import InvalidRequest

PAGE = (ROOT / "docs/real-apis.md").read_text()
CONFIGS = dict(zip(("shopify", "bigcommerce"), re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL), strict=True))
COUNT = 120


def records(group: str, start: int = 1, count: int = COUNT) -> list[dict[str, Any]]:
    more: dict[str, dict[str, Any]] = {
        "products": {"title": "Mug", "name": "Mug", "price": "1.00", "variants": [{"price": "1.00", "sku": "m"}]},
        "orders": {
            "financial_status": "paid",
            "status": "Shipped",
            "currency": "EUR",
            "currency_code": "EUR",
            "total_price": "9.00",
            "total_inc_tax": "9.0000",
            "line_items": [{"id": 1, "product_id": 7, "quantity": 2, "price": "4.50"}],
            "billing_address": {"first_name": "Ada", "last_name": "Smith", "email": "ada@shop.example"},
            "customer": {"id": 5, "first_name": "Ada", "last_name": "Smith", "email": "ada@shop.example"},
        },
        "customers": {"first_name": "Ada", "last_name": "Smith", "email": "ada@shop.example"},
        "webhooks": {"topic": "orders/paid", "address": "https://a.example/1"},
        "hooks": {"scope": "store/order/created", "destination": "https://a.example/1", "is_active": True},
    }
    return [{"id": number, **more[group]} for number in range(start, start + count)]


class Shopify:
    """The REST API as in @shopify/shopify-api: {"products": [...]}, {"product": {...}}, Link header, 50 in a page."""

    prefix, header, token = "/admin/api/2024-10/", "x-shopify-access-token", "shpat_1"

    def __init__(self) -> None:
        self.groups = {name: records(name) for name in ("products", "orders", "customers", "webhooks")}

    def __call__(self, request: ShopRequest) -> ShopAnswer:
        if request.headers.get(self.header) != self.token:
            return ShopAnswer({"errors": "[API] Invalid API key or access token"}, 401)
        found = re.fullmatch(rf"{re.escape(self.prefix)}(\w+)(?:/(\d+))?\.json", request.path)
        if not found or found[1] not in self.groups:
            return ShopAnswer({"errors": "Not Found"}, 404)
        group, single = found[1], found[1][:-1]
        if found[2] is None and request.method == "GET":
            return self.page(group, request)
        if request.method in ("POST", "PUT") and not isinstance((request.body or {}).get(single), dict):
            return ShopAnswer({"errors": {single: ["Required parameter missing or invalid"]}}, 400)
        rows = self.groups[group]
        if request.method == "POST":
            rows.append({"id": len(rows) + 1, **request.body[single]})
            return ShopAnswer({single: rows[-1]}, 201)
        row = rows[int(found[2]) - 1]
        if request.method == "PUT":
            row |= request.body[single]
        return ShopAnswer({} if request.method == "DELETE" else {single: row})

    def page(self, group: str, request: ShopRequest) -> ShopAnswer:
        if "page_info" in request.query and set(request.query) - {"page_info", "limit"}:
            return ShopAnswer({"errors": {"page_info": "Invalid value."}}, 400)
        if group == "orders" and "page_info" not in request.query and request.query.get("status") != "any":
            return ShopAnswer({"orders": []})  # only open orders, and these are closed
        at, size = int(request.query.get("page_info", 0)), min(int(request.query.get("limit", 50)), 50)
        url = f"http://{request.headers['host']}{request.path}?limit={size}&page_info={at + size}"
        rows = self.groups[group]
        link = {"link": f'<{url}>; rel="next"'} if at + size < len(rows) else {}
        return ShopAnswer({group: rows[at : at + size]}, headers=link)


class BigCommerce:
    """The API v2 as in the package bigcommerce: bare lists and records, `page` and `limit`, 204 for an empty list."""

    prefix, header, token = "/stores/abc/v2/", "x-auth-token", "bc_1"

    def __init__(self) -> None:
        self.groups = {name: records(name) for name in ("products", "orders", "customers", "hooks")}

    def __call__(self, request: ShopRequest) -> ShopAnswer:
        if (request.headers.get(self.header), request.headers.get("x-auth-client")) != (self.token, "app-1"):
            return ShopAnswer([{"status": 401, "message": "No credentials were supplied."}], 401)
        found = re.fullmatch(rf"{re.escape(self.prefix)}(\w+)(?:/(\d+))?", request.path)
        if not found or found[1] not in self.groups:
            return ShopAnswer([{"status": 404, "message": "The requested resource was not found."}], 404)
        rows = self.groups[found[1]]
        if found[2] is None and request.method == "GET":
            size = min(int(request.query.get("limit", 50)), 250)
            at = (int(request.query.get("page", 1)) - 1) * size
            return ShopAnswer(rows[at : at + size]) if rows[at:] else ShopAnswer(b"", 204)
        if request.method == "POST":
            if "destination" not in request.body:
                message = "The required field 'destination' was not supplied."
                return ShopAnswer([{"status": 400, "message": message}], 400)
            rows.append({"id": len(rows) + 1, "is_active": True, **request.body})
            return ShopAnswer(rows[-1], 201)
        row = rows[int(found[2]) - 1]
        if request.method == "PUT":
            row |= request.body
        return ShopAnswer(row) if request.method != "DELETE" else ShopAnswer(b"", 204)


SHOPS: dict[str, Callable[[], Any]] = {"shopify": Shopify, "bigcommerce": BigCommerce}


@pytest.fixture(params=SHOPS)
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, ForeignShop, Client]]:
    name = request.param
    with foreign_shop(SHOPS[name]()) as shop:
        text = re.sub(r'base_url = ".*"', f'base_url = "{shop.url}"\nallow_private = true', CONFIGS[name])
        path = tmp_path / "config.toml"
        path.write_text(f'[store_defaults]\nsigning_secrets = ["{SECRET}"]\n{text}')
        token = shop.answer.token  # type: ignore[attr-defined]
        config = config_room.load(path, {"SHOP_TOKEN": token})
        yield name, shop, client_for_store(config, name)


def test_products_orders_and_customers_are_listed_completely(api: tuple[str, ForeignShop, Client]) -> None:
    _, _, client = api
    for group in ("products", "orders", "customers", "webhooks"):
        assert [one.id for one in client.call(group, "list")] == list(range(1, COUNT + 1))
    order = client.orders.get(9)
    assert (order.id, order.total, order.currency) == (9, Decimal("9.00"), "EUR")
    assert order.customer is not None
    assert (order.customer.name, order.customer.email) == ("Ada Smith", "ada@shop.example")
    product = client.products.get(3)
    assert (product.name, product.price) == ("Mug", Decimal("1.00"))
    assert client.customers.get(4).name == "Ada Smith"


def test_lines_of_an_order_are_read_where_the_order_has_them(api: tuple[str, ForeignShop, Client]) -> None:
    name, _, client = api
    if name == "shopify":
        (line,) = client.orders.get(9).lines
        assert (line.product_id, line.quantity, line.price) == (7, 2, Decimal("4.50"))


def test_subscriptions_are_listed_created_changed_and_deleted(api: tuple[str, ForeignShop, Client]) -> None:
    name, shop, client = api
    first = next(iter(client.webhooks.list()))
    assert (first.url, first.enabled) == ("https://a.example/1", True)
    topic = {"shopify": "orders/create", "bigcommerce": "store/order/created"}[name]
    made = client.webhooks.create(topic=topic, url="https://b.example/hook")
    assert (made.topic, made.url, made.enabled) == (topic, "https://b.example/hook", True)
    assert client.webhooks.update(made.id, url="https://c.example/hook", enabled=True).url == "https://c.example/hook"
    assert client.webhooks.get(made.id).url == "https://c.example/hook"
    client.webhooks.delete(made.id)
    assert shop.requests[-1].method == "DELETE"


def test_an_empty_listing_is_empty_and_a_refusal_has_the_stores_words(api: tuple[str, ForeignShop, Client]) -> None:
    name, shop, client = api
    for rows in shop.answer.groups.values():  # type: ignore[attr-defined]
        rows.clear()
    assert list(client.products.list()) == []
    if name == "bigcommerce":
        with pytest.raises(InvalidRequest, match="The required field 'destination' was not supplied"):
            client.call("webhooks", "create", topic="store/order/created")


def test_every_operation_that_subscriptions_and_catch_up_need_is_set_in_config(tmp_path: Path) -> None:
    needed = {f"webhooks.{name}" for name in ("list", "get", "create", "update", "delete")}
    needed |= {f"{group}.{name}" for group in ("products", "orders", "customers") for name in ("list", "get")}
    for name, text in CONFIGS.items():
        path = tmp_path / f"{name}.toml"
        path.write_text(f'[store_defaults]\nsigning_secrets = ["{SECRET}"]\n{text}')
        catalogue = configured_catalogue(config_room.load(path, {"SHOP_TOKEN": "t"}), name)
        assert all(catalogue.operations[one].path.startswith(SHOPS[name]().prefix) for one in needed)


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("npm"), reason="npm is missing")
def test_the_paths_are_those_of_the_package(tmp_path: Path) -> None:
    package = re.findall(r"`(@shopify/shopify-api@[\d.]+)`", PAGE)[0]
    done = subprocess.run(
        ["npm", "pack", package], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    if done.returncode:
        pytest.skip(f"{package} cannot be downloaded: {done.stderr.strip()[-200:]}")
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "config.toml"
    path.write_text(f'[store_defaults]\nsigning_secrets = ["{SECRET}"]\n{CONFIGS["shopify"]}')
    catalogue = configured_catalogue(config_room.load(path, {"SHOP_TOKEN": "t"}), "shopify")
    for group in ("product", "order", "customer", "webhook"):
        text = (tmp_path / f"package/dist/esm/rest/admin/2024-10/{group}.mjs").read_text()
        found = re.findall(r'"http_method": "(\w+)", "operation": "\w+", "ids": \[.*?\], "path": "(.*?)"', text)
        described = {(method.upper(), path.replace("<id>", "{id}")) for method, path in found}
        for name in ("list", "get", "create", "update", "delete"):
            operation = catalogue.get(f"{group}s", name)
            assert (operation.method, operation.path.removeprefix(Shopify.prefix)) in described, operation
