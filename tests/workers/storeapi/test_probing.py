"""The probe proposes config lines from what a foreign store answers, and these lines are enough."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from receiver import config as config_room
from tests.support.foreign_shop import ForeignShop, ShopAnswer, ShopRequest, foreign_shop
from tests.support.harness import SECRET
from workers.storeapi import Client, client_for_store
from workers.storeapi.probing import Prober

COUNT = 45


def records(group: str) -> list[dict[str, Any]]:
    more = {
        "products": {"title": "Mug", "price": "1.00", "stock_quantity": 3},
        "orders": {"state": "paid", "grand_total": "9.00", "line_items": []},
        "customers": {"full_name": "Ada", "email": "ada@shop.example"},
        "webhooks": {"event": "order.paid", "address": "https://a.example", "active": True},
    }
    return [{"id": f"{group}-{number}", **more[group]} for number in range(COUNT)]


RECORDS = {group: records(group) for group in ("products", "orders", "customers", "webhooks")}
Page = tuple[list[dict[str, Any]], dict[str, Any], dict[str, str]]
"""The records of a page, what the document says about the next one, and headers."""


def by_page(first: int, name: str) -> Callable[[list[Any], ShopRequest], Page]:
    def page(rows: list[Any], request: ShopRequest) -> Page:
        size = min(int(request.query.get("limit", 20)), 20)
        at = (int(request.query.get(name, first)) - first) * size
        return (rows[at : at + size] if at >= 0 else []), {}, {}

    return page


def by_offset(rows: list[Any], request: ShopRequest) -> Page:
    at, size = int(request.query.get("skip", 0)), int(request.query.get("page_size", 20))
    return rows[at : at + size], {}, {}


def by_cursor(rows: list[Any], request: ShopRequest) -> Page:
    at, size = int(request.query.get("after", "x0")[1:]), int(request.query.get("limit", 20))
    return rows[at : at + size], {"after": f"x{at + size}" if at + size < len(rows) else None}, {}


def _next_url(rows: list[Any], request: ShopRequest) -> tuple[list[Any], str]:
    at, size = int(request.query.get("at", 0)), int(request.query.get("per_page", 20))
    more = at + size < len(rows)
    return rows[at : at + size], f"{request.path}?at={at + size}&per_page={size}" if more else ""


def by_link(rows: list[Any], request: ShopRequest) -> Page:
    found, url = _next_url(rows, request)
    return found, {"next": url or None}, {}


def by_header(rows: list[Any], request: ShopRequest) -> Page:
    found, url = _next_url(rows, request)
    return found, {}, {"link": f'<{url}>; rel="next"'} if url else {}


STYLES: dict[str, Callable[[list[Any], ShopRequest], Page]] = {
    "page from 1": by_page(1, "page"),
    "page from 0": by_page(0, "p"),
    "offset": by_offset,
    "cursor": by_cursor,
    "link": by_link,
    "header": by_header,
}


def bare(group: str, rows: list[Any], following: dict[str, Any]) -> Any:
    return rows if not following else {"items": rows, **following}


def named(group: str, rows: list[Any], following: dict[str, Any]) -> Any:
    return {group: rows, "total_count": COUNT, **following}


def wrapped(group: str, rows: list[Any], following: dict[str, Any]) -> Any:
    return {"result": {"list": [{"entry": row} for row in rows], "count": len(rows)}, "paging": following}


ENVELOPES = {"bare": (bare, ""), "named": (named, "{record}"), "wrapped": (wrapped, "entry")}
PATHS = {
    "rest": ("/rest/v1/{name}", {"webhooks": "hooks"}),
    "json": ("/admin/{name}.json", {}),
    "documented": ("/api/v3/app/{name}", {}),
}


def shop_that(style: str, envelope: str, paths: str) -> Callable[[ShopRequest], ShopAnswer]:
    shape, single = ENVELOPES[envelope]
    template, names = PATHS[paths]

    def answer(request: ShopRequest) -> ShopAnswer:
        assert request.method == "GET"
        for group, rows in RECORDS.items():
            name = names.get(group, group)
            if request.path == template.format(name=name):
                found, following, headers = STYLES[style](rows, request)
                return ShopAnswer(shape(group, found, following), headers=headers)
            for row in rows:
                if request.path == template.format(name=f"{name}/{row['id']}"):
                    key = single.format(record=group[:-1])
                    return ShopAnswer({key: row} if key else row)
        return ShopAnswer({"error": "no such path"}, 404)

    return answer


@pytest.fixture(scope="module")
def shop() -> Iterator[ForeignShop]:
    with foreign_shop(lambda _: ShopAnswer()) as made:
        yield made


def client(shop: ForeignShop, folder: Path, catalogue: str = "") -> tuple[Client, config_room.Config]:
    store = f'[stores.odd]\nbase_url = "{shop.url}"\nallow_private = true\nauth = {{ token = "t" }}\n'
    path = folder / "config.toml"
    path.write_text(f'{store}signing_secrets = ["{SECRET}"]\n{catalogue}')
    config = config_room.load(path, {})
    return client_for_store(config, "odd"), config


@pytest.mark.parametrize(
    ("style", "envelope", "paths"),
    [
        (style, envelope, list(PATHS)[(at + turn) % len(PATHS)])
        for at, style in enumerate(STYLES)
        for turn, envelope in enumerate(ENVELOPES)
    ],
)
def test_the_proposed_lines_are_enough(
    shop: ForeignShop, tmp_path: Path, style: str, envelope: str, paths: str
) -> None:
    shop.answer = shop_that(style, envelope, paths)
    shop.requests.clear()
    prober = Prober(*client(shop, tmp_path))
    prober.run()
    assert len(shop.requests) < 150
    proposed = prober.toml()
    corrected, _ = client(shop, tmp_path, proposed)
    for group, rows in RECORDS.items():
        assert [one.id for one in corrected.call(group, "list")] == [one["id"] for one in rows], proposed
        assert corrected.call(group, "get", f"{group}-7").id == f"{group}-7"
    product, order = next(iter(corrected.products.list())), next(iter(corrected.orders.list()))
    assert (product.name, order.status, str(order.total), order.lines) == ("Mug", "paid", "9.00", ())
    assert next(iter(corrected.webhooks.list())).url == "https://a.example"


def test_a_store_that_is_as_the_catalogue_says_gets_no_proposal(shop: ForeignShop, tmp_path: Path) -> None:
    def answer(request: ShopRequest) -> ShopAnswer:
        assert request.method == "GET"
        page, size = int(request.query.get("page", 1)), int(request.query.get("per_page", 20))
        fields = ("name", "price", "sku", "stock", "status", "total", "customer", "lines", "email", "metadata", "topic")
        rows = [{"id": number, **dict.fromkeys((*fields, "url", "enabled", "secret"), 1)} for number in range(COUNT)]
        if request.path.count("/") > 4:
            return ShopAnswer({"data": rows[0]})
        return ShopAnswer({"data": rows[(page - 1) * size : page * size], "meta": {"total": COUNT}})

    shop.answer = answer
    prober = Prober(*client(shop, tmp_path))
    prober.run()
    assert (prober.toml(), prober.corrections) == ("", [])


def test_each_line_says_what_was_seen_and_text_of_the_store_cannot_leave_its_comment(
    shop: ForeignShop, tmp_path: Path
) -> None:
    odd = '"]#[redis]url="x'
    shop.answer = lambda request: ShopAnswer(
        {odd: [{"id": 1, "title\n[redis]\n": 1}]} if request.path == "/v2/products" else {},
        200 if "v2" in request.path else 404,
    )
    prober = Prober(*client(shop, tmp_path))
    prober.run()
    assert set(tomllib.loads(prober.toml())) == {"stores"}
    assert "/v2/products answered 200, and /api/v3/app/products answered 404" in prober.toml()


@pytest.mark.parametrize("body", [{"data": [1, 2]}, {"data": ["a"]}, {"data": [[1]]}, {"data": [None]}, "x", 5, None])
def test_a_store_that_lists_no_records_gets_no_proposals(shop: ForeignShop, tmp_path: Path, body: Any) -> None:
    shop.answer = lambda _: ShopAnswer(body)
    prober = Prober(*client(shop, tmp_path))
    prober.run()
    assert prober.toml() == ""


@pytest.mark.parametrize("status", [302, 401, 403])
def test_pages_for_people_at_a_tried_path_do_not_end_the_search(shop: ForeignShop, tmp_path: Path, status: int) -> None:
    def answer(request: ShopRequest) -> ShopAnswer:
        if request.path == "/products":
            return ShopAnswer(b"", status, {"location": "/collections/all"})
        found = {"data": [{"id": 1, "name": "Mug", "price": "1.00"}], "meta": {"total": 1}}
        return ShopAnswer(found) if request.path.startswith("/api/v1/products") else ShopAnswer({}, 404)

    shop.answer = answer
    prober = Prober(*client(shop, tmp_path))
    prober.run()
    assert 'prefix = "/api/v1"' in prober.toml()
    assert {request.method for request in shop.requests} == {"GET"}
