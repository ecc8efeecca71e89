"""Event exports: an event with its context in one file, run on another machine, without secrets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from receiver.contract.errors import ConfigError
from tests.support.harness import System, eventually
from workers.operations import event_export
from workers.operations.local_run import LocalRun

PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("order.paid", retries=0)
def export(event, ctx):
    key = ctx.once("export", lambda: "first")
    comment = ctx.api.orders.add_comment(event.data["id"], text=f"{ctx.settings.prefix} {key}")
    return f"{comment['text']} of {ctx.api.customers.get(event.data['customer']['id']).name}"
"""
SETTINGS = """
[plugins.shop]
prefix = "exported"
password = "hunter2"
target = "file:target.txt"
url = "https://joe:pw@erp.example.com/in"
nested = { api_key = "k3y", level = 5 }
targets = [{ url = "https://ann:pw2@a.example", pass = "l1st" }, "file:target.txt", "https://bob:pw3@b.example"]
pattern = "http://[a-z]+"
hook = "https://hooks.example/in?token=t0k3n"
login = { credentials = { user = "carl" } }
"""


@pytest.fixture
def shop(make_system: Callable[..., System]) -> System:
    system = make_system(plugin=PLUGIN, more=SETTINGS)
    (system.folder / "target.txt").write_text("top.example.com\n")
    return system


def write(system: System, name: str = "export.json") -> dict[str, object]:
    delivery = system.delivery("order.paid", data={"id": 4711, "total": "9.00", "customer": {"id": 77, "name": "Ada"}})
    with_credential = replace(delivery.event, headers={**delivery.event.headers, "x-api-key": "pr0xy"})
    (accepted,) = system.inbox.accept([replace(delivery, event=with_credential)])
    event_id = accepted.id
    system.start("worker")
    eventually(lambda: system.status(event_id) == "failed", 20)
    done = system.run_cli("events", "show", event_id, "--export", str(system.folder / name))
    assert done.returncode == 0, done.stderr
    return dict(json.loads((system.folder / name).read_text()))


def test_an_exported_event_runs_against_a_sandbox_without_the_redis_server(shop: System) -> None:
    document = write(shop)
    assert b'"id":4711' in base64.b64decode(str(document["body"]))
    assert document["once"] == {"shop.export|export": "first"}
    assert document["runs"][0]["status"] == "failed"  # type: ignore[index]  # north has no API
    assert document["settings"]["shop"]["prefix"] == "exported"  # type: ignore[index]
    assert document["store"] == {"name": "north", "base_url": ""}
    text = (shop.folder / "export.json").read_text()
    for secret in (
        "hunter2",
        "top.example.com",
        "k3y",
        "joe",
        "pw@",
        "whsec_",
        "l1st",
        "ann",
        "bob",
        "carl",
        "t0k3n",
        "pr0xy",
    ):
        assert secret not in text
    assert document["settings"]["shop"]["targets"][2] == "https://b.example"  # type: ignore[index]
    assert document["settings"]["shop"]["pattern"] == "http://[a-z]+"  # type: ignore[index]
    elsewhere = shop.folder / "elsewhere.toml"
    elsewhere.write_text('[redis]\nurl = "redis://127.0.0.1:1"\n[workers]\nplugins = ["shop.py"]\n')
    shop.config_file = elsewhere
    shop.plugin.write_text(PLUGIN.replace('lambda: "first"', 'lambda: "second"'))
    done = shop.run_cli("handlers", "run", "shop.export", "--event", str(shop.folder / "export.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"exported first of Ada"' in done.stdout


def test_a_file_that_is_no_valid_export_is_rejected_with_a_reason(shop: System) -> None:
    file = shop.folder / "broken.json"
    file.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        event_export.read(file)
    file.write_text('{"topic": "order.paid"}')
    assert event_export.read(file) is None
    file.write_text('{"event_export": 9}')
    with pytest.raises(ConfigError, match="version 9; only 1 is supported"):
        event_export.read(file)
    file.write_text('{"event_export": 1, "event": {}}')
    with pytest.raises(ConfigError, match="incomplete event export"):
        event_export.read(file)
    assert shop.run_cli("events", "show", "nothing", "--export", "-").returncode == 2


def test_a_local_run_checks_the_handlers_condition(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN.replace("retries=0", 'when={"total": "> 100"}'))
    event_id = system.accept("order.paid", data={"id": 1, "total": "9.00"})
    event = system.ledger.as_event(event_id)
    assert event
    local_run = LocalRun(system.config, "shop.export", record=False)
    outcome = local_run.run(event)
    local_run.close()
    assert (outcome.ending, outcome.message) == ("dropped", "skipped: total > 100 was false")


def test_an_export_contains_the_record_map_of_its_store(make_system: Callable[..., System]) -> None:
    """The other machine need not know the store."""
    store = '[stores.cart]\nscheme = "stripe"\nsigning_secrets = ["a secret"]\n'
    plugin = "from workers import Router\nrouter = Router('shop')\n@router.on('order.*')\ndef total(event, ctx):\n"
    system = make_system(plugin=plugin + "    return str(event.record.total)\n", more=store)
    data = {"id": "cs_1", "amount_total": 500, "currency": "jpy"}
    (accepted,) = system.inbox.accept([system.delivery(store="cart", data=data)])
    file = system.folder / "export.json"
    assert system.run_cli("events", "show", accepted.id, "--export", str(file)).returncode == 0
    system.config_file.write_text(system.config_file.read_text().replace(store, ""))
    done = system.run_cli("handlers", "run", "shop.total", "--event", str(file))
    assert (done.returncode, '"500"' in done.stdout) == (0, True), done.stdout + done.stderr
    file.write_text(file.read_text().replace('"record": {', '"record": 5, "unused": {'))
    broken = system.run_cli("handlers", "run", "shop.total", "--event", str(file))
    assert (broken.returncode, "is an incomplete event export" in broken.stderr) == (2, True), broken.stderr
