"""The catalogue: it matches the API's document, and config corrects it. No assumed operation is shown as documented."""

from __future__ import annotations

import ast
from collections import Counter
from decimal import Decimal
from pathlib import Path

import httpx2
import pytest

from receiver import config as config_room
from receiver.config import Config
from receiver.contract.errors import ConfigError
from receiver.contract.records import Order
from scripts import client_stub
from tests.support.harness import SECRET
from workers.storeapi.catalogue import Catalogue, bundled_catalogue, configured_catalogue, total_at
from workers.storeapi.groups import OperationGroup, Orders

STORE = f'\n[stores.north]\nsigning_secrets = ["{SECRET}"]\n[stores.south]\nsigning_secrets = ["{SECRET}"]\n'


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(text + STORE)
    return config_room.load(path, {})


def corrected(tmp_path: Path, text: str, store: str | None = None) -> Catalogue:
    return configured_catalogue(load(tmp_path, text), store)


def config_error(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        corrected(tmp_path, text)
    return str(caught.value).replace(str(tmp_path) + "/", "")


def test_the_number_of_operations_matches_the_document() -> None:
    counted = Counter(operation.group for operation in bundled_catalogue())
    assert counted == {"products": 18, "orders": 11, "customers": 11, "webhooks": 9}
    assert len(bundled_catalogue().operations) == 49


def test_the_one_documented_operation_is_as_in_the_document() -> None:
    (documented,) = [operation for operation in bundled_catalogue() if operation.documented]
    assert (documented.full_name, documented.method, documented.path) == (
        "products.list",
        "GET",
        "/api/v3/app/products",
    )
    assert (bundled_catalogue().envelope.data, bundled_catalogue().envelope.total) == ("data", "meta.total")
    assert {operation.state for operation in bundled_catalogue() if operation is not documented} == {"assumed"}


def test_every_path_has_the_documented_prefix_and_no_two_operations_share_a_call() -> None:
    assert all(operation.path.startswith("/api/v3/app/") for operation in bundled_catalogue())
    assert max(Counter((one.method, one.path) for one in bundled_catalogue()).values()) == 1


def test_the_clients_methods_match_the_catalogue() -> None:
    groups = OperationGroup.__subclasses__()
    methods = {f"{group.name}.{name}" for group in groups for name in dir(group) if not name.startswith("_")}
    assert methods - {f"{group.name}.name" for group in groups} == set(bundled_catalogue().operations)
    assert len(bundled_catalogue().operations) == 49


def test_the_stub_of_the_clients_methods_is_made_from_the_catalogue() -> None:
    assert client_stub.STUB.read_text() == client_stub.stub(bundled_catalogue()), "run `make reference`"


def test_every_method_of_the_stub_has_types_and_a_docstring() -> None:
    parsed = ast.parse(client_stub.STUB.read_text()).body
    for operation in bundled_catalogue():
        (group,) = [one for one in parsed if isinstance(one, ast.ClassDef) and one.name.lower() == operation.group]
        (method,) = [one for one in group.body if isinstance(one, ast.FunctionDef) and one.name == operation.name]
        lines = operation.description.splitlines()
        described = [one for one in lines if not one.startswith(("Required:", "Optional:"))]
        assert ast.get_docstring(method) == "\n".join(described).replace("\n", "\n\n", 1)
        given, defaults = method.args.kwonlyargs, method.args.kw_defaults
        names = {one.arg for one in (*method.args.args, *given)}
        assert names >= {*operation.parameters, *operation.query, *operation.body_fields}
        needed = {one.arg for one, default in zip(given, defaults, strict=True) if default is None}
        assert needed == ({operation.rows} if operation.rows else set(operation.required))


def test_a_method_shows_its_operation_to_help() -> None:
    assert Orders.update_status.__doc__ == (
        "POST /api/v3/app/orders/{id}/status (assumed). Returns one order record.\n"
        "Required: status.\n"
        "It is not sent again when its response is lost."
    )


def test_an_operation_is_corrected_for_all_stores_or_for_one(tmp_path: Path) -> None:
    line = '[{}.orders.update_status]\nmethod = "PUT"\npath = "/api/v3/app/orders/{{id}}/state"\n'
    for all_stores in (corrected(tmp_path, line.format("catalogue"), name) for name in ("north", "south", None)):
        operation = all_stores.get("orders", "update_status")
        assert (operation.method, operation.path) == ("PUT", "/api/v3/app/orders/{id}/state")
        assert (operation.state, operation.documented, operation.retry_safe) == ("overridden", False, True)
    one = line.format("stores.north.catalogue")
    assert corrected(tmp_path, one, "north").get("orders", "update_status").method == "PUT"
    assert corrected(tmp_path, one, "south").get("orders", "update_status").method == "POST"


def test_a_changed_operation_is_no_longer_documented(tmp_path: Path) -> None:
    found = corrected(tmp_path, '[catalogue.products.list]\npath = "/v4/goods"\n')
    assert [one.full_name for one in found if one.documented] == []


def test_fields_envelope_and_paging_are_corrected(tmp_path: Path) -> None:
    text = """
    [catalogue.webhooks]
    fields = {topic = "event", url = "address"}
    [catalogue.envelope]
    data = "result.items"
    [stores.north.catalogue.paging]
    style = "cursor"
    size = 250
    """
    found = corrected(tmp_path, text, "north")
    assert found.fields["webhooks"]["url"] == "address"
    assert found.fields["webhooks"]["secret"] == "secret"
    assert found.envelope.data == "result.items"
    assert (found.get("products", "list").paging, found.paging.size) == ("cursor", 250)
    assert found.get("webhooks", "list_topics").paging == "none"


def test_a_prefix_moves_every_operation_that_is_below_it(tmp_path: Path) -> None:
    text = """
    [catalogue]
    prefix = "/rest/v2"
    [catalogue.orders.get]
    path = "order/{id}.json"
    [catalogue.orders.list]
    path = "/api/v3/app/bestellungen"
    [stores.north.catalogue]
    prefix = "/north"
    """
    common, north = corrected(tmp_path, text), corrected(tmp_path, text, "north")
    assert [one.full_name for one in common if not one.path.startswith("/rest/v2/")] == ["orders.list"]
    assert common.get("orders", "list").path == "/api/v3/app/bestellungen"
    assert common.get("orders", "get").path == "/rest/v2/order/{id}.json"
    assert (common.get("products", "list").state, common.get("products", "get").state) == ("overridden", "assumed")
    assert north.get("orders", "get").path == "/north/order/{id}.json"
    assert north.get("orders", "list").path == "/api/v3/app/bestellungen"
    assert corrected(tmp_path, '[catalogue]\nprefix = ""\n').get("products", "get").path == "/products/{id}"


def test_an_operation_has_its_own_envelope_and_single_records_have_theirs(tmp_path: Path) -> None:
    text = """
    [catalogue.envelope]
    data = "result"
    record = ""
    total = "header:X-Total"
    [catalogue.orders.list]
    data = "orders"
    item = "order"
    total = "count"
    [catalogue.orders.get]
    data = "order"
    """
    found = corrected(tmp_path, text)
    envelopes = {name: found.envelope_of(one) for name, one in found.operations.items()}
    assert (envelopes["products.list"].data, envelopes["products.get"].data) == ("result", "")
    assert envelopes["products.list"].total == "header:X-Total"
    orders = envelopes["orders.list"]
    assert (orders.data, orders.item, orders.total, envelopes["orders.get"].data) == (
        "orders",
        "order",
        "count",
        "order",
    )
    before = bundled_catalogue()
    assert before.envelope_of(before.get("orders", "get")).data == "data"


def test_a_total_is_a_number_in_the_document_or_in_a_header() -> None:
    document = {"meta": {"total": 7, "count": "12", "flag": True, "less": -1}}
    headers = httpx2.Headers({"X-Total": "1200"})
    found = {path: total_at(document, headers, path) for path in ("meta.total", "meta.count", "header:X-TOTAL")}
    assert found == {"meta.total": 7, "meta.count": 12, "header:X-TOTAL": 1200}
    for path in ("meta.flag", "meta.less", "meta", "", "header:x-other"):
        assert total_at(document, headers, path) is None


def test_lines_and_the_buyer_of_an_order_are_mapped_by_their_own_tables(tmp_path: Path) -> None:
    text = """
    [catalogue]
    money = "minor"
    decimals = { HUF = 0 }
    [catalogue.orders]
    fields = { total = "amounts.total", currency = "amounts.currency", lines = "line_items" }
    line = { product_id = "sku.product", quantity = "qty", price = "unit_amount" }
    buyer = { name = "shipping.first shipping.last", email = "contact" }
    """
    found = corrected(tmp_path, text)
    raw = {
        "id": 1,
        "amounts": {"total": 1990, "currency": "eur"},
        "line_items": [{"sku": {"product": 7}, "qty": 2, "unit_amount": 995}],
        "shipping": {"first": "Ada", "last": "Smith"},
        "contact": "ada@shop.example",
    }
    order = Order(raw, found.record_map(found.get("orders", "get")))
    (line,) = order.lines
    assert (order.total, line.product_id, line.quantity, line.price) == (Decimal("19.90"), 7, 2, Decimal("9.95"))
    assert order.customer is not None
    assert (order.customer.name, order.customer.email) == ("Ada Smith", "ada@shop.example")


def test_an_operation_added_in_config_is_shown_as_added(tmp_path: Path) -> None:
    found = corrected(tmp_path, '[catalogue.orders.refund]\nmethod = "POST"\npath = "/api/v3/app/orders/{id}/refund"\n')
    assert found.get("orders", "refund").state == "added"
    assert len(found.operations) == 50
    assert sum(one.state != "added" for one in found) == 49


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[catalogue.orders.update_staus]\npath = "/x"\n',
            "config.toml:1: catalogue.orders.update_staus: the catalogue has no operation orders.update_staus; did you "
            "mean orders.update_status?",
        ),
        (
            '[catalogue.orders.get]\npath = "orders/{id"\n',
            "config.toml:2: catalogue.orders.get.path: write the path below",
        ),
        ('[catalogue.orders.get]\npath = "/a/../{id}"\n', "write the path below the prefix"),
        ('[catalogue.orders.get]\npath = "https://evil.example/{id}"\n', "write the path below the prefix"),
        (
            '[catalogue]\nprefix = "https://evil.example"\n',
            "config.toml:2: catalogue.prefix: write the path before every",
        ),
        ('[catalogue]\nprefix = "/api/"\n', "catalogue.prefix: write the path before every operation"),
        ('[catalogue.headers]\nhost = "evil.example"\n', "not the name of a header that can be set"),
        ('[catalogue.headers]\nx-a = "1\\r\\nx-b: 2"\n', "not the value of a header"),
        ('[catalogue.paging]\nstyle = "pages"\n', "catalogue.paging.style: Input should be 'page', 'offset', 'cursor'"),
        ('[catalogue.orders.get]\npth = "/x"\n', "config.toml:2: unknown key catalogue.orders.get.pth"),
        ('[catalogue.orders.get]\nmethod = "FETCH"\n', "catalogue.orders.get.method: Input should be 'GET'"),
        ('[store_defaults]\nrate_limit = "fast"\n', 'not a rate; write "5/s"'),
        ('[store_defaults]\nallow_private = ["10.0.0.0/99"]\n', "does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_a_wrong_correction_is_refused_with_its_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    assert message in config_error(tmp_path, text)
