"""A handler reads the record of its event and writes to the store's API, in the real pipeline."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storehooks.api import client_from_config
from storehooks.errors import ConfigError
from tests.support.harness import System
from tests.workers.conftest import AUTH, SandboxRun

PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("order.*")
def comment(event, ctx):
    made = ctx.api.products.create(name="Mug", price="4.50")
    return f"{event.record.total + 1} {ctx.api.products.get(made.id).name}"
"""


def test_a_handler_uses_ctx_api_and_event_record(
    make_system: Callable[..., System], make_sandbox: Callable[..., SandboxRun]
) -> None:
    sandbox = make_sandbox("--no-shopper")
    own = f'base_url = "http://127.0.0.1:{sandbox.port}"\nallow_private = true\nauth = {AUTH}\n'
    system = make_system(plugin=PLUGIN)
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("[stores.north]\n", f"[stores.north]\n{own}"))
    system.start("worker", "housekeeper")
    event_id = system.accept("order.created", data={"id": 1, "total": "42.00"})
    assert system.settled(event_id) == "settled", system.run_of(event_id, "shop.comment").error
    assert system.run_of(event_id, "shop.comment").result == "43.00 Mug"


def test_a_script_uses_the_client_of_a_store_in_config(
    make_system: Callable[..., System], make_sandbox: Callable[..., SandboxRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = make_sandbox("--no-shopper")
    own = f'base_url = "http://127.0.0.1:{sandbox.port}"\nallow_private = true\nauth = {AUTH}\n'
    config_file = make_system().config_file
    config_file.write_text(config_file.read_text().replace("[stores.north]\n", f"[stores.north]\n{own}"))
    assert next(iter(client_from_config("north", str(config_file)).products.list())).id == 1
    monkeypatch.setenv("STOREHOOKS_CONFIG", str(config_file))
    assert client_from_config("north").customers.get(1).id == 1
    with pytest.raises(ConfigError, match="this config has no store east"):
        client_from_config("east")
