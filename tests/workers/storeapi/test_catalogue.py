"""The catalogue: it matches the API's document, and config corrects it. No assumed operation is shown as documented."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from receiver import config as config_room
from receiver.config import Config
from receiver.contract.errors import ConfigError
from tests.support.harness import SECRET
from workers.storeapi.catalogue import Catalogue, bundled_catalogue, configured_catalogue
from workers.storeapi.groups import OperationGroup

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
        ('[catalogue.orders.get]\npath = "orders/{id}"\n', "config.toml:2: catalogue.orders.get.path: write the whole"),
        ('[catalogue.orders.get]\npath = "/a/../{id}"\n', "write the whole path"),
        ('[catalogue.orders.get]\npath = "https://evil.example/{id}"\n', "write the whole path"),
        ('[catalogue.orders.get]\npth = "/x"\n', "config.toml:2: unknown key catalogue.orders.get.pth"),
        ('[catalogue.orders.get]\nmethod = "FETCH"\n', "catalogue.orders.get.method: Input should be 'GET'"),
        ('[store_defaults]\nrate_limit = "fast"\n', 'not a rate; write "5/s"'),
        ('[store_defaults]\nallow_private = ["10.0.0.0/99"]\n', "does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_a_wrong_correction_is_refused_with_its_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    assert message in config_error(tmp_path, text)
