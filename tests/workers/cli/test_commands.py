"""The commands, run as processes: their output and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from receiver.inbox import Declaration, Outcome, keys
from receiver.inbox.queries.handlers import HandlerQueries
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import Process, System, eventually, free_port, storehooks
from tests.support.programs import ROOT
from workers.cli import failures, handlers
from workers.cli.send import FOLLOW_SECONDS

HELLO = """
from workers import Router
router = Router("shop")
@router.on("order.*")
def greet(event, ctx):
    return "hi"
"""


def test_events_list_and_show_read_back_as_json(system: System) -> None:
    event_id = system.accept("order.created", data={"id": 7, "total": "1.00"}, delivery_id="msg_1")
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, "done", {"result": "hi", "version": "1.0"})])
    (listed,) = json.loads(system.run_cli("events", "list", "--json").stdout)
    assert listed.pop("received_at").startswith("20")
    assert listed == {
        "id": event_id,
        "store": "north",
        "topic": "order.created",
        "delivery_id": "msg_1",
        "resource_id": "7",
        "source": "webhook",
        "status": "settled",
    }
    shown = json.loads(system.run_cli("events", "show", event_id, "--json").stdout)
    assert shown["payload"]["data"] == {"id": 7, "total": "1.00"}
    assert shown["headers"]["webhook-id"] == "msg_1"
    assert len(shown["signed_with"]) == 6
    received, accepted = (datetime.fromisoformat(shown[name]) for name in ("received_at", "accepted_at"))
    assert abs(accepted - received).total_seconds() < 60
    assert shown["runs"][0].pop("ended_at").startswith("20")
    assert shown["runs"] == [
        {
            "handler": "shop.greet",
            "version": "1.0",
            "status": "done",
            "attempts": 1,
            "result": "hi",
            "error": None,
            "due_at": None,
            "reason": None,
            "order": None,
            "ms": None,
            "failed_attempts": [],
            "merged": [],
        }
    ]


def test_events_can_be_filtered(system: System) -> None:
    system.accept("order.created")
    system.accept("product.updated", store="south")

    def found(*options: str) -> list[str]:
        return [e["topic"] for e in json.loads(system.run_cli("events", "list", "--json", *options).stdout)]

    assert found("--store", "south") == ["product.updated"]
    assert found("--topic", "order.*") == ["order.created"]
    assert found("--status", "failed") == []
    assert found("--since", "1h") == ["product.updated", "order.created"]
    assert system.run_cli("events", "list", "--since", "yesterday").returncode == 2


def test_the_counts_of_stats_add_up(system: System) -> None:
    system.accept()
    stats = json.loads(system.run_cli("stats", "--json").stdout)
    assert stats["accepted"] == stats["settled"] + stats["open"] + stats["failed"] == 1
    assert stats["stores"]["north"]["open"] == 1
    assert {"duplicates", "refused", "spooled"} <= set(stats)
    assert "accepted 1 = settled 0 + open 1 + failed 0" in system.run_cli("stats").stdout


def test_refused_deliveries_are_counted_in_stats_and_stores(system: System) -> None:
    system.client.hset(keys.COUNTERS, mapping={"refused": 2, "refused|north": 2})
    assert "REFUSED" in system.run_cli("stats").stdout
    assert json.loads(system.run_cli("stats", "--json").stdout)["refused"] == 2
    assert "REFUSED" in system.run_cli("stores").stdout
    assert {one["store"]: one["refused"] for one in json.loads(system.run_cli("stores", "--json").stdout)}["north"] == 2


def test_resume_counts_the_runs_that_wait_in_a_line_too(make_system: Callable[..., System]) -> None:
    """It counted one for each key of a handler with order_by: 2 where 40 waited."""
    system = make_system(plugin=HELLO.replace('"order.*"', '"order.*", order_by="store"'))
    system.start("worker")
    eventually(lambda: "shop.greet" in HandlerQueries(system.client).present(), what="a worker has it")
    assert "shop.greet is paused" in system.run_cli("handlers", "pause", "shop.greet", "--yes").stdout
    for _ in range(5):
        system.accept("order.created")
    queries = HandlerQueries(system.client)
    eventually(lambda: queries.waiting(["shop.greet"])["shop.greet"].runs == 5, what="all are routed")
    assert "5 runs wait" in system.run_cli("handlers", "resume", "shop.greet", "--yes").stdout


@pytest.mark.parametrize("depth", [253, 254, 255, 1000])
def test_a_deep_payload_is_shown_as_json(system: System, depth: int) -> None:
    """From 254 levels on the command ended with a traceback."""
    body = b'{"a":' * depth + b"1" + b"}" * depth
    event_id = system.accept()
    system.client.set(keys.BODY + event_id, b"{}\n" + body)
    shown = system.run_cli("events", "show", event_id, "--json")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count('"a":') == depth


def test_handlers_shows_what_workers_run_beside_what_is_on_disk(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO.replace('"order.*"', '"order.*", order_by="resource"'))

    def listed(**how: Any) -> dict[str, dict[str, Any]]:
        return {one["handler"]: one for one in json.loads(system.run_cli("handlers", "--json", **how).stdout)}

    version = listed()["shop.greet"]["version"]
    assert (listed()["shop.greet"]["order_by"], listed()["shop.greet"]["on_failure"]) == ("resource", "continue")
    assert (listed()["shop.greet"]["state"], listed()["shop.greet"]["running"]) == ("no worker", {})
    details = {"plugin": "shop", "retries": 3, "timeout": 30}
    declared = [Declaration(f"shop.{name}", "0.9", ("*",), ("*",), details=details) for name in ("greet", "old")]
    system.declare_as_worker(*declared)
    greet, old = listed()["shop.greet"], listed()["shop.old"]
    assert (greet["state"], greet["version"], greet["running"]) == ("on", version, {"0.9": 1})
    assert (old["state"], old["version"], old["running"]) == ("on", None, {"0.9": 1})
    shown = system.run_cli("handlers").stdout
    assert f"shop.greet is {version} on disk; workers run 0.9 (1)" in shown
    assert "shop.old is not in this config; workers run 0.9 (1)" in shown
    system.client.delete(f"{keys.RQ_WORKER}host-1-1")  # its worker has stopped, a moment ago
    assert listed()["shop.greet"]["state"] == "no worker"
    assert "shop.old" not in listed()

    assert system.run_cli("handlers", "pause", "shop.greet", "--yes").returncode == 0
    assert "storehooks handlers resume shop.greet" in system.run_cli("handlers").stdout
    assert listed()["shop.greet"]["state"] == "paused"


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_handlers_says_that_without_redis_it_is_unknown_what_runs(
    make_system: Callable[..., System], option: list[str]
) -> None:
    """RUNNING was empty, as if no worker ran a handler. It exits with 0: what is on disk was loaded and is valid."""
    system = make_system(plugin=HELLO)
    done = system.run_cli("handlers", *option, env={"REDIS_URL": "redis://127.0.0.1:1"})
    assert done.returncode == 0
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("what workers run is unknown, because Redis cannot be read: the Redis server at ")
    assert "does not answer" in sentence
    if option:
        (one,) = json.loads(done.stdout)
        assert (one["handler"], one["state"], one["running"]) == ("shop.greet", "unknown", None)
    else:
        assert re.search(r"^shop\.greet +unknown .* unknown ", done.stdout, re.MULTILINE)


def test_handlers_warns_of_stores_that_the_config_does_not_have(make_system: Callable[..., System]) -> None:
    """docs/plugins.md says so; only doctor did."""
    for options, warning in (
        (
            '"order.*", stores="nort"',
            "shop.greet is for the store nort, which is not configured; there are: north, south",
        ),
        ('"order.*", stores="n*"', ""),
        ('"order.*"', ""),
    ):
        system = make_system(plugin=HELLO.replace('"order.*"', options))
        assert system.run_cli("handlers").stderr.strip() == warning


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--store", "nort"], "no store nort is configured; did you mean north?"),
        (["--store", "zzz"], "no store zzz is configured"),
        (["--topic", "ordr.*"], "no known topic is ordr.*; did you mean order.*?"),
        (["--topic", "order.craeted"], "no known topic is order.craeted; did you mean order.created?"),
        (["--topic", "order.delivered"], ""),
        (["--topic", "ord*"], ""),
        (["--topic", "warehouse.flooded"], ""),
        (["--store", "north"], ""),
    ],
)
def test_events_says_which_name_may_be_wrong_if_nothing_is_found(system: System, options: list[str], hint: str) -> None:
    for json_ in ([], ["--json"]):
        done = system.run_cli("events", *options, *json_)
        assert (done.returncode, done.stderr.strip()) == (0, hint)


def test_events_says_which_handler_may_be_wrong_if_nothing_is_found(system: System) -> None:
    system.inbox.declare([Declaration("ledger.book", "1", ("*",), ("*",))])
    for name, hint in (
        ("ledger.bok", "no worker has a handler ledger.bok; did you mean ledger.book?"),
        ("zzz", "no worker has a handler zzz"),
        ("ledger.book", ""),
        ("intake", ""),
    ):
        done = system.run_cli("events", "--handler", name)
        assert (done.returncode, done.stderr.strip()) == (0, hint)
        assert "no events found" in done.stdout


def test_events_of_a_store_that_was_removed_are_listed_without_a_hint(system: System) -> None:
    event_id = system.accept("order.created")
    text = system.config_file.read_text().replace("[stores.north]", "[stores.west]")
    system.config_file.write_text(text)
    done = system.run_cli("events", "--store", "north", "--json")
    assert [one["id"] for one in json.loads(done.stdout)] == [event_id]
    assert done.stderr == ""


def test_handlers_that_running_workers_have_not_loaded_need_a_reload(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO)
    start = "start one; until then events wait"
    assert start in system.run_cli("handlers").stdout
    system.declare_as_worker()
    shown = system.run_cli("handlers").stdout
    assert "shop.greet: the running workers have not loaded it; they settle events without it" in shown
    assert "send HUP to `storehooks worker`: it reloads config and plugins; or restart it" in shown
    assert start not in shown
    (row,) = json.loads(system.run_cli("handlers", "--json").stdout)
    assert row["state"] == "not loaded"


def test_handlers_explain_shows_a_long_reason_whole(system: System) -> None:
    system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    why = f"shop.py:3: {'it cannot be loaded, ' * 20}as the last words say"
    system.inbox.finish([Outcome(run, "failed", {"error": why})])
    assert why in " ".join(system.run_cli("handlers", "explain", "last").stdout.split())


def test_every_list_ends_with_the_next_command(system: System) -> None:
    assert "storehooks send" in system.run_cli("events").stdout
    system.accept()
    shown, tail = (line.split()[:3] for line in system.run_cli("events").stdout.rstrip().splitlines()[-2:])
    assert (shown, tail) == (["storehooks", "events", "show"], ["storehooks", "events", "tail"])


def test_send_follows_the_event_to_its_handlers(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO)
    system.start("web", "worker", "housekeeper")
    done = system.run_cli("send", "order.created", "--store", "north", "--id", "msg_7", "--set", "customer.name=Ada")
    assert done.returncode == 0, done.stderr
    assert "200 accepted" in done.stdout
    assert "shop.greet   done" in done.stdout
    again = system.run_cli("send", "order.created", "--store", "north", "--id", "msg_7")
    assert "200 duplicate" in again.stdout
    (event,) = system.ledger.events()
    assert system.ledger.event(event.id).body.count(b'"Ada"') == 1


@pytest.mark.parametrize("tamper", ["signature", "body", "time"])
def test_a_tampered_delivery_is_refused(make_system: Callable[..., System], tamper: str) -> None:
    system = make_system()
    system.start("web")
    done = system.run_cli("send", "order.created", "--store", "north", "--tamper", tamper)
    assert done.returncode == 1
    assert "401 Unauthorized" in done.stdout
    assert system.ledger.events() == []


FAILING = HELLO.replace('return "hi"', "raise KeyError('vat_id')").replace('"order.*"', '"order.*", retries=RETRIES')


@pytest.mark.parametrize(("retries", "says"), [("0", "failed after"), ("(600,)", "still open after")])
def test_send_exits_1_when_a_handler_fails(make_system: Callable[..., System], retries: str, says: str) -> None:
    system = make_system(plugin=FAILING.replace("RETRIES", retries))
    system.start("web", "worker")
    done = system.run_cli("send", "order.created", "--store", "north")
    assert done.returncode == 1
    assert "KeyError: 'vat_id'" in done.stdout
    followed = re.search(says + r" (\d+) (ms|s)", done.stdout)
    assert followed
    assert followed[2] == "ms" or int(followed[1]) < FOLLOW_SECONDS, "a run that is due later is not waited for"
    (event,) = system.ledger.events()
    assert f"storehooks events show {event.id}" in done.stdout


def test_send_to_a_receiver_that_does_not_answer_says_where_it_is(make_system: Callable[..., System]) -> None:
    """PORT makes the web process listen at another address than the config says; it is found by its process file."""
    system = make_system()
    bind = f"127.0.0.1:{system.port}"

    def advice() -> str:
        sent = system.run_cli("send", "order.created", "--store", "north")
        assert (sent.returncode, "does not answer: " in sent.stderr) == (2, True)
        return " ".join(sent.stderr.split())

    assert "`storehooks dev` starts the receiver" in advice()
    other = f"127.0.0.1:{free_port()}"
    system.config_file.write_text(system.config_file.read_text().replace(bind, other))
    (web,) = system.start("web", env={"PORT": str(system.port)})
    elsewhere = f"listens at 0.0.0.0:{system.port}: correct [receiver] public_url, or "
    assert f"{elsewhere}start `storehooks web` without PORT set" in advice()
    web.stop()
    assert "`storehooks dev` starts the receiver" in advice()

    text = system.config_file.read_text().replace(f'bind = "{other}"', f'bind = "{bind}"')
    system.config_file.write_text(text)  # only public_url leads elsewhere now
    system.start("web")
    assert "the web process runs, so see its log for the cause" in advice()


def test_without_the_embedded_server_its_data_dir_is_named(tmp_path: Path) -> None:
    """The error said only to start the server."""
    (tmp_path / "config.toml").write_text("")
    done = storehooks("stats", cwd=tmp_path, env={**os.environ, "STOREHOOKS_REDIS__DATA_DIR": f"{tmp_path}/elsewhere"})
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert f"data_dir is {tmp_path}/elsewhere, by $STOREHOOKS_REDIS__DATA_DIR" in said


@pytest.mark.parametrize(
    ("topics", "stores", "hint"),
    [
        (["order.*"], ["kiosk"], "order.paid --store kiosk"),
        (["order.created"], ["*"], "order.created --store north"),
        (["order.*"], ["north"], "order.created --store north"),
        (["product.*"], ["*"], "product.created --store north"),
        (["loyalty.awarded"], ["*"], "loyalty.awarded --store kiosk"),
    ],
)
def test_handlers_names_an_event_that_a_store_sends_to_one_of_them(
    make_system: Callable[..., System], topics: list[str], stores: list[str], hint: str
) -> None:
    """It named a topic that the first store never sends, or one for no handler."""
    plugin = f"from storehooks import Router\nr = Router('r')\n@r.on(*{topics}, stores={stores})\ndef f(e, c): ..."
    kiosk = """
[schemes.own]
extends = "hex-body"
topics = {SALE_CLOSED = "order.paid"}
[stores.kiosk]
scheme = "own"
signing_secrets = ["c2VjcmV0IG9mIGEga2lvc2s="]
"""
    system = make_system(plugin=plugin, more=kiosk)
    assert f"storehooks send {hint} " in system.run_cli("handlers").stdout
    assert "storehooks send order.paid --store kiosk " in system.run_cli("stores", "show", "kiosk").stdout


def test_send_warns_of_an_unknown_topic_and_sends_it(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO)
    system.start("web", "worker")
    system.inbox.declare([Declaration("crm.award", "1", ("loyalty.points_awarded", "loyalty.*"), ("*",))])

    def printed(topic: str) -> str:
        return system.run_cli("send", topic, "--store", "north", "--print").stderr

    done = system.run_cli("send", "order.craeted", "--store", "north")
    assert done.returncode == 0
    assert "unknown topic order.craeted; did you mean order.created?" in done.stderr
    assert system.ledger.events()[0].topic == "order.craeted"
    assert "unknown topic custmer.created; did you mean customer.created?" in printed("custmer.created")
    assert "unknown topic zzz. It is sent anyway." in printed("zzz")
    assert "unknown topic" not in printed("order.delivered"), "the sandbox store sends it"
    for known in ("order.created", "orders/create", "loyalty.points_awarded"):
        assert printed(known) == ""
    assert printed("order.craeted") == "", "the store has sent it, so it is known"
    pattern = system.run_cli("send", "order.*", "--store", "north")
    assert pattern.returncode == 2
    assert "'order.*' is not a topic" in pattern.stderr


def test_control_characters_of_a_store_are_replaced(system: System) -> None:
    system.accept("order.created", data={"id": "\x1b[31mred\x07\u202e"})
    shown = system.run_cli("events").stdout
    assert "red" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["events", "show", "nothing"], "no event 'nothing'"),
        (["send", "order.created"], "choose one with --store: north, south"),
        (["send", "order.created", "--store", "nort"], "no store nort"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_use_prints_one_sentence_and_exits_2(system: System, arguments: list[str], says: str) -> None:
    done = system.run_cli(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_config_can_be_given_before_the_command(system: System) -> None:
    done = storehooks("--config", str(system.config_file), "stats", "--json")
    assert json.loads(done.stdout)["accepted"] == 0


def test_init_writes_a_valid_config(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return storehooks(*arguments, cwd=tmp_path)

    first = run("init")
    assert (first.returncode, "contains a secret" in first.stderr) == (0, False)
    assert (tmp_path / "data/.gitignore").read_text() == "*\n"
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0
    assert "hello.greet" in run("handlers").stdout
    assert (tmp_path / "config.toml").stat().st_mode & 0o077 == 0
    again = run("init")
    assert again.returncode == 2
    assert "not overwritten" in again.stderr


def test_init_in_a_git_repository_warns_of_the_secret(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "shop").mkdir()
    done = storehooks("init", cwd=tmp_path / "shop")
    assert done.returncode == 0
    assert "config.toml contains a secret: before you commit it" in done.stderr


def test_the_config_of_init_uses_the_api_of_the_sandbox_store(tmp_path: Path) -> None:
    env = {"STOREHOOKS_SANDBOX__BIND": f"127.0.0.1:{free_port()}"}
    assert storehooks("init", cwd=tmp_path).returncode == 0
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("127.0.0.1:8002", env["STOREHOOKS_SANDBOX__BIND"]))
    command = [sys.executable, "-m", "workers.cli", "sandbox", "--every", "0"]
    sandbox = Process(command, log=tmp_path / "sandbox.log", env=env, cwd=tmp_path)
    try:
        eventually(lambda: storehooks("api", "orders", "list", cwd=tmp_path, env=env).returncode == 0)
    finally:
        sandbox.stop()


def test_a_store_without_an_api_is_an_error_that_names_the_keys_and_the_sandbox(system: System) -> None:
    for command in (["api", "orders", "list", "--store", "north"], ["subscriptions", "plan"]):
        done = system.run_cli(*command)
        assert done.returncode == 2
        for word in (
            "base_url",
            "auth",
            "[stores." if command[0] == "subscriptions" else "config.toml:",
            "storehooks dev",
        ):
            assert word in done.stderr


def test_help_names_every_command(system: System) -> None:
    shown = storehooks("--help").stdout
    for word in ("dev", "web", "worker", "sandbox", "init", "stats", "send", "events", "handlers", "refused", "scheme"):
        assert word in shown


def test_a_closed_pipe_is_not_an_error(system: System) -> None:
    for _ in range(60):
        system.accept()
    command = f"{sys.executable} -m workers.cli events --config {system.config_file} | head -1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.startswith("RECEIVED")
    assert eventually(lambda: "Traceback" not in done.stderr)


def test_settings_that_are_off_are_empty_cells() -> None:
    assert [handlers.LISTING.cells["coalesce"](seconds) for seconds in (0.0, 2.0)] == ["", "2 s"]
    assert [failures.ACTIONS.cells["rate"](rate) for rate in (0.0, 10.0)] == ["", "10/s"]
