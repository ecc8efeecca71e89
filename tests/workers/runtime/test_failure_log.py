"""Failure log: failed attempts, runs that failed for good and refusals leave lines, without any content."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import RedisError

from receiver import logs
from receiver.contract.compose import compose
from receiver.inbox import Declaration, Inbox, Outcome, Run, StoredEvent, keys
from receiver.inbox.leases import LOSSES_ALLOWED
from receiver.inbox.outcomes import Ending, OutcomeKind, RunResult
from tests.support.harness import System, eventually, own_server
from tests.support.logged_lines import capture_logs
from workers.runtime.failure_log import FailureLog
from workers.runtime.server_outage import ServerOutage
from workers.runtime.worker.exchange import InboxExchange

WORD = "jane.doe@example.org"
"""Personal data: in payloads, in messages of exceptions and in headers; never in a log."""

PLUGIN = f"""
import os, time
from workers import Fail, Retry, Router

router = Router("erp")

@router.on("order.created", retries=(0.01,) * 5)
def flaky(event, ctx):
    if ctx.attempt <= 3:
        raise ConnectionError("the ERP refuses {WORD}: " + event.body.decode())
    return "done"

@router.on("order.paid", retries=(0.01,))
def hopeless(event, ctx):
    raise KeyError(event.data["email"])

@router.on("order.updated")
def refuses(event, ctx):
    raise Fail("no such customer: " + event.data["email"])

@router.on("order.deleted", retries=0, timeout=0.2)
def slow(event, ctx):
    time.sleep(60)

@router.on("order.cancelled", retries=0)
def dies(event, ctx):
    os.abort()

@router.on("order.shipped", retries=(0.01,))
def asks(event, ctx):
    if ctx.attempt == 1:
        raise Retry("{WORD} is not linked yet", after=0)
"""
LOGS = ("web", "worker", "housekeeper")


def lines(system: System, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in system.log(name).splitlines() if line.startswith("{")]


def about(system: System, name: str, event_id: str) -> list[dict[str, Any]]:
    """The lines of a log about one event."""
    return [line for line in lines(system, name) if line.get("event_id") == event_id]


def named(system: System, name: str, event: str) -> list[dict[str, Any]]:
    return [line for line in lines(system, name) if line["event"] == event]


def group_of(system: System, event_id: str, handler: str) -> str:
    """The failure group that the inbox has put a run into."""
    return str(system.client.hget(keys.EVENT + event_id, f"g:{handler}").decode().split()[0])


@pytest.fixture
def erp(make_system: Callable[..., System]) -> System:
    system = make_system(plugin=PLUGIN)
    text = system.config_file.read_text().replace("[stores.south]\n", "[stores.south]\nmax_stored = 2\n")
    system.config_file.write_text(text)
    return system


def test_each_failed_attempt_permanent_failure_and_refusal_is_logged_once(erp: System) -> None:
    erp.start("web", "worker", "housekeeper")
    data = {"id": 1001, "email": WORD}
    flaky = [erp.deliver("order.created", data=data) for _ in range(15)]
    hopeless, refuses, slow, dies, asks = (
        erp.deliver(f"order.{name}", data=data) for name in ("paid", "updated", "deleted", "cancelled", "shipped")
    )
    for event_id in (*flaky, asks):
        assert erp.settled(event_id, 30) == "settled"
    for event_id in (hopeless, refuses, slow, dies):
        assert erp.settled(event_id) == "failed"

    assert all([line["attempt"] for line in about(erp, "worker", event_id)] == [1, 2, 3] for event_id in flaky)
    attempts = [line for event_id in flaky for line in about(erp, "worker", event_id)]
    assert len(attempts) == 45
    (group,) = {line["group"] for line in attempts}
    expected = {
        "event": "attempt failed; it will be retried",
        "level": "warning",
        "store": "north",
        "topic": "order.created",
        "handler": "erp.flaky",
        "exception": "ConnectionError",
        "version": erp.inbox.declarations().handlers[0].version,
    }
    assert expected.items() <= attempts[0].items()
    assert 0 <= (next_try_of(attempts[0]) - datetime.fromisoformat(attempts[0]["timestamp"])).total_seconds() < 1

    first, last = about(erp, "worker", hopeless)
    assert (first["attempt"], last["attempt"]) == (1, 2)
    assert last["event"] == "run failed for good; see `storehooks failures`"
    assert (last["level"], last["exception"], last["next_try"]) == ("error", "KeyError", "none")
    assert last["group"] == first["group"] == group_of(erp, hopeless, "erp.hopeless") != group

    (refused,) = about(erp, "worker", refuses)
    assert (refused["exception"], refused["attempt"], refused["next_try"]) == ("Fail", 1, "none")
    (timed_out,) = about(erp, "worker", slow)
    assert (timed_out["exception"], timed_out["next_try"]) == ("RunTimeout", "none")
    (died,) = about(erp, "worker", dies)
    assert (died["why"], died["next_try"]) == ("its process was killed by SIGABRT", "none")
    (asked,) = about(erp, "worker", asks)
    assert (asked["exception"], asked["attempt"]) == ("Retry", 1)

    assert all(WORD not in erp.log(name) for name in LOGS)


def next_try_of(line: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(line["next_try"])


def test_refusals_and_503_answers_are_counted_in_one_line_a_second(erp: System) -> None:
    erp.start("web")
    wrong = erp.request(data={"email": WORD}, store="south")
    began = time.time()
    for store in ["north"] * 20 + [WORD, "x.y", "nowhere"]:
        assert erp.post(wrong, store).status_code == 401
    answers = [erp.post(erp.request(store="south"), "south").status_code for _ in range(5)]
    assert answers == [200, 200, 503, 503, 503]
    took = time.time() - began

    def counted(event: str) -> Counter[tuple[str, str]]:
        total: Counter[tuple[str, str]] = Counter()
        for line in named(erp, "web", event):
            total[line["store"], line["reason"]] += line["count"]
        return total

    eventually(lambda: counted("deliveries refused").total() == 23 and counted("deliveries answered 503").total() == 3)
    assert counted("deliveries refused") == {("north", "signature-mismatch"): 20, ("?", "unknown-store"): 3}
    assert counted("deliveries answered 503") == {("south", "it has max_stored open events"): 3}
    most = 1 + took  # for each store and reason, in one process
    assert len(named(erp, "web", "deliveries refused")) <= 2 * most
    assert WORD not in erp.log("web")
    assert "nowhere" not in erp.log("web")


def test_a_genuine_delivery_that_cannot_be_read_is_logged_as_a_failure(erp: System) -> None:
    erp.start("web")
    request = compose(
        erp.config.known_stores["north"], topic="", delivery_id="msg_1", data={"email": WORD}, now=time.time()
    )
    event_id = erp.post(request).json()["id"]
    assert erp.status(event_id) == "failed"
    (line,) = eventually(lambda: about(erp, "web", event_id))
    expected = {"store": "north", "handler": "intake", "reason": "unreadable", "next_try": "none", "level": "error"}
    assert expected.items() <= line.items()
    assert erp.post(request).json()["status"] == "duplicate"
    erp.processes[0].stop()
    assert len(about(erp, "web", event_id)) == 1
    assert WORD not in erp.log("web")


def test_failures_that_the_housekeeper_makes_are_logged(system: System) -> None:
    system.inbox.declare([Declaration("shop.greet", "1", ("*",), ("*",))])
    lost, orphan = system.accept(data={"email": WORD}), system.accept(data={"email": WORD})
    for event_id, handler in ((lost, "shop.greet"), (orphan, "old.handler")):
        (event,) = system.inbox.claim({"": 1}, capacity=1).runs
        assert event.event.id == event_id
        system.inbox.route([(event, [(handler, "default", False)])], system.inbox.declarations().version)
    for _ in range(LOSSES_ALLOWED + 1):
        (run,) = system.inbox.claim({"shop.greet": 1}, capacity=1).runs
        system.client.zadd(keys.LEASED, {run.item: 1})
        if run.losses < LOSSES_ALLOWED:
            system.housekeeping.tick()
    system.start("housekeeper")
    system.inbox.declare([Declaration("shop.greet", "1", ("*",), ("*",))])

    (line,) = eventually(lambda: about(system, "housekeeper", lost))
    expected = {
        "event": "run failed for good; see `storehooks failures`",
        "store": "north",
        "topic": "order.created",
        "handler": "shop.greet",
        "reason": "lost-worker",
        "next_try": "none",
        "level": "error",
        "group": group_of(system, lost, "shop.greet"),
    }
    assert expected.items() <= line.items()
    (line,) = eventually(lambda: about(system, "housekeeper", orphan), 20)
    assert (line["handler"], line["reason"]) == ("old.handler", "no-such-handler")
    assert WORD not in system.log("housekeeper")


def test_a_failure_is_logged_when_it_is_stored_and_not_for_a_stale_run(system: System) -> None:
    """Another worker may end a run well whose lease was lost: a line would report a failure that there is not."""
    events = [system.accept() for _ in range(2)]
    claimed = system.inbox.claim({"": 2}, capacity=2).runs
    system.inbox.route(
        [(one, [("erp.push", "default", False)]) for one in claimed], system.inbox.declarations().version
    )
    kept, lost = sorted(
        system.inbox.claim({"erp.push": 2}, capacity=2).runs, key=lambda run: events.index(run.stored.id)
    )
    system.client.zadd(keys.LEASED, {lost.item: 1})
    system.housekeeping.tick()
    idle: Any = SimpleNamespace(in_batches=False)
    exchange = InboxExchange(system.inbox, idle, idle, idle, idle)
    exchange.stopping = True  # nothing is claimed
    exchange.declarations["erp.push"] = Declaration("erp.push", "1", ("*",), ("*",), details={"retries": 0})
    with capture_logs() as captured:
        for run in (kept, lost):
            exchange.record(run, RunResult(Ending.DIED, {"error": "its process was killed"}))
        assert captured == []
        exchange.write_and_claim()
    assert [(line["event_id"], line["event"], line["why"]) for line in captured] == [
        (kept.stored.id, logs.FAILED, "its process was killed")
    ]
    assert system.status(kept.stored.id) == "failed"


def test_a_flood_of_failing_runs_is_logged_in_part_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    stored = StoredEvent("ID", [b"north", b"order.created", *[b""] * 6], b"")
    failing = Outcome(Run("ID|erp.push", "erp.push", "", 0, 0, stored), OutcomeKind.RETRY, {"error": f"E: {WORD}"})
    log = FailureLog()
    with capture_logs() as captured:
        for _ in range(logs.LINES_A_SECOND + 900):
            log.attempt_failed(failing)
        now += 1.0
        log.attempt_failed(failing)
        log.flush()
        log.flush()
    assert len(captured) == logs.LINES_A_SECOND + 2
    (summary,) = [line for line in captured if "count" in line]
    assert (summary["handler"], summary["count"]) == ("erp.push", 900)
    assert WORD not in repr(captured)
    assert datetime.fromisoformat(captured[0]["next_try"]) <= datetime.now(UTC)


def test_a_run_that_failed_for_good_has_its_error_line_beside_a_flood_of_retries() -> None:
    stored = StoredEvent("ID", [b"north", b"order.created", *[b""] * 6], b"")
    retried = Outcome(Run("ID|erp.noisy", "erp.noisy", "", 0, 0, stored), OutcomeKind.RETRY, {"error": "E: no"})
    failed = Outcome(Run("ID|erp.rare", "erp.rare", "", 0, 0, stored), OutcomeKind.FAILED, {"error": "E: no"})
    log = FailureLog()
    with capture_logs() as captured:
        for _ in range(logs.LINES_A_SECOND * 2):
            log.attempt_failed(retried)
        log.attempt_failed(failed)
        for _ in range(logs.LINES_A_SECOND * 2):
            log.attempt_failed(failed)
        log.flush()
    errors = [line for line in captured if line["log_level"] == "error"]
    assert errors[0]["event"] == logs.FAILED
    assert sum(line.get("count", 1) for line in errors) == logs.LINES_A_SECOND * 2 + 1
    assert errors[-1]["event"] == "more runs failed for good, without a line each"


def test_a_refusal_of_the_server_brings_no_result_of_a_handler_into_the_log(tmp_path: Path) -> None:
    """The server repeats the arguments of a command that it does not know, and an outcome has what was returned."""
    event = StoredEvent("evt", [b""] * 8, b"")
    run = Run("evt|shop.greet", "shop.greet", "token", 0, 0, event)
    with own_server(tmp_path, "--rename-command", "FCALL", "HIDDEN") as server, capture_logs() as lines:
        with pytest.raises(RedisError, match=WORD) as caught:
            Inbox(server.client, direct=True).finish([Outcome(run, OutcomeKind.DONE, {"result": WORD})])
        ServerOutage(logs.get("worker")).failed(caught.value)
    assert [line["event"] for line in lines] == ["the Redis server refuses a command"]
    assert "unknown command" in lines[0]["why"]
    assert WORD not in str(lines)
