"""Writes: what an operation writes to, and which data its echo has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given

from tests.support.foreign_shop import ShopAnswer, foreign_shop
from tests.workers.conftest import SandboxRun
from tests.workers.storeapi.test_records import documents
from workers.storeapi import ApiError, Client, exact_json
from workers.storeapi.catalogue import bundled_catalogue
from workers.storeapi.writes import Write, data_digest, echo_digests, writes_in

MUG = {"id": 7, "name": "Mug", "price": "4.50", "updated_at": 1}


def digest(text: str, *without: str) -> str:
    return exact_json.digest(exact_json.loads(text.encode()), without=without)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
        ('{"a": 1.50}', '{"a": 1.5}'),
        ('{"a": 10}', '{"a": 1e1}'),
        ('{"a": 0.0}', '{"a": -0}'),
        ('{"a": 12345678901234567890123456789012345678900}', '{"a": 1.23456789012345678901234567890123456789e40}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
    ],
)
def test_documents_that_are_equal_as_json_have_one_digest(one: str, other: str) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": 0}', '{"a": false}'),
        ('{"a": null}', "{}"),
        ('{"a": "number 1e0"}', '{"a": 1}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": []}', '{"a": {}}'),
        ('{"a": 1.0000000000000000000000000000000000001}', '{"a": 1}'),
        ('{"a": 12345678901234567890123456789012345678901}', '{"a": 12345678901234567890123456789012345678902}'),
        ('{"a": "b "}', '{"a": "b"}'),
    ],
)
def test_any_other_difference_counts(one: str, other: str) -> None:
    assert digest(one) != digest(other)


@given(documents, documents)
def test_two_documents_have_one_digest_only_if_they_are_equal(one: Any, other: Any) -> None:
    written = exact_json.loads(exact_json.dumps(one))
    assert exact_json.digest(one) == exact_json.digest(written)
    if exact_json.dumps(one) != exact_json.dumps(other) and exact_json.digest(one) == exact_json.digest(other):
        assert one == other


def test_volatile_fields_are_left_out_by_path_and_no_others() -> None:
    one = '{"updated_at": 1, "meta": {"updated_at": 1, "by": "x"}, "lines": [{"sku": "a", "updated_at": 1}]}'
    other = one.replace("1", "2")
    paths = ("updated_at", "meta.updated_at", "lines.*.updated_at")
    assert digest(one, *paths) == digest(other, *paths)
    for missing in range(3):
        some = paths[:missing] + paths[missing + 1 :]
        assert digest(one, *some) != digest(other, *some)
    assert digest(one, *paths) != digest(one.replace('"x"', '"y"'), *paths)


def test_data_that_cannot_be_compared_has_no_digest() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert [data_digest(one, ()) for one in ([], None, "x", deep)] == ["", "", "", ""]


def write(shown: Any, **sent: Any) -> Write:
    return Write("product", "7", "updated", shown, sent)


def test_the_echo_of_a_write_has_the_data_of_its_answer() -> None:
    answer = {**MUG, "price": "5.00", "updated_at": 2}
    digests = echo_digests(write(answer, price="5.00"), MUG, ["updated_at"])
    assert digests[0] == data_digest({**answer, "updated_at": 3}, ["updated_at"])
    assert digests[1] == f"{data_digest({'price': None}, [])}.{data_digest({'price': '5.00'}, [])}"
    by_others_too = {**answer, "name": "Large mug"}
    assert echo_digests(write(by_others_too, price="5.00"), MUG, ["updated_at"])[1] == f"!{digests[1]}"
    assert echo_digests(write(answer, price="5.00"), None, ["updated_at"])[1] == f"!{digests[1]}", "it knew nothing"


def test_a_write_that_changes_nothing_has_an_echo_if_the_writer_knew_exactly_that_data() -> None:
    same = echo_digests(write({**MUG, "updated_at": 2}, price="4.50"), MUG, ["updated_at"])
    assert same == (data_digest(MUG, ["updated_at"]), "")
    renamed_by_others = {**MUG, "name": "Large mug"}
    assert echo_digests(write(renamed_by_others, price="4.50"), MUG, ["updated_at"]) == ("", "")


def test_an_answer_that_does_not_show_what_was_sent_has_no_echo() -> None:
    """If the store's events show as little, all its changes look the same."""
    assert echo_digests(write({"id": 7}, price="5.00"), {"id": 7}, []) == ("", "")
    assert echo_digests(write(None, price="5.00"), None, []) == ("", "")


def test_a_write_that_was_sent_again_has_no_echo_if_the_answer_shows_more() -> None:
    """The first one may have had the effect, and a person may have edited the resource before the second."""
    again = Write("product", "7", "updated", {**MUG, "price": "5.00"}, {"price": "5.00"}, resent=True)
    assert echo_digests(again, MUG, [])[0]
    edited = Write("product", "7", "updated", {**MUG, "price": "5.00", "name": "Cup"}, {"price": "5.00"}, resent=True)
    assert echo_digests(edited, MUG, []) == ("", "")


def test_the_client_knows_that_it_sent_a_write_again() -> None:
    found: list[Write] = []

    class Collector:
        @contextmanager
        def watch(self, *_: str) -> Iterator[Callable[[Iterator[Write]], None]]:
            yield found.extend

    answers = [ShopAnswer({}, 502), ShopAnswer({"data": MUG}), ShopAnswer({"data": MUG})]
    with foreign_shop(lambda _: answers.pop(0)) as shop:
        client = Client(shop.url, token="t", allow_private=True, watcher=Collector())
        client.products.update(7, price="4.50")
        client.products.update(7, price="4.50")
    assert [one.resent for one in found] == [True, False]


def test_a_resource_with_a_very_long_id_is_not_watched() -> None:
    catalogue = bundled_catalogue()
    create = catalogue.get("products", "create")
    assert [*writes_in(create, catalogue, "", {}, {"id": "x" * 201})] == []
    assert [one.resource_id for one in writes_in(create, catalogue, "", {}, {"id": "x" * 200})] == ["x" * 200]


class Watcher:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @contextmanager
    def watch(self, kind: str, resource_id: str) -> Iterator[Callable[[Iterator[Write]], None]]:
        self.seen.append(f"{kind} {resource_id}".strip())
        yield lambda found: self.seen.extend(
            (one.action, one.kind, one.resource_id, one.shown and one.shown["id"]) for one in found
        )

    def take(self) -> list[Any]:
        seen, self.seen = self.seen, []
        return seen


def test_each_write_of_a_client_is_watched(sandbox: SandboxRun) -> None:
    watcher = Watcher()
    client: Client = sandbox.client(watcher=watcher)
    mug = client.products.create(name="Mug", price="4.50")
    one = str(mug.id)
    assert watcher.take() == ["product", ("created", "product", one, mug.id)]
    client.products.get(mug.id)
    list(client.products.list(per_page=1))
    assert watcher.take() == [], "reading is no write"
    client.products.update(mug.id, price="5.00")
    assert watcher.take() == [f"product {one}", ("updated", "product", one, mug.id)]
    client.products.set_inventory(mug.id, stock=3)
    client.products.create_variant(mug.id, name="Blue")
    hidden = [f"product {one}", ("updated", "product", one, None)]
    assert watcher.take() == hidden * 2, "the answers show another record"
    client.products.set_inventory_bulk(inventory=[{"id": mug.id, "stock": 5}])
    assert watcher.take() == ["product", ("updated", "product", one, None)]
    order = client.orders.create(lines=[{"product_id": mug.id, "quantity": 1}])
    copy = client.orders.duplicate(order.id)
    assert watcher.take()[-2:] == [f"order {order.id}", ("created", "order", str(copy.id), copy.id)]
    with pytest.raises(ApiError):
        client.products.update(999_999, price="1.00")
    assert watcher.take() == ["product 999999"]


def test_a_number_that_json_cannot_hold_is_not_sent_as_null(sandbox: SandboxRun) -> None:
    client: Client = sandbox.client()
    mug = client.products.create(name="Mug", price="4.50")
    with pytest.raises(TypeError, match="NaN and Infinity cannot be sent as JSON"):
        client.products.update(mug.id, description=math.nan)
    with pytest.raises(TypeError, match="NaN and Infinity cannot be sent as JSON"):
        client.request("PATCH", f"products/{mug.id}", body={"sizes": [1.5, math.inf]})
    client.products.update(mug.id, description=None)
