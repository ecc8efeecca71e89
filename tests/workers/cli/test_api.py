"""`storehooks api` and `storehooks sandbox`, run as processes: their output and exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from tests.support.harness import eventually, storehooks
from tests.support.programs import ROOT
from tests.workers.conftest import SandboxRun
from workers.storeapi.catalogue import bundled_catalogue


def run(sandbox: SandboxRun, *arguments: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
    return storehooks(*arguments, "--config", str(config or sandbox.config_file))


def on_a_terminal(sandbox: SandboxRun, *arguments: str) -> str:
    """What the command writes to a terminal, without colour."""
    command = [sys.executable, "-m", "workers.cli", *arguments, "--config", str(sandbox.config_file)]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=ROOT)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    process.wait(30)
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())


def test_the_list_shows_the_state_of_all_operations_and_needs_no_server(sandbox: SandboxRun, tmp_path: Path) -> None:
    config = tmp_path / "away.toml"
    config.write_text(sandbox.config_file.read_text().replace("[redis]\nurl", "[redis]\n#").replace("\n# =", "\n#"))
    done = run(sandbox, "api", "--list", "--json", config=config)
    listed = json.loads(done.stdout)
    assert [f"{one['group']}.{one['name']}" for one in listed] == list(bundled_catalogue().operations)
    assert set(listed[0]) == {"group", "name", "method", "path", "documented", "state"}
    assert [one["name"] for one in listed if one["documented"]] == ["list"]
    shown = run(sandbox, "api", "--list", config=config).stdout
    assert re.search(r"orders +update_status ", shown)
    assert "49 operations; assumed ones are not in the API's documentation" in shown
    assert shown.rstrip().splitlines()[-1].strip().startswith("storehooks api probe")


def test_a_listing_is_json_for_pipes_and_a_table_for_people(sandbox: SandboxRun, redis: Redis) -> None:
    piped = json.loads(run(sandbox, "api", "products", "list").stdout)
    assert (len(piped), piped[0]["id"]) == (40, 1)
    shown = on_a_terminal(sandbox, "api", "products", "list")
    assert shown.startswith("ID  NAME")
    assert "40 in total" in shown
    assert '"id"' not in shown


def test_all_reads_every_page(sandbox: SandboxRun, redis: Redis, tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    config.write_text(sandbox.config_file.read_text() + "\n[catalogue.paging]\nsize = 15\n")
    assert len(json.loads(run(sandbox, "api", "products", "list", config=config).stdout)) == 15
    assert len(json.loads(run(sandbox, "api", "products", "list", "--all", config=config).stdout)) == 40


def test_a_call_takes_its_values_from_arguments_parameters_and_a_file(
    sandbox: SandboxRun, redis: Redis, tmp_path: Path
) -> None:
    body = tmp_path / "order.json"
    body.write_text('{"lines": [{"product_id": 1, "quantity": 2}]}')
    order = json.loads(run(sandbox, "api", "orders", "create", "--data", str(body)).stdout)
    paid = run(sandbox, "api", "orders", "update_status", "--param", f"id={order['id']}", "--param", "status=paid")
    assert json.loads(paid.stdout)["status"] == "paid"
    named = run(sandbox, "api", "products", "update", "1", "-p", "price=7.50", "-p", "name=123 cups")
    assert json.loads(named.stdout)["price"] == "7.50"
    assert run(sandbox, "api", "orders", "delete", str(order["id"])).returncode == 0


def test_a_probe_only_reads_and_the_list_shows_what_it_confirmed(sandbox: SandboxRun, redis: Redis) -> None:
    done = run(sandbox, "api", "probe", "--json")
    assert done.returncode == 0, done.stdout
    results = {one["operation"]: one["result"] for one in json.loads(done.stdout)["operations"]}
    assert results["orders.list"] == "confirmed"
    assert {method for _, method, *_ in sandbox.log()} == {"GET"}
    states = {
        f"{one['group']}.{one['name']}": one["state"]
        for one in json.loads(run(sandbox, "api", "--list", "--json").stdout)
    }
    assert states["products.get"].startswith("confirmed 20")
    assert states["products.get"].endswith(" at demo")
    assert states["products.create"] == "assumed"


def test_a_probe_proposes_the_lines_for_a_store_that_differs(
    make_sandbox: Callable[..., SandboxRun], redis: Redis
) -> None:
    differs = '[catalogue]\nprefix = "/rest/v1"\n[catalogue.envelope]\ndata = "items"\ntotal = "total"\n'
    store = make_sandbox("--no-shopper", "--no-subscriptions", "--products", "130", more=differs)
    first = store.config_file.read_text().replace(differs, "")
    store.config_file.write_text(first)
    shown = run(store, "api", "probe").stdout
    assert "Proposed for the config; nothing was written" in shown
    assert 'prefix = "/rest/v1"  # /rest/v1/products answered 200, and /api/v3/app/products answered 404' in shown
    assert store.config_file.read_text() == first
    proposed = json.loads(run(store, "api", "probe", "--json").stdout)["proposed"]
    store.config_file.write_text(first + proposed)
    assert len(json.loads(run(store, "api", "products", "list", "--all").stdout)) == 130
    done = run(store, "api", "probe", "--json")
    assert (done.returncode, json.loads(done.stdout)["proposed"]) == (0, "")


def test_a_probe_names_the_config_key_of_a_missing_operation(sandbox: SandboxRun, redis: Redis, tmp_path: Path) -> None:
    config = tmp_path / "wrong.toml"
    config.write_text(
        sandbox.config_file.read_text() + '\n[catalogue.orders.list]\npath = "/api/v3/app/bestellungen"\n'
    )
    done = run(sandbox, "api", "probe", config=config)
    assert done.returncode == 1
    assert "not there: 404; set [stores.demo.catalogue.orders.list] path" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["api", "orders", "get", "77"], 1, "orders.get at demo: answered 404, there is no order 77"),
        (["api", "orders", "update_staus", "1"], 2, "did you mean orders.update_status?"),
        (["api", "orders"], 2, "choose an operation of orders: list, create, get"),
        (["api", "orders", "get"], 1, "expects path parameters: id"),
        (["api", "orders", "list", "--store", "dem"], 2, "no store dem; configured stores: demo"),
        (["sandbox", "misbehave", "lat=0.1"], 2, "sandbox.misbehave.lat is unknown; did you mean late?"),
        (["sandbox", "do", "explode"], 2, "'explode' is not one of"),
    ],
)
def test_an_error_is_one_sentence(
    sandbox: SandboxRun, redis: Redis, arguments: list[str], code: int, says: str
) -> None:
    done = run(sandbox, *arguments)
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_control_characters_of_the_store_do_not_reach_the_terminal(sandbox: SandboxRun, redis: Redis) -> None:
    sandbox.client().products.update(1, name="\x1b[31mred\u202e")
    shown = on_a_terminal(sandbox, "api", "products", "list")
    assert "red" in shown
    assert "\x1b[31m" not in shown
    assert "\u202e" not in shown


def test_an_import_reports_refused_rows(sandbox: SandboxRun, redis: Redis, tmp_path: Path) -> None:
    rows = tmp_path / "goods.csv"
    rows.write_text("name,price\nMug,1.00\nLamp,dear\n")
    done = run(sandbox, "api", "products", "bulk_import", "--data", str(rows))
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"rows": 2, "accepted": 1, "refused": 1}
    assert "goods.csv.refused.jsonl" in done.stderr


def test_the_faults_of_a_running_sandbox_can_be_changed(sandbox: SandboxRun) -> None:
    assert (
        "misbehaves now: duplicate=0.5, late=0.1"
        in run(sandbox, "sandbox", "misbehave", "duplicate=0.5", "late=0.1").stdout
    )
    assert sandbox.status()["misbehave"]["duplicate"] == 0.5
    assert "misbehaves      duplicate=0.5, late=0.1" in run(sandbox, "sandbox", "status").stdout
    assert run(sandbox, "sandbox", "do", "reset").stdout == "done: reset\n"
    assert "duplicate" not in sandbox.status()["misbehave"]


def test_a_running_sandbox_performs_an_action(sandbox: SandboxRun) -> None:
    client = sandbox.client()
    client.webhooks.create(topic="order.paid", url="http://127.0.0.1:9/x")
    assert sandbox.status()["subscriptions"] == 1
    run(sandbox, "sandbox", "do", "disable-subscriptions")
    assert sandbox.status()["subscriptions"] == 0
    run(sandbox, "sandbox", "do", "delete-subscriptions")
    assert list(client.webhooks.list()) == []


def test_a_taken_port_is_reported(sandbox: SandboxRun) -> None:
    done = run(sandbox, "sandbox", "--no-shopper")
    assert done.returncode == 2
    assert "stop what uses it, or set [sandbox] bind" in done.stderr


def test_the_sandbox_stops_on_sigterm_and_leaves_one_file(sandbox: SandboxRun, tmp_path: Path, server_url: str) -> None:
    own = SandboxRun(tmp_path / "own", server_url, "--every", "0.01").start()
    eventually(lambda: own.status()["events"] > 20)
    assert own.process is not None
    assert own.process.stop() == 0
    assert [one.name for one in (tmp_path / "own" / "data").iterdir()] == ["sandbox-demo.sqlite3"]
    own.http.close()
