"""The error of a call has the store's own words, wherever they are in the response, and names the line to set."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx2
import pytest

from receiver.config import load
from tests.support.foreign_shop import ShopAnswer, ShopRequest, foreign_shop
from tests.support.harness import SECRET
from workers.storeapi import ApiError, Client, client_for_store
from workers.storeapi.catalogue import Operation, bundled_catalogue
from workers.storeapi.error_advice import error_for
from workers.storeapi.errors import AccessDenied, InvalidRequest, ResourceNotFound, StatusError, UnexpectedResponse
from workers.storeapi.transport.call_sender import TokenHeader
from workers.storeapi.transport.http import HttpResponse

TOKEN = "a-token-of-ours-0123456789"


class Unconfirmed:
    store = "south"

    def confirmed_on(self, _: Operation) -> str:
        return ""


class Confirmed(Unconfirmed):
    def confirmed_on(self, _: Operation) -> str:
        return "2026-01-01"


def error(body: Any, status: int = 400, operation: str = "orders.delete", **headers: str) -> StatusError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = HttpResponse(status, httpx2.Headers({k.replace("_", "-"): v for k, v in headers.items()}), content)
    catalogue = bundled_catalogue()
    return error_for(response, catalogue.operations[operation], catalogue, Confirmed())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "Out of stock"}}, "Out of stock"),
        ({"error": "Out of stock"}, "Out of stock"),
        ({"message": "Out of stock"}, "Out of stock"),
        ({"code": "woo_error", "message": "Invalid parameter", "data": {"status": 400}}, "Invalid parameter"),
        ({"errors": "[API] Invalid API key"}, "[API] Invalid API key"),
        ({"errors": ["one", "two"]}, "one; two"),
        ({"errors": {"title": ["is empty"], "price": ["is negative"]}}, "title: is empty; price: is negative"),
        ({"errors": [{"detail": "Unknown SKU", "source": {"pointer": "/sku"}}]}, "Unknown SKU; pointer: /sku"),
        ({"title": "Bad", "detail": "JSON is invalid", "type": "https://a.example/e"}, "Bad; JSON is invalid"),
        ({"error": "invalid_request", "error_description": "No tenant"}, "invalid_request; No tenant"),
        ({"fault": {"faultstring": "Rate exceeded", "detail": {"errorcode": "x.y"}}}, "Rate exceeded; x.y"),
        ({"data": {"response": {"meta": {"errorMessage": "Deep"}}}}, "Deep"),
        ([{"message": "In a list"}], "In a list"),
        ("Only a text", "Only a text"),
        (b"Plain text\r\nof two lines", "Plain text of two lines"),
        (b"<html><title>502</title><style>b{}</style><body>nginx &amp; co</body>", "502 nginx & co"),
        (b'<?xml version="1.0"?><error><msg>No such shop</msg></error>', "No such shop"),
    ],
    ids=str,
)
def test_the_stores_words_are_found_wherever_they_are(body: Any, words: str) -> None:
    assert str(error(body, x_request_id="r-1")) == f"answered 400, {words} (request r-1)"


@pytest.mark.parametrize(
    "body", [{}, {"status": "x"}, {"error": None}, {"error": {"message": ""}}, [], b"", b"\xff\xfe", 7]
)
def test_a_response_without_words_is_named_by_its_status(body: Any) -> None:
    assert str(error(body, 404)).startswith("answered 404, not found")


def test_words_are_bounded_and_escaped() -> None:
    deep: Any = "deep"
    for _ in range(200):
        deep = {"error": deep}
    for body in (
        {"message": "x" * 10_000},
        {"errors": ["y" * 50] * 1000},
        b"<script>" * 100_000,
        b"z " * 100_000,
        deep,
    ):
        assert len(str(error(body))) < 400
    shown = str(error({"message": "\x1b[31mred\u202e\nnext\x00line"}))
    assert shown == "answered 400, [31mred next line"


@pytest.mark.parametrize("name", ["X-Request-Id", "Request-Id", "X-Correlation-Id", "X-Amzn-RequestId", "CF-Ray"])
def test_the_request_id_is_shown_by_any_of_its_names(name: str) -> None:
    found = error({"message": "no"}, **{name: "abc"})
    assert (found.request_id, str(found)) == ("abc", "answered 400, no (request abc)")


def test_a_404_of_the_documented_listing_has_a_hint_too() -> None:
    response, catalogue = HttpResponse(404, {}, b"{}"), bundled_catalogue()
    shown = str(error_for(response, catalogue.get("products", "list"), catalogue, Unconfirmed()))
    assert "assumed" not in shown
    assert shown == (
        "answered 404, not found. GET /api/v3/app/products is never confirmed at this store; check base_url of "
        "stores.south; if the store's API has another path before every operation, set\n"
        '[stores.south.catalogue]\nprefix = "..."'
    )


def test_a_401_names_the_scheme_that_the_store_asks_for() -> None:
    shown = str(error({"message": "who are you?"}, 401, www_authenticate='Basic realm="shop"'))
    assert shown == (
        "answered 401, who are you?. The store asks for the scheme Basic; if the token is for that, set "
        'scheme = "Basic" in stores.south.auth'
    )
    assert "scheme" not in str(error({}, 401, www_authenticate='Bearer error="invalid_token"'))


def test_the_token_is_never_shown_even_if_the_store_repeats_it() -> None:
    with foreign_shop(lambda request: ShopAnswer({"message": f"bad {request.headers['authorization']}"}, 403)) as shop:
        client = Client(shop.url, token=TOKEN, allow_private=True, store="south")
        with pytest.raises(AccessDenied) as caught:
            client.orders.get(1)
    assert str(caught.value).startswith("orders.get at south: answered 403, bad Bearer ***")
    assert TOKEN not in str(caught.value) + caught.value.excerpt


def test_a_second_key_in_the_catalogues_headers_is_not_shown_either(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    with foreign_shop(lambda request: ShopAnswer({"message": f"bad {request.headers['x-app-key']}"}, 403)) as shop:
        config.write_text(
            f'[stores.south]\nbase_url = "{shop.url}"\nallow_private = true\nauth = {{ token = "{TOKEN}" }}\n'
            f'signing_secrets = ["{SECRET}"]\ncatalogue = {{ headers = {{ x-app-key = "a-second-key-of-ours" }} }}\n'
        )
        with pytest.raises(AccessDenied, match=r"answered 403, bad \*\*\*"):
            client_for_store(load(config, {}), "south").orders.get(1)


def test_an_error_through_http_names_status_operation_request_and_words() -> None:
    answer = ShopAnswer({"errors": [{"message": "No such order"}]}, 404, {"x-request-id": "r-7"})
    with foreign_shop(lambda _: answer) as shop:
        client = Client(shop.url, token=TOKEN, allow_private=True, store="south")
        with pytest.raises(ResourceNotFound) as caught:
            client.orders.get(1)
    assert str(caught.value).startswith("orders.get at south: answered 404, No such order (request r-7). GET /api/v3")
    assert caught.value.status == 404


def test_a_page_that_is_not_json_shows_its_words() -> None:
    page = ShopAnswer(b"<html><title>Sign in</title><body>Please log in</body></html>", 200)
    with foreign_shop(lambda _: page) as shop:
        client = Client(shop.url, token=TOKEN, allow_private=True, store="south")
        with pytest.raises(UnexpectedResponse, match="a body that is not JSON: Sign in Please log in") as caught:
            list(client.products.list())
    assert str(caught.value).startswith("products.list at south: ")


def test_a_single_record_elsewhere_names_the_line_of_its_operation() -> None:
    with foreign_shop(lambda _: ShopAnswer({"order": {"id": 1}})) as shop:
        client = Client(shop.url, token=TOKEN, allow_private=True, store="south")
        with pytest.raises(UnexpectedResponse) as caught:
            client.orders.get(1)
    assert str(caught.value).endswith('set\n[stores.south.catalogue.orders.get]\ndata = "order"')


def test_a_list_elsewhere_names_where_it_is() -> None:
    with foreign_shop(lambda _: ShopAnswer({"result": {"orders": [{"id": 1}]}})) as shop:
        client = Client(shop.url, token=TOKEN, allow_private=True, store="south")
        with pytest.raises(UnexpectedResponse) as caught:
            list(client.orders.list())
    assert str(caught.value).endswith('set\n[stores.south.catalogue.envelope]\ndata = "result.orders"')


def test_a_422_without_fields_in_the_catalogue_has_no_hint_about_names() -> None:
    with pytest.raises(InvalidRequest):
        raise error({"message": "no"}, 422, "orders.delete")


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize(
    "form", ["<p>debug: {}</p>", '{{"error": "{}', '{{"error": {{"message": "bad {}"}}, "data": 1}}']
)
@pytest.mark.parametrize(("scheme", "token"), [("Bearer", "a/token-of-ours-0123"), ("Basic", "user:word-of-ours")])
def test_no_form_of_a_repeated_token_is_shown(status: int, form: str, scheme: str, token: str) -> None:
    """The header's own form, and slashes as PHP writes them in JSON; also in a 200 that is not JSON."""

    def answer(request: ShopRequest) -> ShopAnswer:
        body = form.format(request.headers["authorization"])
        return ShopAnswer((body.replace("/", "\\/") if "{" in form[:1] else body).encode(), status)

    with foreign_shop(answer) as shop:
        header = TokenHeader("authorization", scheme)
        client = Client(shop.url, token=token, token_header=header, allow_private=True)
        with pytest.raises(ApiError) as caught:
            client.products.get(1)
    shown = str(caught.value) + getattr(caught.value, "excerpt", "")
    for secret in (token, b64encode(token.encode()).decode(), token.replace("/", "\\/")):
        assert secret not in shown


@pytest.mark.parametrize(
    "answer",
    [
        ShopAnswer({"\x1b[2J" + "k" * 100_000: [{"id": 1}], "k" * 100_000: {"id": 1}}),
        ShopAnswer(b"", 302, {"location": f"http://{'k' * 20_000}.example/"}),
        ShopAnswer(b'{"data": {"id": 1, "price": 1e99999999999999999999}}'),
    ],
)
def test_text_of_the_store_in_any_error_is_bounded_and_printable(answer: ShopAnswer) -> None:
    with foreign_shop(lambda _: answer) as shop:
        client = Client(shop.url, token=TOKEN, allow_private=True)
        for call in (lambda: client.products.get(1), lambda: client.products.list().first_page()):
            with pytest.raises(ApiError) as caught:
                call()
            assert len(str(caught.value)) < 1000
            assert str(caught.value).replace("\n", "").isprintable()
