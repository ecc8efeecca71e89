"""A store that differs from the catalogue: the error names the config lines to set, and those lines are enough."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from receiver.contract.records import RecordError
from tests.workers.conftest import SandboxRun
from workers.storeapi.errors import ApiError, InvalidRequest, ResourceNotFound

STORE_DIFFERENCES = """
[catalogue.orders.update_status]
method = "PUT"
path = "/api/v3/app/orders/{id}/state"
[catalogue.webhooks]
fields = { topic = "event", url = "address", enabled = "is_active" }
[catalogue.products.update]
method = "PUT"
"""


def named_lines(error: ApiError) -> str:
    """The config lines in the message of an error."""
    return str(error).split("set\n", 1)[1]


@pytest.fixture(scope="module")
def store_that_differs(tmp_path_factory: pytest.TempPathFactory, server_url: str) -> Iterator[SandboxRun]:
    folder = tmp_path_factory.mktemp("differs")
    sandbox = SandboxRun(folder, server_url, "--no-shopper", "--no-subscriptions", more=STORE_DIFFERENCES).start()
    sandbox.config_file.write_text(sandbox.config_file.read_text().replace(STORE_DIFFERENCES, ""))
    yield sandbox
    sandbox.stop()


@pytest.fixture
def differs(store_that_differs: SandboxRun) -> SandboxRun:
    """A sandbox store with other paths and names, which the client's config does not have."""
    store_that_differs.do("reset")
    return store_that_differs


def test_an_operation_at_another_path_works_with_the_lines_that_the_error_names(
    differs: SandboxRun, redis: Redis
) -> None:
    client = differs.client(redis)
    order = client.orders.create(lines=[{"product_id": 1}])
    with pytest.raises(ResourceNotFound) as caught:
        client.orders.update_status(order.id, status="paid")
    assert "POST /api/v3/app/orders/{id}/status is assumed and never confirmed at this store" in str(caught.value)
    lines = named_lines(caught.value)
    assert lines == '[stores.demo.catalogue.orders.update_status]\nmethod = "..."\npath = "..."'
    lines = lines.replace('method = "..."', 'method = "PUT"').replace('"..."', '"/api/v3/app/orders/{id}/state"')
    corrected = differs.client_from(differs.with_config(lines), redis)
    assert corrected.orders.update_status(order.id, status="paid").status == "paid"


def test_fields_with_other_names_work_with_the_lines_that_the_error_names(differs: SandboxRun, redis: Redis) -> None:
    """The store expects `event` and `address`; its own error message names them."""
    with pytest.raises(InvalidRequest) as caught:
        differs.client(redis).webhooks.create(topic="order.paid", url="https://a.example/hook")
    assert "answered 422, event is required" in str(caught.value)
    lines = named_lines(caught.value)
    assert lines == '[stores.demo.catalogue.webhooks]\nfields = { topic = "..." }'
    lines = lines.replace('topic = "..."', 'topic = "event", url = "address", enabled = "is_active"')
    corrected = differs.client_from(differs.with_config(lines), redis)
    made = corrected.webhooks.create(topic="order.paid", url="https://a.example/hook")
    assert (made.topic, made.url, made.enabled) == ("order.paid", "https://a.example/hook", True)
    assert made["address"] == "https://a.example/hook"
    changed = corrected.webhooks.update(made.id, url="https://b.example/hook", enabled=False)
    assert (changed.url, changed.enabled) == ("https://b.example/hook", False)


def test_reading_a_missing_field_names_the_line_to_set(differs: SandboxRun) -> None:
    client = differs.client()
    made = client.call("webhooks", "create", event="order.paid", address="https://a.example/hook")
    with pytest.raises(RecordError) as caught:
        _ = made.url
    assert 'set [stores.demo.catalogue.webhooks] fields = {url = "..."}' in str(caught.value)


def test_a_405_error_shows_the_methods_the_store_allows(differs: SandboxRun) -> None:
    with pytest.raises(ResourceNotFound) as caught:
        differs.client().products.update(1, price="1.00")
    assert re.search(r"never confirmed at this store \(the store allows .*PUT.*\)", str(caught.value))


def test_a_404_of_a_confirmed_operation_does_not_blame_the_path(sandbox: SandboxRun, redis: Redis) -> None:
    client = sandbox.client(redis)
    client.orders.create(lines=[{"product_id": 1}])
    order = client.orders.get(1001)
    assert client.confirmations.confirmed_on(client.catalogue.get("orders", "get")).startswith("20")
    with pytest.raises(ResourceNotFound) as caught:
        sandbox.client(redis).orders.get(int(order.id) + 1)
    assert "assumed" not in str(caught.value)
    assert str(caught.value).startswith("orders.get at demo: answered 404, there is no order 1002 (request req-")


def test_the_documented_operation_is_never_called_assumed(sandbox: SandboxRun, tmp_path: Path) -> None:
    text = sandbox.config_file.read_text()
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(
        text.replace(f'base_url = "http://127.0.0.1:{sandbox.port}"', f'base_url = "http://127.0.0.1:{sandbox.port}/x"')
    )
    with pytest.raises(ResourceNotFound) as caught:
        list(SandboxRun.client_from(wrong).products.list())
    assert "assumed" not in str(caught.value)


def test_an_added_operation_is_called_like_any_other(sandbox: SandboxRun, tmp_path: Path) -> None:
    text = sandbox.config_file.read_text()
    added = '\n[catalogue.products.cheapest]\nmethod = "GET"\npath = "/api/v3/app/products/{id}"\nrecord = "product"\n'
    (tmp_path / "added.toml").write_text(text + added)
    client = SandboxRun.client_from(tmp_path / "added.toml")
    assert client.products.cheapest(3).id == 3
    with pytest.raises(AttributeError, match="products has no operation dearest"):
        client.products.dearest(3)
