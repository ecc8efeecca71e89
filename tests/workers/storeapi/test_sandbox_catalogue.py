"""The sandbox serves the catalogue of the config, and reads it again on HUP."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.support.harness import children_of, eventually
from tests.workers.conftest import SandboxRun
from workers.storeapi.errors import AccessDenied, InvalidRequest


def test_hup_makes_the_sandbox_serve_a_changed_catalogue_with_its_records(
    make_sandbox: Callable[..., SandboxRun],
) -> None:
    sandbox = make_sandbox()
    sandbox.client().products.update(1, name="Mug")
    sandbox.misbehave(slow_by="1s")
    assert sandbox.process is not None
    workers = children_of(sandbox.process.pid)
    sandbox.reload(
        """
        [stores.demo.catalogue]
        prefix = "/rest"
        headers = { x-shop = "7" }
        [stores.demo.catalogue.envelope]
        record = "product"
        [stores.demo.catalogue.products]
        fields = { name = "texts.title" }
        [stores.demo.catalogue.products.create]
        body = "product"
        [stores.demo.catalogue.orders]
        fields = { lines = "line_items" }
        line = { product_id = "product.id", quantity = "qty" }
        """
    )
    client = sandbox.client()
    product = client.products.get(1)
    assert (product.name, product["texts"]) == ("Mug", {"title": "Mug"})
    assert client.products.create(name="Lamp", price="2.00").name == "Lamp"
    (line,) = client.orders.create(lines=[{"product_id": 1, "quantity": 3}]).lines
    assert (line.product_id, line.quantity, line["product"], line["qty"]) == (1, 3, {"id": 1}, 3)
    assert sandbox.http.get("/api/v3/app/products").status_code == 404
    with pytest.raises(InvalidRequest, match="the header x-shop is missing or wrong"):
        client.request("GET", "/rest/products", headers={"X-Shop": "8"})
    assert sandbox.status()["misbehave"]["slow_by"] == "1s"
    assert children_of(sandbox.process.pid) == workers


def test_a_bad_catalogue_is_refused_on_hup_and_the_old_one_is_served(make_sandbox: Callable[..., SandboxRun]) -> None:
    sandbox = make_sandbox()
    assert sandbox.process is not None
    good = sandbox.config_file.read_text()
    sandbox.config_file.write_text(good + '[catalogue]\nprefix = "rest"\n')
    os.kill(sandbox.process.pid, signal.SIGHUP)
    eventually(lambda: "config refused, the old one stays" in sandbox.log_text(), what="the config is refused")
    sandbox.config_file.write_text(good)
    assert len(list(sandbox.client().products.list())) == 40
    assert sandbox.status()["reloads"] == 0


@pytest.mark.parametrize(
    "auth",
    [
        '{ token = "key-7", header = "X-Api-Key", scheme = "" }',
        '{ token = "user:pass word", scheme = "Basic" }',
        '{ token = "key-7", scheme = "Token" }',
        '{ url = "/token", client_id = "a", client_secret = "b", header = "x-access-token", scheme = "" }',
    ],
)
def test_a_token_is_sent_in_the_header_and_scheme_of_the_store(
    make_sandbox: Callable[..., SandboxRun], auth: str
) -> None:
    other = make_sandbox(auth=auth)
    assert other.client().products.get(1).id == 1
    wrong = other.config_file.read_text().replace(auth, '{ token = "key-7" }')
    (other.folder / "wrong.toml").write_text(wrong)
    with pytest.raises(AccessDenied):
        other.client_from(other.folder / "wrong.toml").products.get(1)
