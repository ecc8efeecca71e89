"""Failures: grouped by cause, replayed with a fix, dropped with a reason."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from receiver.inbox import Declaration, FailureQueries, Outcome, keys
from receiver.inbox.administration import ReopenResult
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import System, eventually

BROKEN = """
__version__ = "1.4.2"
import os
from workers import Router
router = Router("erp")
@router.on("order.*", retries=0)
def export(event, ctx):
    return event.data["vat_id"]
@router.on("order.*")
def fine(event, ctx):
    return f"attempt {ctx.attempt}, replay {ctx.replay}"
"""
FIXED = BROKEN.replace('event.data["vat_id"]', 'event.data.get("vat_id", "none")').replace("1.4.2", "1.4.3")


def fail(
    system: System, error: str = "KeyError: 'x'", group: str = "a1f3aaaa", how: str = "failed", **event: object
) -> str:
    event_id = system.accept(**event)
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    detail = {"error": error, "group": group, "version": "1", "traceback": "Traceback: here"}
    system.inbox.finish([Outcome(run, how, detail, delay=60)])  # type: ignore[arg-type]
    return event_id


def test_failures_of_one_cause_are_one_group(system: System) -> None:
    fail(system)
    fail(system, how="retry", store="south")
    fail(system, error="Fail: unknown SKU", group="77c0bbbb")
    first, second = sorted(FailureQueries(system.client).groups().entries, key=lambda one: -one.stores)
    assert (first.handler, first.failed, first.retrying, first.stores) == ("shop.greet", 1, 1, 2)
    assert (second.failed, second.error) == (1, "Fail: unknown SKU")


def test_the_list_says_what_is_true_of_versions_and_pauses(system: System) -> None:
    fail(system)
    system.inbox.declare([Declaration("shop.greet", version, ("*",), ("*",)) for version in ("1", "2")])
    shown = system.run_cli("failures").stdout
    assert "All of a1f3aaaa ran shop.greet 1.\n" in shown, "version 2 may have had this error, too"
    assert "handlers pause shop.greet" in shown
    system.administration.pause(handler="shop.greet")
    system.client.hdel(keys.GROUP + "a1f3aaaa", "v:1")
    system.client.hset(keys.GROUP + "a1f3aaaa", "v:?", 1)
    shown = system.run_cli("failures").stdout
    assert "All of" not in shown, "no version is known of a run that never ran"
    assert shown.index("failures replay --group a1f3aaaa --first 5") < shown.index("handlers resume shop.greet")
    assert "handlers pause" not in shown


def test_runs_of_a_handler_that_is_gone_are_to_be_replayed_or_dropped(system: System) -> None:
    """The list suggested to pause it, and the group to run it here."""
    event_id = system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, "busy", delay=30)])
    system.administration.retire("shop.greet")
    assert system.status(event_id) == "failed"
    (group,) = FailureQueries(system.client).groups().entries
    for arguments in (["failures"], ["failures", "show", group.id]):
        shown = system.run_cli(*arguments).stdout
        assert "handlers pause" not in shown
        assert "handlers run" not in shown
        assert f"storehooks failures replay --group {group.id}" in shown
        assert f"storehooks failures drop --group {group.id} --reason TEXT" in shown


def test_a_cut_list_as_json_says_so_on_stderr(system: System) -> None:
    fail(system), fail(system)
    cut = system.run_cli("failures", "list", "--json", "--limit", "1")
    assert (len(json.loads(cut.stdout)), "--limit" in cut.stderr) == (1, True)
    assert "--limit" not in system.run_cli("failures", "list", "--json").stderr
    assert "other causes" in system.run_cli("failures", "show", "beef").stderr


def test_a_run_that_succeeds_leaves_its_group(system: System) -> None:
    fail(system, how="retry")
    system.client.zadd(keys.LATER, dict.fromkeys(system.client.zrange(keys.LATER, 0, -1), 1))
    system.housekeeping.tick()
    run = claim_one(system.inbox, "shop.greet")
    system.inbox.finish([Outcome(run, "done")])
    assert FailureQueries(system.client).groups().entries == []
    assert not system.client.keys("sh:g*")


def test_failures_are_listed_run_by_run_as_json(system: System) -> None:
    event_id = fail(system, how="retry")
    (told,) = json.loads(system.run_cli("failures", "list", "--json").stdout)
    assert told["next_at"] > told["failed_at"]
    assert {
        k: told[k] for k in ("event", "store", "topic", "handler", "version", "status", "attempts", "error", "group")
    } == {
        "event": event_id,
        "store": "north",
        "topic": "order.created",
        "handler": "shop.greet",
        "version": "1",
        "status": "retrying",
        "attempts": 1,
        "error": "KeyError: 'x'",
        "group": "a1f3aaaa",
    }


def test_a_group_shows_its_traceback_and_an_example(system: System) -> None:
    event_id = fail(system)
    shown = system.run_cli("failures", "show", "a1f3").stdout
    assert "Traceback: here" in shown
    assert "versions  1 (1 failed attempt)" in shown, "a run may have failed several times"
    assert f"--event {event_id}" in shown
    assert system.run_cli("failures", "show", "beef").returncode == 2


def test_a_replayed_failure_is_open_again_and_settles(system: System) -> None:
    event_id = fail(system)
    assert system.administration.reopen([f"{event_id}|shop.greet"], {}) == [ReopenResult.READY]
    assert (system.status(event_id), FailureQueries(system.client).groups().entries) == ("open", [])
    assert system.identity_holds()
    run = claim_one(system.inbox, "shop.greet")
    assert (run.attempts, run.replays) == (0, 1)
    system.inbox.finish([Outcome(run, "done")])
    assert system.status(event_id) == "settled"
    assert system.identity_holds()


def test_a_dropped_failure_settles_the_event_and_keeps_its_reason(system: System) -> None:
    failed, retrying = fail(system), fail(system, how="retry")
    done = system.run_cli("failures", "drop", "--group", "a1f3", "--reason", "test data", "--yes")
    assert "2 runs dropped" in done.stdout
    for event_id in (failed, retrying):
        assert system.status(event_id) == "settled"
        assert system.run_of(event_id, "shop.greet").result == "test data"
    assert system.identity_holds()


def test_an_event_without_a_body_cannot_be_replayed(system: System) -> None:
    event_id = fail(system)
    system.client.delete(keys.BODY + event_id)
    assert system.administration.reopen([f"{event_id}|shop.greet"], {}) == [ReopenResult.NO_BODY]
    assert system.administration.reopen(["nothing|shop.greet"], {}) == [ReopenResult.GONE]
    assert system.administration.reopen([f"{event_id}|shop.other"], {}) == [ReopenResult.ABSENT]
    assert system.status(event_id) == "failed"


def test_a_fixed_version_settles_what_the_broken_one_failed(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=BROKEN, child_processes=4)
    worker, _ = system.start("worker", "housekeeper")
    ids = [system.accept(data={"id": n}, store="north" if n % 3 else "south") for n in range(200)]
    for one in ids:
        assert system.settled(one, within=20) == "failed"
    (group,) = FailureQueries(system.client).groups().entries
    assert (group.handler, group.failed, group.stores, group.versions) == ("erp.export", 200, 2, {"1.4.2": 200})
    shown = system.run_cli("failures").stdout
    assert "All of" in shown
    assert "erp.export 1.4.2" in shown
    system.plugin.write_text(FIXED)
    worker.send(signal.SIGHUP)
    eventually(lambda: '"reloaded"' in system.log("worker"))
    assert (
        "5 runs replayed" in system.run_cli("failures", "replay", "--group", group.id, "--first", "5", "--yes").stdout
    )
    eventually(lambda: system.ledger.counters().total["settled"] == 5)
    system.run_cli("failures", "replay", "--group", group.id, "--yes")
    eventually(lambda: system.ledger.counters().total["settled"] == 200)
    assert {system.run_of(one, "erp.fine").attempts for one in ids} == {1}
    assert system.identity_holds()


def test_an_interrupted_replay_continues_and_replays_each_run_once(make_system: Callable[..., System]) -> None:
    system = make_system()
    ids = [fail(system) for _ in range(60)]
    process = system.start_cli("failures", "replay", "--group", "a1f3aaaa", "--rate", "40/s", "--yes")
    eventually(lambda: system.client.zcard("sh:ready:shop.greet") >= 10)
    process.send(signal.SIGINT)
    assert process.wait() == 130
    assert "the same command continues" in process.output()
    reopened = system.client.zcard("sh:ready:shop.greet")
    assert 10 <= reopened < 60
    system.run_cli("failures", "replay", "--group", "a1f3aaaa", "--yes")
    assert system.client.zcard("sh:ready:shop.greet") == 60
    assert {system.client.hget(keys.EVENT + one, "p:shop.greet") for one in ids} == {b"1"}


def test_a_replay_respects_its_rate(make_system: Callable[..., System]) -> None:
    system = make_system()
    for _ in range(30):
        fail(system)
    began = time.monotonic()
    system.run_cli("failures", "replay", "--group", "a1f3aaaa", "--rate", "20/s", "--yes")
    assert time.monotonic() - began >= 1.4


def test_done_runs_are_replayed_by_filter_and_a_new_handler_gets_past_events(
    make_system: Callable[..., System],
) -> None:
    system = make_system(plugin=FIXED)
    worker, _ = system.start("worker", "housekeeper")
    ids = [system.accept("order.paid", data={"id": n}) for n in range(10)]
    other = system.accept("order.created", store="south")
    for one in (*ids, other):
        assert system.settled(one) == "settled"
    dry = system.run_cli("events", "replay", "--handler", "erp.fine", "--topic", "order.paid", "--dry-run")
    assert "10 runs match" in dry.stdout
    system.run_cli("events", "replay", "--handler", "erp.fine", "--topic", "order.paid", "--yes")
    for one in ids:
        eventually(lambda one=one: system.run_of(one, "erp.fine").result == "attempt 1, replay True")
    assert system.run_of(other, "erp.fine").result == "attempt 1, replay False"
    system.plugin.write_text(FIXED + '@router.on("order.*")\ndef added(event, ctx):\n    return "late"\n')
    worker.send(signal.SIGHUP)
    eventually(lambda: any(one.handler == "erp.added" for one in system.inbox.declarations().handlers))
    system.run_cli("events", "replay", "--handler", "erp.added", "--yes")
    for one in (*ids, other):
        eventually(lambda one=one: (run := system.run_of(one, "erp.added")) and run.result == "late")
    assert system.identity_holds()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_thousand_failures_over_twelve_stores_are_one_group_and_settle(make_system: Callable[..., System]) -> None:
    stores = "".join(
        f'[stores.s{n}]\nsigning_secrets = ["whsec_dGVzdCBzZWNyZXQgb2Ygb25lIHN0b3Jl"]\n' for n in range(12)
    )
    system = make_system(plugin=BROKEN, child_processes=4, more=stores)
    worker, _ = system.start("worker", "housekeeper")
    sample = {n: system.delivery(store=f"s{n}") for n in range(12)}
    for n in range(4000):
        one = sample[n % 12]
        system.inbox.accept([replace(one, event=replace(one.event, id=f"event{n}"))])
    eventually(lambda: system.ledger.counters().total["failed"] == 4000, 120)
    (group,) = FailureQueries(system.client).groups().entries
    assert (group.failed, group.stores) == (4000, 12)
    system.plugin.write_text(FIXED)
    worker.send(signal.SIGHUP)
    eventually(lambda: '"reloaded"' in system.log("worker"))
    process = system.start_cli("failures", "replay", "--group", group.id, "--rate", "400/s", "--yes")
    eventually(lambda: system.ledger.counters().total["settled"] > 1000, 30)
    os.kill(process.pid, signal.SIGINT)
    process.wait()
    left = system.ledger.counters().total["failed"]
    began = time.monotonic()
    system.run_cli("failures", "replay", "--group", group.id, "--rate", "400/s", "--yes")
    eventually(lambda: system.ledger.counters().total["settled"] == 4000, 60)
    took = time.monotonic() - began
    print(f"\n4,000 failures, 12 stores, 1 group; interrupted with {left:,} left, the rest in {took:.1f} s at 400/s")
    replays = Counter(system.client.hget(f"sh:e:event{n}", "p:erp.export") for n in range(4000))
    assert replays == {b"1": 4000}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_thousand_failures_are_listed_at_once(system: System) -> None:
    one = system.delivery()
    for start in range(0, 200_000, 500):
        ids = [f"event{n}" for n in range(start, start + 500)]
        batch = [replace(one, event=replace(one.event, id=name), unreadable="not JSON") for name in ids]
        system.inbox.accept(batch)
    began = time.monotonic()
    (group,) = FailureQueries(system.client).groups().entries
    listed = FailureQueries(system.client).latest(limit=100)
    took = time.monotonic() - began
    assert (group.failed, len(listed)) == (200_000, 100)
    print(f"\n200,000 failures: groups and the latest hundred in {took * 1000:.0f} ms")
    assert took < 1
