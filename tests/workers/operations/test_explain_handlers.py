"""handlers explain: for each handler, why it was or was not called."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from receiver.contract.topics import PROBE
from receiver.inbox import Declaration, keys
from receiver.inbox.queries.events import EventRecord, EventSummary, RunRecord
from receiver.inbox.queries.handlers import AbsentHandler, HandlerQueries
from tests.support.harness import System, eventually
from workers.cli.handlers_explain import _rows as table_rows
from workers.operations.explain_handlers import HandlerExplanation, RoutingFacts, explain

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)

GONE = {"s.a": AbsentHandler(NOON, 1)}


def declared(name: str, topics: str = "order.*", stores: str = "*", limit: str | None = None) -> Declaration:
    return Declaration(
        name, "1", (topics,), (stores,), details={"limit": limit, "plugin": "shop", "file": "f", "line": 3}
    )


def run(name: str, status: str, attempts: int = 1, **more: Any) -> RunRecord:
    fields: dict[str, Any] = {"version": "1", "result": None, "error": None, "due_at": None, **more}
    return RunRecord(name, status=status, attempts=attempts, **fields)


def explained(
    *runs: RunRecord, handler: Declaration | None = None, loaded: bool = False, **facts: Any
) -> HandlerExplanation:
    about = EventSummary(
        "e1", "north", facts.pop("topic", "order.paid"), "msg", "1", NOON, "webhook", facts.pop("status", "open")
    )
    known = {handler.handler: handler} if handler else {}
    given = {"declared": {} if loaded else known, "loaded": known if loaded else {}}
    (found,) = explain(RoutingFacts(EventRecord(about, {}, b"", runs, None), **given, **facts))
    return found


@pytest.mark.parametrize(
    ("found", "called", "reason", "why"),
    [
        (explained(run("s.a", "done", result="ok")), True, "called", 'done, attempt 1: "ok"'),
        (explained(run("s.a", "running", 0)), True, "running", "running, attempt 1"),
        (
            explained(run("s.a", "dropped", result="skipped: total > 1 was false", reason="skipped")),
            False,
            "skipped",
            "when: total > 1 was false",
        ),
        (
            explained(run("s.a", "dropped", result="echo of a write by s.b, in its run of event e0", reason="echo")),
            False,
            "echo",
            'echo of a write by s.b, in its run of event e0; with echo="run" it is called',
        ),
        (
            explained(run("s.a", "waiting", 0, due_at=NOON, error="suspected loop: many", reason="loop")),
            False,
            "loop",
            "suspected loop: many; due 2026-11-15 12:00:00 UTC",
        ),
        (
            explained(run("s.a", "waiting", 0, due_at=NOON, error="it is writing", reason="own-write")),
            False,
            "waiting",
            "it is writing; due 2026-11-15 12:00:00 UTC",
        ),
        (explained(run("s.a", "dropped", result="a test")), True, "dropped", 'dropped: "a test"'),
        (explained(run("s.a", "dropped", 0, result="noise")), False, "dropped", 'dropped: "noise"'),
        (explained(run("s.a", "failed", error="KeyError")), True, "failed", "failed, attempt 1: KeyError"),
        (explained(run("s.a", "failed", error="gone", reason="no-such-handler")), False, "failed", "gone"),
        (explained(run("s.a", "waiting", 2, due_at=NOON, error="x")), True, "retrying", "due 2026-11-15 12:00:00 UTC"),
        (explained(run("s.a", "waiting", 0, due_at=NOON)), False, "delayed", "due 2026-11-15 12:00:00 UTC"),
        (
            explained(handler=declared("s.a", "*"), topic=PROBE, status="settled"),
            False,
            "probe",
            "a probe of our own URL",
        ),
        (
            explained(run("s.a", "waiting", 0), paused=frozenset({"handler:s.a"})),
            False,
            "paused",
            "the handler is paused",
        ),
        (
            explained(run("s.a", "waiting", 0), paused=frozenset({"store:north"})),
            False,
            "paused",
            "store north is paused",
        ),
        (explained(run("s.a", "waiting", 0)), False, "absent", "no worker has this handler any more"),
        (
            explained(run("s.a", "waiting", 2, due_at=NOON, error="x"), handler=declared("s.a"), absent=GONE),
            False,
            "absent",
            "no worker has this handler any more, since 12:00:00 UTC",
        ),
        (explained(handler=declared("s.a"), status="settled", absent=GONE), False, "absent", "no worker has this"),
        (
            explained(run("s.a", "waiting", 0, error="another run is doing s.a|k just now", due_at=NOON)),
            True,
            "waiting",
            "another run is doing s.a|k just now; the next call is due 2026-11-15 12:00:00 UTC",
        ),
        (
            explained(run("s.a", "waiting", 0), handler=declared("s.a", limit="erp"), busy={"erp": NOON}),
            False,
            "limit",
            "erp is busy until 12:00:00",
        ),
        (
            explained(run("s.a", "waiting", 0), handler=declared("s.a", limit="erp"), full=frozenset({"erp"})),
            False,
            "limit",
            "[limits.erp] has no free slot",
        ),
        (
            explained(run("s.a", "waiting", 0, error="429"), handler=declared("s.a"), busy={"h:s.a": NOON}),
            True,
            "limit",
            "429; the handler is busy until 12:00:00",
        ),
        (
            explained(run("s.a", "waiting", 0, error="too many", reason="loop"), handler=declared("s.a")),
            False,
            "waiting",
            "ready; waiting for a worker",
        ),
        (explained(run("s.a", "waiting", 0), handler=declared("s.a")), False, "waiting", "waiting for a worker"),
        (
            explained(run("s.a", "waiting", 0), handler=declared("s.a", limit="erp"), paced=frozenset({"erp"})),
            False,
            "waiting",
            "ready; waiting for a worker, or for the rate of [limits.erp]",
        ),
        (
            explained(run("s.a", "waiting", 0, error="retired", reason="no-such-handler"), handler=declared("s.a")),
            False,
            "waiting",
            "ready; waiting for a worker",
        ),
        (
            explained(handler=declared("s.a", topics="product.*")),
            False,
            "topic",
            "listens to product.*, not order.paid",
        ),
        (explained(handler=declared("s.a", stores="south")), False, "store", "it is for south, not north"),
        (
            explained(handler=replace(declared("s.a"), stores=(), details={"store_limits": "acme in its code, ..."})),
            False,
            "store",
            "it is for no store, not north (acme in its code, ...)",
        ),
        (explained(handler=declared("s.a"), loaded=True), False, "not-loaded", "no worker has loaded it"),
        (explained(handler=declared("s.a")), False, "not-routed", "not routed yet"),
        (
            explained(handler=declared("s.a"), paused=frozenset({"store:north"})),
            False,
            "paused",
            "the store north is paused",
        ),
        (
            explained(handler=declared("s.a", topics="*"), topic="unreadable", status="failed"),
            False,
            "unreadable",
            "could not be read",
        ),
        (explained(handler=declared("s.a"), status="settled"), False, "added-later", "did not exist when"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_each_reason_has_an_explanation(found: HandlerExplanation, called: bool, reason: str, why: str) -> None:
    assert (found.called, found.reason) == (called, reason)
    assert why in found.why


@pytest.mark.parametrize("loaded", [True, False])
def test_only_a_handler_of_this_config_can_be_run_here(loaded: bool) -> None:
    """For a while after a rename, workers still count as having the old name."""
    found = explained(run("s.a", "waiting", 0, due_at=NOON), handler=declared("s.a"), loaded=loaded)
    assert found.fix == ("to try it now: storehooks handlers run s.a --event e1" if loaded else "")


PLUGIN = """
from workers import Router
router = Router("shop")
@router.on("order.*")
def greet(event, ctx):
    return "hello"
@router.on("order.*", when={"total": "> 100"})
def vip(event, ctx):
    pass
@router.on("product.*")
def stock(event, ctx):
    pass
@router.on("order.*", stores="south")
def south(event, ctx):
    pass
@router.on("order.*", delay="1d")
def tomorrow(event, ctx):
    pass
@router.on("order.*", limit="erp")
def slow(event, ctx):
    from workers import Busy
    raise Busy("stock-taking", after=600)
@router.on("order.*")
def held(event, ctx):
    pass
"""


@pytest.fixture
def shop(make_system: Callable[..., System]) -> Iterator[System]:
    system = make_system(plugin=PLUGIN, more="[limits.erp]\nconcurrency = 1\n")
    system.inbox.declare([])
    system.start("worker", "housekeeper")
    eventually(lambda: system.inbox.declarations().handlers)
    system.administration.pause(handler="shop.held")
    return system


def test_all_handlers_of_an_event_are_explain_command(shop: System) -> None:
    event_id = shop.accept(data={"id": 1, "total": "42.00"})
    for name in ("greet", "vip"):
        eventually(
            lambda name=name: (one := shop.run_of(event_id, f"shop.{name}")) and one.status in ("done", "dropped")
        )
    eventually(HandlerQueries(shop.client).busy_limits)
    shop.plugin.write_text(PLUGIN + "@router.on('order.*')\ndef new(event, ctx):\n    pass\n")
    told = {one["handler"].removeprefix("shop."): one for one in json.loads(_explain_command(shop, event_id, "--json"))}
    assert {name: one["reason"] for name, one in told.items()} == {
        "greet": "called",
        "vip": "skipped",
        "stock": "topic",
        "south": "store",
        "tomorrow": "delayed",
        "slow": "limit",
        "held": "paused",
        "new": "not-loaded",
    }
    assert told["vip"]["why"] == "when: total > 100 was false"
    assert told["slow"]["called"], told["slow"]
    assert "stock-taking; erp is busy until " in told["slow"]["why"]
    shown = _explain_command(shop, event_id)
    listed = shop.run_cli("handlers").stdout
    assert re.search(r"^shop\.slow +busy ", listed, flags=re.M)
    assert re.search(r"shop\.slow is busy until .+ by \[limits\.erp\]; its runs wait", listed), listed
    assert re.search(r"WARN  busy +shop\.slow: Busy until .*; runs wait", shop.run_cli("doctor").stdout)
    assert "shop.held" in shown
    assert "storehooks handlers resume shop.held" in shown
    newer = shop.accept("product.updated", data={"id": 55}, delivery_id="msg_newer")
    found = [shop.ledger.find_id(one) for one in (event_id, "1", "55", "msg_newer", "?")]
    assert found == [event_id, event_id, newer, newer, ""]


def test_a_faulty_plugin_is_named_only_for_its_own_handlers() -> None:
    faults = frozenset({("shop", "shop.py:3: broken"), ("erp", "erp.py:1: broken")})
    own = explained(run("s.a", "waiting", 0), handler=declared("s.a"), plugin_faults=faults)
    assert own.why == "ready; a worker cannot load the plugin shop any more: shop.py:3: broken"
    not_routed = explained(handler=declared("s.a"), plugin_faults=faults)
    assert (
        not_routed.why
        == "the event is not routed yet; a worker cannot load the plugin shop any more: shop.py:3: broken"
    )
    assert not_routed.fix == "storehooks doctor"
    other = explained(
        run("s.a", "waiting", 0), handler=declared("s.a"), plugin_faults=frozenset({("erp", "erp.py:1: broken")})
    )
    assert other.why == "ready; waiting for a worker"


def test_a_handler_removed_from_the_plugins_is_reported_with_the_command_that_ends_its_runs(shop: System) -> None:
    shop.inbox.declare([declared("shop.gone"), declared("shop.quiet", topics="product.*")])
    event_id = shop.accept()
    eventually(lambda: shop.run_of(event_id, "shop.gone"))
    for name in (
        name for name in shop.client.hkeys(keys.DECLARED_AT) if name.startswith((b"shop.gone", b"shop.quiet"))
    ):
        shop.client.hset(keys.DECLARED_AT, name, int((time.time() - 30) * 1000))
    told = {one["handler"]: one for one in json.loads(_explain_command(shop, event_id, "--json"))}
    assert told["shop.gone"]["reason"] == "absent"
    assert told["shop.gone"]["why"].startswith("no worker has this handler any more, since ")
    assert told["shop.gone"]["fix"].endswith("if it was removed for good: storehooks handlers retire shop.gone")
    assert "storehooks handlers retire shop.gone" in _explain_command(shop, event_id)
    findings = {one["text"]: one for one in json.loads(shop.run_cli("doctor", "--json").stdout)["findings"]}
    (gone,) = [one for text, one in findings.items() if text.startswith("shop.gone: no worker has this handler")]
    assert gone["level"] == "fail"
    assert gone["text"].endswith("; 1 run of it waits")
    assert gone["fix"].startswith("start a worker that has the plugin; ")
    assert gone["fix"].endswith("storehooks handlers retire shop.gone")
    (quiet,) = [one for text, one in findings.items() if text.startswith("shop.quiet: no worker has this handler")]
    assert quiet["level"] == "warn", "nothing waits for it yet"
    shop.plugin.write_text(PLUGIN + "@router.on('order.*')\ndef gone(event, ctx):\n    pass\n")
    doctor = shop.run_cli("doctor", "--json")
    assert doctor.returncode == 1, "it is in this config again, and no worker has loaded it"
    (back,) = [one for one in json.loads(doctor.stdout)["findings"] if "shop.gone" in one["text"]]
    assert (back["level"], back["text"], back["fix"][:8]) == ("fail", gone["text"], "send HUP")
    listed = shop.run_cli("handlers").stdout
    assert "shop.gone: no worker has this handler; 1 run waits for it\n  start or reload (HUP) a worker" in listed
    shop.plugin.write_text(PLUGIN)
    retired = shop.run_cli("handlers", "retire", "shop.gone", "--yes")
    assert retired.stdout.startswith("shop.gone is retired; 1 waiting run failed\n")
    assert retired.stderr == ""
    assert "shop.gone" not in shop.run_cli("doctor").stdout
    shop.administration.pause(handler="shop.greet")
    waiting = shop.accept()
    eventually(lambda: shop.run_of(waiting, "shop.greet"))
    refused = shop.run_cli("handlers", "retire", "shop.greet")
    assert refused.returncode == 2
    assert "a worker had this handler within the last 20 s" in refused.stderr
    assert refused.stderr.rstrip().endswith("confirm it with --yes")
    assert shop.run_of(waiting, "shop.greet").status == "waiting", "a worker has it: nothing fails unasked"
    assert "if it still has it" in shop.run_cli("handlers", "retire", "shop.greet", "--yes").stderr


def _explain_command(system: System, event_id: str, *more: str) -> str:
    done = system.run_cli("handlers", "explain", event_id, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_unknown_event_is_a_usage_error(system: System) -> None:
    done = system.run_cli("handlers", "explain", "nothing")
    assert done.returncode == 2
    assert "no event 'nothing'" in done.stderr


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (explained(run("s.a", "dropped", result="a test")), 'dropped: "a test"'),
        (explained(run("s.a", "failed", error="E")), "failed, attempt 1: E"),
        (explained(run("s.a", "done")), "called: done, attempt 1"),
    ],
)
def test_the_table_says_the_reason_once(found: HandlerExplanation, text: str) -> None:
    assert table_rows(found)[0][2] == text
