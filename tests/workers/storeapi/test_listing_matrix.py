"""Every paging style with every envelope and every fault of a listing: complete, or an error; never a silent part."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from tests.workers.conftest import SandboxRun
from workers.storeapi import Client
from workers.storeapi.errors import UnexpectedResponse

PRODUCTS, SIZE = 90, 20
PAGES = 5
STYLES = {
    "page": 'style = "page"\nfirst_page = 0',
    "offset": 'style = "offset"\nsize_param = "limit"\noffset_param = "skip"',
    "cursor": 'style = "cursor"',
    "link": 'style = "link"',
    "header": 'style = "header"\nsize_param = "limit"',
}
ENVELOPES = {
    "documented": ("", ""),
    "bare": (
        'data = ""\ntotal = "header:X-Total-Count"',
        'next_cursor = "header:X-Next-Cursor"\nnext_link = "header:X-Next-Page"',
    ),
    "named": (
        'data = "products"\nrecord = "product"\ntotal = "count"',
        'next_cursor = "next"\nnext_link = "next_page"',
    ),
    "wrapped": (
        'data = "result.items"\nitem = "product"\nrecord = "result"\ntotal = "result.total"',
        'next_cursor = "result.paging.after"\nnext_link = "result.paging.next"',
    ),
}
FAULTS = ("short_page", "repeated_page", "changing_total")
COMPLETE = {("offset", "short_page")} | {(style, "changing_total") for style in ("cursor", "link", "header")}
"""The combinations that are complete. All others are errors."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, server_url: str) -> Iterator[SandboxRun]:
    run = SandboxRun(
        tmp_path_factory.mktemp("matrix"), server_url, "--no-shopper", "--no-subscriptions", "--products", str(PRODUCTS)
    ).start()
    yield run
    run.stop()


@pytest.fixture(scope="module", params=list(product(STYLES, ENVELOPES)), ids="-".join)
def served(request: pytest.FixtureRequest, store: SandboxRun) -> tuple[str, Client]:
    """The sandbox serves this style and envelope after a reload; the client has the same catalogue."""
    style, name = request.param
    envelope, paging = ENVELOPES[name]
    store.reload(
        f"\n[stores.demo.catalogue.envelope]\n{envelope}\n"
        f"[stores.demo.catalogue.paging]\nsize = {SIZE}\n{STYLES[style]}\n{paging}\n"
    )
    return style, store.client()


def requests(store: SandboxRun) -> int:
    return sum(path == "/api/v3/app/products" for _, _, path, _ in store.log())


def test_without_faults_every_record_comes_with_one_request_for_each_page(
    store: SandboxRun, served: tuple[str, Client]
) -> None:
    _, client = served
    before = requests(store)
    assert [one.id for one in client.products.list()] == list(range(1, PRODUCTS + 1))
    assert requests(store) == before + PAGES
    assert client.products.get(7).id == 7
    assert client.products.update(7, name="Mug").name == "Mug"


def walk_with_fault(store: SandboxRun, client: Client, fault: str) -> list[int | str]:
    """The ids of a listing whose second page has a fault."""
    pages = client.products.list().pages()
    ids = [one.id for one in next(pages)]
    store.misbehave(**{fault: 1})
    try:
        ids += [one.id for one in next(pages)]
    finally:
        store.misbehave(**{fault: 0})
    return ids + [one.id for page in pages for one in page]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_second_page_is_repaired_or_an_error(
    store: SandboxRun, served: tuple[str, Client], fault: str
) -> None:
    style, client = served
    before = requests(store)
    if (style, fault) in COMPLETE:
        assert sorted(map(int, walk_with_fault(store, client, fault))) == list(range(1, PRODUCTS + 1))
    else:
        with pytest.raises(UnexpectedResponse) as caught:
            walk_with_fault(store, client, fault)
        assert str(caught.value).startswith("products.list at demo: ")
        assert "set\n[stores.demo.catalogue.paging]\nstyle = " in str(caught.value)
    assert requests(store) - before <= PAGES + 2
