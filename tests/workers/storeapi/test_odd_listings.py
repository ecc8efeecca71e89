"""Stores that list in another way than configured, most of them without a total: complete, or an error with the key."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from receiver import config as config_room
from tests.support.foreign_shop import ForeignShop, ShopAnswer, ShopRequest, foreign_shop
from tests.support.harness import SECRET
from workers.storeapi import Client, client_for_store
from workers.storeapi.errors import UnexpectedResponse
from workers.storeapi.pages import next_in_header

RECORDS = [{"id": number, "name": f"Product {number}"} for number in range(250)]
MAX_REQUESTS = 6
PAGING = "[stores.odd.catalogue.paging]\n"


@pytest.fixture
def shop() -> Iterator[ForeignShop]:
    with foreign_shop(lambda _: ShopAnswer({"data": []})) as made:
        yield made


def client(shop: ForeignShop, folder: Path, catalogue: str) -> Client:
    store = f'[stores.odd]\nbase_url = "{shop.url}"\nallow_private = true\nauth = {{ token = "t" }}\n'
    path = folder / "config.toml"
    path.write_text(f'{store}signing_secrets = ["{SECRET}"]\n{catalogue}')
    return client_for_store(config_room.load(path, {}), "odd")


def ids(listing: Any) -> list[Any]:
    return [record.id for record in listing]


def number(request: ShopRequest, name: str, default: int) -> int:
    return int(request.query.get(name, default))


# The stores. None of them reports a total.


def pages_from(first: int, name: str = "page", size: int = 100) -> Callable[[ShopRequest], ShopAnswer]:
    def answer(request: ShopRequest) -> ShopAnswer:
        length = min(number(request, "per_page", 100), size)
        start = (number(request, name, first) - first) * length
        return ShopAnswer({"data": RECORDS[start : start + length]})

    return answer


def offsets(request: ShopRequest) -> ShopAnswer:
    start = number(request, "offset", 0)
    return ShopAnswer({"data": RECORDS[start : start + min(number(request, "per_page", 100), 60)]})


def link_header(request: ShopRequest) -> ShopAnswer:
    start, length = number(request, "from", 0), number(request, "per_page", 100)
    url = f"http://{request.headers['host']}{request.path}?a=1,2&from={start + length}&per_page={length}"
    link = {"link": f'<{url}>; title="a, b"; rel="next last"'} if start + length < len(RECORDS) else {}
    return ShopAnswer({"data": RECORDS[start : start + length]}, headers=link)


def cursors(request: ShopRequest) -> ShopAnswer:
    start, length = number(request, "cursor", 0), number(request, "per_page", 100)
    following = start + length if start + length < len(RECORDS) else None
    return ShopAnswer({"data": RECORDS[start : start + length], "meta": {"next_cursor": following}})


STORES: dict[str, Callable[[ShopRequest], ShopAnswer]] = {
    "pages from 0": pages_from(0),
    "pages from 1": pages_from(1),
    "pages of at most 50": pages_from(1, size=50),
    "pages in another parameter": pages_from(1, "p"),
    "offsets": offsets,
    "Link header": link_header,
    "cursors": cursors,
}
CLIENTS = {
    "page": 'style = "page"\n',
    "page from 0": 'style = "page"\nfirst_page = 0\n',
    "offset": 'style = "offset"\n',
    "offset in page": 'style = "offset"\noffset_param = "page"\n',
    "page in offset": 'style = "page"\npage_param = "offset"\n',
    "cursor": 'style = "cursor"\n',
    "link": 'style = "link"\n',
    "header": 'style = "header"\n',
}
RIGHT = {
    ("pages from 1", "page"),
    ("pages from 0", "page from 0"),
    ("pages of at most 50", "page"),
    ("offsets", "offset"),
    ("Link header", "header"),
    ("cursors", "cursor"),
}


@pytest.mark.parametrize("style", CLIENTS)
@pytest.mark.parametrize("store", STORES)
def test_without_a_total_a_wrong_style_is_an_error_and_the_right_one_is_complete(
    shop: ForeignShop, tmp_path: Path, store: str, style: str
) -> None:
    shop.answer = STORES[store]
    products = client(shop, tmp_path, PAGING + CLIENTS[style]).products
    if (store, style) in RIGHT:
        assert ids(products.list()) == list(range(250))
        assert len(shop.requests) <= 8
        asked = len(shop.requests)
        assert ids(products.list()) == list(range(250))
        assert len(shop.requests) <= 2 * asked - (style == "page")  # its paging is asked about once
    else:
        with pytest.raises(UnexpectedResponse) as caught:
            ids(products.list())
        assert str(caught.value).startswith("products.list at odd: ")
        assert "set\n[stores.odd.catalogue.paging]\n" in str(caught.value)
        assert len(shop.requests) <= MAX_REQUESTS


def test_a_store_that_counts_from_zero_works_with_the_line_that_the_error_names(
    shop: ForeignShop, tmp_path: Path
) -> None:
    shop.answer = pages_from(0)
    with pytest.raises(UnexpectedResponse, match="the first page is not the one without page") as caught:
        ids(client(shop, tmp_path, "").products.list())
    lines = str(caught.value).split("set\n", 1)[1]
    assert lines == "[stores.odd.catalogue.paging]\nfirst_page = 0"
    assert ids(client(shop, tmp_path, lines).products.list()) == list(range(250))


def test_one_page_of_a_store_that_counts_from_zero_is_not_an_empty_listing(shop: ForeignShop, tmp_path: Path) -> None:
    shop.answer = lambda request: ShopAnswer({"data": RECORDS[:9] if request.query.get("page", "0") == "0" else []})
    with pytest.raises(UnexpectedResponse, match="first_page = 0"):
        ids(client(shop, tmp_path, "").products.list())


@pytest.mark.parametrize("style", ["page", "offset", "cursor"])
def test_an_ignored_parameter_is_found_although_a_field_changes_in_each_row(
    shop: ForeignShop, tmp_path: Path, style: str
) -> None:
    def answer(_: ShopRequest) -> ShopAnswer:
        rows = [{**record, "views": len(shop.requests) * 1000 + at} for at, record in enumerate(RECORDS[:100])]
        return ShopAnswer({"data": rows, "meta": {"next_cursor": f"after {len(shop.requests)}", "total": 250}})

    shop.answer = answer
    with pytest.raises(UnexpectedResponse, match="the same page twice, so it does not page by") as caught:
        ids(client(shop, tmp_path, f'{PAGING}style = "{style}"').products.list())
    assert len(shop.requests) == 2
    assert "style = " in str(caught.value)


def test_a_listing_ends_at_the_bound_on_pages(shop: ForeignShop, tmp_path: Path) -> None:
    """Records without an id, with a field that changes in each: only the number of pages shows that it has no end."""
    shop.answer = lambda _: ShopAnswer(
        {"data": [{"views": len(shop.requests)}], "meta": {"next_cursor": f"after {len(shop.requests)}"}}
    )
    products = client(shop, tmp_path, f'{PAGING}style = "cursor"\nmax_pages = 30\n').products
    with pytest.raises(UnexpectedResponse, match="more than 30 pages") as caught:
        list(products.list())
    assert str(caught.value).endswith("set\n[stores.odd.catalogue.paging]\nmax_pages = 300")
    assert len(shop.requests) == 30


def test_equal_pages_of_records_without_ids_are_a_repeated_page(shop: ForeignShop, tmp_path: Path) -> None:
    shop.answer = lambda _: ShopAnswer({"data": [{"views": 1}, {"views": 2}], "meta": {"total": 9}})
    with pytest.raises(UnexpectedResponse, match="the same page twice"):
        list(client(shop, tmp_path, "").products.list())


def test_a_total_that_counts_only_the_page_is_found(shop: ForeignShop, tmp_path: Path) -> None:
    answer = pages_from(1)
    shop.answer = lambda request: ShopAnswer(
        {**answer(request).body, "meta": {"total": len(answer(request).body["data"])}}
    )
    with pytest.raises(UnexpectedResponse):
        ids(client(shop, tmp_path, "").products.list())


def test_a_short_page_in_the_middle_is_an_error_without_a_total(shop: ForeignShop, tmp_path: Path) -> None:
    answer = pages_from(1)

    def without_some(request: ShopRequest) -> ShopAnswer:
        rows = answer(request).body["data"]
        return ShopAnswer({"data": rows[:60] if request.query.get("page") == "2" else rows})

    shop.answer = without_some
    with pytest.raises(UnexpectedResponse, match="page 2 has fewer records than the first one"):
        ids(client(shop, tmp_path, "").products.list())


@pytest.mark.parametrize(("style", "name", "second"), [("page", "page", "2"), ("offset", "offset", "60")])
def test_an_empty_page_in_the_middle_is_an_error_without_a_total(
    shop: ForeignShop, tmp_path: Path, style: str, name: str, second: str
) -> None:
    answer = pages_from(1) if style == "page" else offsets
    shop.answer = lambda request: ShopAnswer({"data": []}) if request.query.get(name) == second else answer(request)
    with pytest.raises(UnexpectedResponse, match="page 2 has fewer records than the first one"):
        ids(client(shop, tmp_path, f'{PAGING}style = "{style}"\n').products.list())


def test_a_total_that_falls_is_an_error_because_records_move_to_earlier_pages(
    shop: ForeignShop, tmp_path: Path
) -> None:
    def after_deletions(request: ShopRequest) -> ShopAnswer:
        left = RECORDS[50:] if shop.requests[1:] else RECORDS
        start = (number(request, "page", 1) - 1) * 100
        return ShopAnswer({"data": left[start : start + 100], "meta": {"total": len(left)}})

    shop.answer = after_deletions
    with pytest.raises(UnexpectedResponse, match="fell from 250 to 200 during the listing"):
        ids(client(shop, tmp_path, "").products.list())


@pytest.mark.parametrize("start", [1, 100])
def test_records_with_repeated_ids_do_not_count_twice(shop: ForeignShop, tmp_path: Path, start: int) -> None:
    """The second page begins before the end of the first, so that its last records are missing."""

    def overlapping(request: ShopRequest) -> ShopAnswer:
        at = {1: 0, 2: start, 3: 200}.get(number(request, "page", 1), 250)
        return ShopAnswer({"data": RECORDS[at : at + 100][: 250 - at], "meta": {"total": "250"}})

    shop.answer = overlapping
    if start == 100:
        assert ids(client(shop, tmp_path, "").products.list()) == list(range(250))
        return
    with pytest.raises(UnexpectedResponse, match=r"returned 250 \(99 of them with an id that came before\)"):
        ids(client(shop, tmp_path, "").products.list())


def test_cursors_in_a_circle_are_an_error(shop: ForeignShop, tmp_path: Path) -> None:
    def circle(request: ShopRequest) -> ShopAnswer:
        at = number(request, "cursor", 0)
        return ShopAnswer({"data": RECORDS[at : at + 100], "meta": {"next_cursor": 0 if at == 100 else 100}})

    shop.answer = circle
    with pytest.raises(UnexpectedResponse, match="does not page by cursor"):
        ids(client(shop, tmp_path, f'{PAGING}style = "cursor"').products.list())
    assert len(shop.requests) == 3


def test_a_null_list_is_empty_and_a_missing_one_is_an_error(shop: ForeignShop, tmp_path: Path) -> None:
    shop.answer = lambda _: ShopAnswer({"data": None, "meta": {"total": 0}})
    assert ids(client(shop, tmp_path, "").products.list()) == []
    shop.answer = lambda _: ShopAnswer({"data": None, "meta": {"total": 5}})
    with pytest.raises(UnexpectedResponse, match="reports 5 records but returned 0"):
        ids(client(shop, tmp_path, "").products.list())
    shop.answer = lambda _: ShopAnswer({"items": []})
    with pytest.raises(UnexpectedResponse, match="no list of records at 'data'"):
        ids(client(shop, tmp_path, "").products.list())


def test_a_listing_from_a_page_on_is_not_compared_with_the_total(shop: ForeignShop, tmp_path: Path) -> None:
    answer = pages_from(1)
    shop.answer = lambda request: ShopAnswer({**answer(request).body, "meta": {"total": 250}})
    assert ids(client(shop, tmp_path, "").products.list(page=3)) == list(range(200, 250))


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ('<https://a.example/?page=2>; rel="next"', "https://a.example/?page=2"),
        ("<https://a.example/?page=2>;rel=next", "https://a.example/?page=2"),
        ('<?page=1>; rel="prev", <?page=3&x=a,b;c>; title="x, y"; rel="last NEXT"', "?page=3&x=a,b;c"),
        ('<?page=9>; rel="last"', ""),
        ('<?page=9>; rel="nextish"', ""),
        ('<?page=9>; title="rel=next"', ""),
        ("next", ""),
        ("", ""),
    ],
)
def test_the_next_link_is_read_from_a_link_header(value: str, url: str) -> None:
    assert next_in_header(value) == url


@pytest.mark.parametrize("body", ["no data", 5, True, {"data": None, "error": {"message": "try later"}}])
def test_an_answer_without_a_list_is_no_empty_listing(shop: ForeignShop, tmp_path: Path, body: Any) -> None:
    shop.answer = lambda _: ShopAnswer(body)
    with pytest.raises(UnexpectedResponse, match="no list of records at 'data'"):
        ids(client(shop, tmp_path, "").products.list())


@pytest.mark.parametrize("reporting", [{1}, {2, 3}])
def test_a_total_on_some_pages_is_compared(shop: ForeignShop, tmp_path: Path, reporting: set[int]) -> None:
    def answer(request: ShopRequest) -> ShopAnswer:
        page = number(request, "page", 1)
        rows = RECORDS[(page - 1) * 100 : page * 100] if page < 3 else []
        return ShopAnswer({"data": rows, "meta": {"total": 250} if page in reporting else {}})

    shop.answer = answer
    with pytest.raises(UnexpectedResponse, match="reports 250 records but returned 200"):
        ids(client(shop, tmp_path, "").products.list())


def test_a_total_that_counts_the_page_is_found_although_the_store_limits_pages(
    shop: ForeignShop, tmp_path: Path
) -> None:
    def answer(request: ShopRequest) -> ShopAnswer:
        page = number(request, "page", 1)
        rows = RECORDS[(page - 1) * 50 : page * 50]
        return ShopAnswer({"data": rows, "meta": {"total": len(rows)}})

    shop.answer = answer
    with pytest.raises(UnexpectedResponse, match="reports 50 records but returned 100"):
        ids(client(shop, tmp_path, "").products.list())


def test_a_hostile_link_header_is_read_in_a_moment() -> None:
    began = time.monotonic()
    assert next_in_header("<" * 50_000) == ""
    assert time.monotonic() - began < 5
