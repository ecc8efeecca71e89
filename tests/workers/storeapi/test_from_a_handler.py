"""A handler reads the record of its event and writes to the store's API, in the real pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from redis import Redis

from receiver import config as config_room
from storehooks.api import client_from_config
from storehooks.errors import ConfigError
from tests.support.harness import System, free_port
from tests.support.programs import storehooks
from tests.workers.conftest import AUTH, SandboxRun
from workers.operations.erasure.plugin_hooks import PluginHooks
from workers.operations.erasure.subject import Subject

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


OUTSIDE_A_WORKER = """
from workers import Router
router = Router("shop")
@router.on("order.*")
def look(event, ctx):
    return repr([ctx.api.products.get(1).id, ctx.api is ctx.api])
@router.erase
def forget(subject, ctx):
    ctx.api.products.get(1)
    return 1 + (ctx.api is ctx.api)
"""


def config_with_plugin(sandbox: SandboxRun, *changes: tuple[str, str]) -> Path:
    plugin = sandbox.folder / "outside_a_worker.py"
    plugin.write_text(OUTSIDE_A_WORKER)
    config_file = sandbox.with_config(f'[workers]\ninstalled = false\nplugins = ["{plugin}"]\n')
    text = config_file.read_text()
    for old, new in changes:
        text = text.replace(old, new)
    config_file.write_text(text)
    return config_file


def live_run(config_file: Path) -> CompletedProcess[str]:
    event = config_file.with_name("event.json")
    event.write_text('{"topic": "order.created", "store": "demo", "data": {"id": 1}}')
    given = ("handlers", "run", "shop.look", "--event", str(event), "--live", "--yes", "--config", str(config_file))
    return storehooks(*given)


def test_a_live_run_and_an_erasure_use_one_client_and_the_shared_token(sandbox: SandboxRun, redis: Redis) -> None:
    config_file = config_with_plugin(sandbox)
    run = live_run(config_file)
    assert '"[1, True]"' in run.stdout, run.stderr
    hooks = PluginHooks(config_room.load(config_file, {}))
    assert list(hooks.call(Subject("demo", "customer", "", "1"))) == [("shop", "2")]
    sandbox.client(redis).products.get(1)
    assert sandbox.status()["token_requests"] == 1


def test_a_live_run_needs_no_redis(sandbox: SandboxRun, server_url: str) -> None:
    run = live_run(config_with_plugin(sandbox, (server_url, f"redis://127.0.0.1:{free_port()}")))
    assert '"[1, True]"' in run.stdout, run.stderr
    assert "ctx.api does not share the token and the rate limit of the other processes" in run.stderr
    assert sandbox.status()["token_requests"] == 1
