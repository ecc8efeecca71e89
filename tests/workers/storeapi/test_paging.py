"""Listings: every record once, one page at a time, in constant memory, for each paging style."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from receiver.contract.records import Product
from tests.workers.conftest import SandboxRun
from workers.storeapi import Client
from workers.storeapi.errors import UnexpectedResponse


def paging(style: str, size: int = 100) -> str:
    return f'\n[stores.demo.catalogue.paging]\nstyle = "{style}"\nsize = {size}\n'


def large_store(sandbox: SandboxRun, products: int, config: str) -> Client:
    """Reset the store to a number of products; return a client with the paging of `config`."""
    sandbox.do("reset", products=products)
    return sandbox.client_from(sandbox.with_config(config), timeout=100)


def add_products(client: Client, count: int) -> None:
    client.products.bulk_import(products=[{"name": f"New {n}", "price": "1.00"} for n in range(count)])


def listing_requests(sandbox: SandboxRun) -> int:
    return sum(path == "/api/v3/app/products" and method == "GET" for _, method, path, _ in sandbox.log())


def walk_while_more_are_added(client: Client, products: Iterator[Product]) -> list[int | str]:
    """The ids of a listing that is read while products are added."""
    ids = []
    for at, product in enumerate(products):
        ids.append(product.id)
        if at % 100 == 37 and at < 2000:
            add_products(client, 7)
    return ids


@pytest.mark.parametrize("style", ["page", "cursor", "link"])
def test_every_product_is_listed_once_with_one_request_for_each_page(sandbox: SandboxRun, style: str) -> None:
    client = large_store(sandbox, 1000, paging(style))
    found = [product.id for product in client.products.list()]
    assert found == list(range(1, 1001))
    assert listing_requests(sandbox) == 10


def test_a_listing_requests_only_the_pages_that_are_read(sandbox: SandboxRun) -> None:
    pages = sandbox.client().products.list()
    assert listing_requests(sandbox) == 0
    assert next(iter(pages)).id == 1
    assert pages.total == 40
    assert listing_requests(sandbox) == 1


def test_with_a_cursor_no_product_is_missing_or_repeated_while_others_are_added(sandbox: SandboxRun) -> None:
    client = large_store(sandbox, 1000, paging("cursor"))
    ids = walk_while_more_are_added(client, iter(client.products.list()))
    assert len(ids) == len(set(ids))
    assert set(range(1, 1001)) <= set(ids)
    assert len(ids) > 1000


def test_with_page_numbers_repeated_products_are_dropped_while_others_are_added(sandbox: SandboxRun) -> None:
    """Newest first, so that each new product moves an old one to the next page, where it is listed again."""
    client = large_store(sandbox, 1000, paging("page"))
    ids = walk_while_more_are_added(client, iter(client.products.list(sort="-id")))
    assert len(ids) == len(set(ids))
    assert set(ids) == set(range(1, 1001))


def peak_of_a_walk(client: Client) -> tuple[int, int]:
    """Number of records and peak memory of a whole listing; the first page is not measured, because it fills caches."""
    client.products.list().first_page()
    tracemalloc.start()
    count = sum(1 for _ in client.products.list())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return count, peak


def test_memory_does_not_grow_with_the_listing(sandbox: SandboxRun) -> None:
    count, peak = peak_of_a_walk(large_store(sandbox, 6000, paging("cursor")))
    assert count == 6000
    assert peak < 3_000_000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("style", ["page", "cursor"])
def test_a_hundred_thousand_products_are_listed_in_constant_memory(sandbox: SandboxRun, style: str) -> None:
    count, peak = peak_of_a_walk(large_store(sandbox, 100_000, paging(style)))
    print(f"\n{style}: {count:,} products in {listing_requests(sandbox) - 1:,} requests, peak {peak / 1e6:.1f} MB")
    assert count == 100_000
    assert listing_requests(sandbox) == 1001  # one of them is the first page of peak_of_a_walk
    assert peak < 5_000_000


def test_another_paging_style_is_an_error_and_not_a_short_list(sandbox: SandboxRun) -> None:
    client = large_store(sandbox, 300, paging("cursor") + 'next_cursor = "meta.after"\n')
    with pytest.raises(UnexpectedResponse) as caught:
        list(client.products.list())
    assert "reports 300 records but returned 100" in str(caught.value)
    assert '[stores.demo.catalogue.paging]\nstyle = "..."' in str(caught.value)


def test_a_store_that_repeats_a_page_is_an_error(sandbox: SandboxRun) -> None:
    client = large_store(sandbox, 300, '\n[catalogue.paging]\npage_param = "seite"\n')
    with pytest.raises(UnexpectedResponse, match="the same page twice, so it does not page by seite"):
        list(client.products.list())


def test_another_envelope_is_read_where_config_says(make_sandbox: Callable[..., SandboxRun]) -> None:
    envelope = '\n[catalogue.envelope]\ndata = "result.items"\ntotal = "result.count"\n'
    sandbox = make_sandbox("--no-shopper", "--no-subscriptions", "--products", "150", more=envelope)
    assert len(list(sandbox.client().products.list())) == 150
    sandbox.config_file.write_text(sandbox.config_file.read_text().replace("result.items", "data"))
    with pytest.raises(UnexpectedResponse, match=r"\[stores\.demo\.catalogue\.envelope\]\ndata"):
        list(sandbox.client().products.list())
