"""Bulk actions: many failures are replayed or dropped in steps, each run once, also if two processes take the steps."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from redis.exceptions import ResponseError

from receiver.inbox import Declaration, Housekeeping, Inbox, Outcome, connect, keys
from receiver.inbox.audit_trail import AuditTrail
from receiver.inbox.bulk_actions import BulkAction, BulkActions, BulkKind, BulkState
from receiver.inbox.bulk_work import STEP, BulkWork
from receiver.inbox.queries.failures import FailureFilter, FailureQueries
from receiver.inbox.queries.runs import page_after
from receiver.inbox.redis.connecting import server_ms
from tests.support.harness import System

GREET = "shop.greet"
_NUMBERS = count()


def fail_many(
    system: System,
    number: int,
    *,
    group: str = "a1f3aaaa",
    store: str = "north",
    how: str = "failed",
    handler: str = GREET,
) -> list[str]:
    """Runs that have failed, a hundred at a time; returns their items."""
    items: list[str] = []
    sample = system.delivery(store=store)
    for start in range(0, number, 100):
        some = min(100, number - start)
        names = [f"{next(_NUMBERS):026}" for _ in range(some)]
        part = [
            replace(sample, event=replace(sample.event, id=one, delivery_id=f"msg_{one}", resource_id=one), first_id="")
            for one in names
        ]
        system.inbox.accept(part)
        events = system.inbox.claim({"": some}, capacity=some).runs
        system.inbox.route([(one, [(handler, "default", True)]) for one in events], system.inbox.declarations().version)
        runs = [replace(one, item=f"{one.stored.id}|{handler}", handler=handler) for one in events]
        detail = {"error": f"KeyError: '{group}'", "group": group, "version": "1"}
        system.inbox.finish([Outcome(run, how, detail, delay=600) for run in runs])  # type: ignore[arg-type]
        items += [run.item for run in runs]
    return items


def start(system: System, action: BulkKind = "replay", *, first: int = 0, rate: float = 0, **wanted: str) -> str:
    selection = FailureFilter(**wanted)
    groups = FailureQueries(system.client).matching(selection)
    entry = AuditTrail(system.client).begin(
        "a person", f"bulk {action}", wanted, count=sum(one.count for one in groups)
    )
    return BulkActions(system.client).start(action, selection, groups, entry, first=first, rate=rate, reason="given up")


def the(system: System, action_id: str) -> BulkAction:
    found = BulkActions(system.client).find(action_id)
    assert found
    return found


def replays(system: System, items: list[str]) -> list[int]:
    pipeline = system.client.pipeline(transaction=False)
    for item in items:
        event_id, handler = keys.split_item(item)
        pipeline.hget(keys.EVENT + event_id, f"p:{handler}")
    return [int(one or 0) for one in pipeline.execute()]


def finish_ready(inbox: Inbox, kind: str, number: int = 200, handler: str = GREET) -> int:
    """End ready runs of the handler, as a worker does."""
    runs = inbox.claim({handler: number}, capacity=number).runs
    detail = {"error": "KeyError: again", "group": "a1f3aaaa", "version": "2"} if kind == "failed" else {}
    inbox.finish([Outcome(run, kind, detail) for run in runs])  # type: ignore[arg-type]
    return len(runs)


def test_a_group_is_replayed_and_the_action_is_done(system: System) -> None:
    items = fail_many(system, 2 * STEP + 50) + fail_many(system, 10, how="retry")
    others = fail_many(system, 5, group="77c0bbbb")
    action_id = start(system, group="a1f3aaaa")
    assert (the(system, action_id).state, the(system, action_id).count) == ("running", len(items))
    (ended,) = BulkWork(system.client).carry_on(10)
    assert ended.id == action_id
    assert (ended.state, ended.changed, ended.examined) == (BulkState.DONE, len(items), len(items))
    assert set(replays(system, items)) == {1}
    assert set(replays(system, others)) == {0}
    assert system.identity_holds()
    end, begin = AuditTrail(system.client).newest()
    assert (begin.action, begin.count) == ("bulk replay", len(items))
    assert (end.of, end.result) == (begin.id, f"done; {len(items)} runs replayed")
    assert BulkActions(system.client).at_work() == []


def test_a_filter_takes_the_failures_of_all_its_groups(system: System) -> None:
    north = fail_many(system, 30, group="b") + fail_many(system, 30, group="a")
    south = fail_many(system, 30, group="a", store="south")
    other = fail_many(system, 3, group="c", handler="erp.export")
    wanted = FailureFilter(store="north", handler=GREET)
    assert [(one.id, one.count) for one in FailureQueries(system.client).matching(wanted)] == [("a", 30), ("b", 30)]
    start(system, store="north", handler=GREET)
    (ended,) = BulkWork(system.client).carry_on(10)
    assert (ended.state, ended.changed) == ("done", 60)
    assert set(replays(system, north)) == {1}
    assert set(replays(system, south + other)) == {0}
    start(system, error="keyerror: 'C'")
    (ended,) = BulkWork(system.client).carry_on(10)
    assert (ended.changed, replays(system, other)) == (3, [1, 1, 1])


def test_failures_are_dropped_with_their_reason(system: System) -> None:
    items = fail_many(system, STEP + 1) + fail_many(system, 3, how="retry")
    start(system, "drop", group="a1f3aaaa")
    (ended,) = BulkWork(system.client).carry_on(10)
    assert (ended.state, ended.changed) == ("done", len(items))
    event_id = keys.split_item(items[0])[0]
    assert system.run_of(event_id, GREET).result == "given up"
    assert system.ledger.counters().total["settled"] == len(items)
    assert system.identity_holds()


def test_what_fails_again_is_not_replayed_twice(system: System) -> None:
    """Two housekeepers are at work, and a worker fails each run again at once."""
    items = fail_many(system, 1_000)
    action_id = start(system, group="a1f3aaaa")
    url = system.config.redis.url
    stop = threading.Event()

    def carry_on() -> None:
        work = BulkWork(connect(url, timeout=5.0))
        while the(system, action_id).state.is_at_work:
            work.carry_on(0.05)

    def fail_again() -> None:
        inbox = Inbox(connect(url, timeout=5.0))
        while finish_ready(inbox, "failed") or not stop.is_set():
            pass

    worker = threading.Thread(target=fail_again)
    housekeepers = [threading.Thread(target=carry_on) for _ in range(2)]
    for one in (worker, *housekeepers):
        one.start()
    for one in housekeepers:
        one.join(60)
    stop.set()
    worker.join(60)
    assert set(replays(system, items)) == {1}
    assert the(system, action_id).results == {"ready": 1_000}
    assert system.identity_holds()


def test_a_step_that_another_has_taken_changes_nothing(system: System) -> None:
    items = fail_many(system, 10)
    action_id = start(system, group="a1f3aaaa")
    first, second = BulkWork(system.client), BulkWork(system.client)
    slow = the(system, action_id)
    found = second._select(slow, server_ms(system.client))
    second._select = lambda *_: found  # type: ignore[method-assign]  it was read before the first one took the step
    first._change(slow)
    finish_ready(system.inbox, "failed")
    before = {key: system.client.dump(key) for key in system.client.keys("sh:*")}
    second._change(slow)
    assert {key: system.client.dump(key) for key in system.client.keys("sh:*")} == before
    assert set(replays(system, items)) == {1}


def test_a_run_that_was_replayed_by_hand_and_failed_again_is_left(system: System) -> None:
    first, *rest = fail_many(system, 3)
    action_id = start(system, group="a1f3aaaa")
    work = BulkWork(system.client)
    found = work._select(the(system, action_id), server_ms(system.client))
    system.administration.reopen([first], {})
    finish_ready(system.inbox, "failed")
    work._select = lambda *_: found  # type: ignore[method-assign]  it was read before
    work._change(the(system, action_id))
    assert the(system, action_id).results == {"changed": 1, "ready": 2}
    assert replays(system, [first, *rest]) == [1, 1, 1]


def test_no_run_is_changed_after_a_stop(system: System) -> None:
    items = fail_many(system, 3 * STEP)
    action_id = start(system, group="a1f3aaaa")
    work = BulkWork(system.client)
    work._change(the(system, action_id))
    stale = the(system, action_id)
    assert BulkActions(system.client).stop(action_id)
    assert not BulkActions(system.client).stop(action_id), "it has ended already"
    work._change(stale)
    assert work.carry_on(1) == []
    assert sum(replays(system, items)) == STEP
    assert (the(system, action_id).state, the(system, action_id).changed) == ("stopped", STEP)


def test_the_others_wait_until_the_first_have_succeeded(system: System) -> None:
    items = fail_many(system, 20)
    system.administration.pause(handler=GREET)
    action_id = start(system, group="a1f3aaaa", first=5)
    work = BulkWork(system.client)
    work.carry_on(1)
    assert (the(system, action_id).state, sum(replays(system, items))) == ("trying", 5)
    assert len(the(system, action_id).tried) == 5
    assert the(system, action_id).results == {"although-paused": 5}, "they begin although their handler is paused"
    assert finish_ready(system.inbox, "done", 4) == 4
    work.carry_on(1)
    assert the(system, action_id).state == "trying", "one of them is still to run"
    assert finish_ready(system.inbox, "done", 4) == 1
    (ended,) = work.carry_on(1)
    assert (ended.state, ended.changed) == ("done", 20)
    assert set(replays(system, items)) == {1}


@pytest.mark.parametrize(
    ("how", "done", "says"),
    [("failed", 4, ""), ("retry", 4, ""), ("failed", 1, ", and 3 had not ended yet")],
)
def test_nothing_follows_if_one_of_the_first_fails_again(system: System, how: str, done: int, says: str) -> None:
    items = fail_many(system, 20)
    action_id = start(system, group="a1f3aaaa", first=5)
    work = BulkWork(system.client)
    work.carry_on(1)
    finish_ready(system.inbox, "done", done)
    (run,) = system.inbox.claim({GREET: 1}, capacity=1).runs
    system.inbox.finish([Outcome(run, how, {"error": "E", "group": "new"}, 60)])  # type: ignore[arg-type]
    (ended,) = work.carry_on(1)
    assert (ended.state, ended.why) == ("halted", f"1 of the first 5 runs failed again{says}")
    assert sum(replays(system, items)) == 5
    assert the(system, action_id).ended_at


def test_fewer_failures_than_are_tried_first(system: System) -> None:
    items = fail_many(system, 2)
    start(system, group="a1f3aaaa", first=5)
    work = BulkWork(system.client)
    assert work.carry_on(1) == []
    finish_ready(system.inbox, "done")
    (ended,) = work.carry_on(1)
    assert (ended.state, ended.changed, replays(system, items)) == ("done", 2, [1, 1])


def test_a_rate_is_kept_and_missed_time_is_not_made_up_for(system: System) -> None:
    fail_many(system, 200)
    action_id = start(system, group="a1f3aaaa", rate=50)
    work = BulkWork(system.client)
    system.client.hset(keys.BULK + action_id, "due", 0)  # the housekeeper was away for long
    work.carry_on(1)
    replayed = the(system, action_id).changed
    assert 50 <= replayed <= 50 + 50 + 10, "one second is made up for, and about one has passed"


def test_a_run_gets_the_order_that_its_handler_has_by_now(system: System) -> None:
    (item,) = fail_many(system, 1)
    details = {"order_by": "data.id", "on_failure": "continue"}
    system.inbox.declare([Declaration(GREET, "2", ("*",), ("*",), "default", details)])
    start(system, group="a1f3aaaa")
    BulkWork(system.client).carry_on(1)
    mark = system.client.hget(keys.EVENT + keys.split_item(item)[0], f"k:{GREET}")
    assert mark == b"c north:1001"


@pytest.mark.parametrize("name", ["bulk:{}", "bulk_open", "gr:a1f3aaaa", "bulk"])
def test_a_damaged_key_ends_no_round_of_the_housekeeper(system: System, name: str) -> None:
    fail_many(system, 3)
    action_id = start(system, group="a1f3aaaa")
    key = keys.PREFIX + name.format(action_id)
    system.client.delete(key)
    system.client.set(key, "damaged")
    housekeeping = Housekeeping(system.client)
    for _ in range(2):
        housekeeping.tick()
        housekeeping.bulk_work.carry_on(1)
    if name == "gr:a1f3aaaa":
        assert the(system, action_id).state == "halted"
    assert BulkActions(system.client).at_work() == []


def test_unreadable_deliveries_are_not_replayed(system: System) -> None:
    fail_many(system, 1)
    system.client.hset(keys.GROUP + "a1f3aaaa", "handler", keys.INTAKE)
    start(system)
    (ended,) = BulkWork(system.client).carry_on(1)
    assert (ended.state, ended.examined) == ("done", 0)


def test_old_records_are_removed_and_those_at_work_are_kept(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("receiver.inbox.bulk_actions.MAX_RECORDS", 3)
    kept = start(system, rate=1)
    for _ in range(5):
        BulkActions(system.client).stop(start(system))
    newest = BulkActions(system.client).newest()
    assert len(newest) == 4
    assert kept in [one.id for one in newest]
    assert len(system.client.keys(keys.BULK + "*")) == 4


def test_at_maxmemory_a_person_can_start_and_stop_one(system: System) -> None:
    fail_many(system, 3)
    AuditTrail(system.client).begin("a", "loads the functions", {})
    before = system.client.config_get("maxmemory")["maxmemory"]
    try:
        system.client.config_set("maxmemory", 1)
        action_id = start(system, group="a1f3aaaa")
        BulkWork(system.client).carry_on(1)
        BulkActions(system.client).stop(start(system))
    finally:
        system.client.config_set("maxmemory", before)
    assert the(system, action_id).changed == 3


def test_the_command_lists_and_stops_them(system: System) -> None:
    fail_many(system, 300)
    action_id = start(system, group="a1f3aaaa", rate=1)
    listed = system.run_cli("failures", "actions").stdout
    assert f"storehooks failures stop {action_id}" in listed
    assert "group a1f3aaaa" in listed
    assert system.run_cli("failures", "stop", action_id[:5], "--yes").stdout == "stopped; 0 runs replayed\n"
    assert the(system, action_id).state == "stopped"
    end, stop, begin = AuditTrail(system.client).newest()
    assert stop.selection == {"bulk": action_id}
    assert (end.of, end.result) == (begin.id, "stopped; 0 runs replayed")


def test_the_groups_are_those_that_matched_when_it_began(system: System) -> None:
    """The title of a group is its latest error, so another failure may make it match, or match no longer."""
    fail_many(system, 2 * STEP, group="aaaa")
    others = fail_many(system, 30, group="bbbb")
    for group, title in (("aaaa", "Timeout: 31 ms"), ("bbbb", "other causes; the last: KeyError")):
        system.client.hset(keys.GROUP + group, "error", title)
    action_id = start(system, "drop", error="timeout")
    BulkWork(system.client)._step(action_id)
    for group, title in (("aaaa", "KeyError"), ("bbbb", "other causes; the last: Timeout: 5 ms")):
        system.client.hset(keys.GROUP + group, "error", title)
    (ended,) = BulkWork(system.client).carry_on(10)  # another housekeeper
    assert (ended.state, ended.changed, ended.count) == ("done", 2 * STEP, 2 * STEP)
    assert system.client.zcard(keys.GROUP_RUNS + "bbbb") == len(others)


@pytest.mark.parametrize("how", [{"rate": 5.0}, {"first": 5}], ids=["rate", "first"])
def test_runs_of_other_stores_take_no_steps_of_their_own(system: System, how: dict[str, int]) -> None:
    fail_many(system, 5 * STEP, store="south")
    items = fail_many(system, 12)
    action_id = start(system, store="north", **how)
    work, steps = BulkWork(system.client), 0
    while work._step(action_id):
        steps += 1
    assert the(system, action_id).changed == max(1, how.get("first", 0))
    assert steps <= 12, "about one for each page"
    while (action := the(system, action_id)).state.is_at_work:
        finish_ready(system.inbox, "done")
        system.client.hset(keys.BULK + action_id, "due", 0)
        work.carry_on(1)
    assert (action.state, action.results) == ("done", {"ready": 12})
    assert set(replays(system, items)) == {1}


def test_a_page_does_not_read_what_was_read_of_one_millisecond(system: System) -> None:
    names = [f"{at:05}" for at in range(3_000)]
    system.client.zadd("sh:gr:a", dict.fromkeys(names, 5.0) | {"later": 6.0})
    system.client.config_resetstat()
    assert page_after(system.client, "sh:gr:a", 5, 9, names[2_899], many=10) == [
        (one, 5.0) for one in names[2_900:2_910]
    ]
    assert system.client.info("commandstats")["cmdstat_zrange"]["calls"] <= 15
    for many in (1, 10, 200):
        found, last, at = [], "", 5.0
        while page := page_after(system.client, "sh:gr:a", at, 9, last, many=many):
            last, at = page[-1]
            found += [one for one, _ in page]
            if many == 1 and len(found) == 20:
                last = names[2_979]
        assert found == ([*names[:20], *names[2_980:], "later"] if many == 1 else [*names, "later"])


@pytest.mark.parametrize(
    ("field", "value", "state"),
    [
        ("position", "a1f3aaaa x y", "halted"),
        ("position", "a1f3aaaa nan y", "halted"),
        ("n:ready", "x", "halted"),
        ("rate", "inf", "halted"),
        ("rate", "x", ""),
        ("began", "x", ""),
        ("groups", "[1]", ""),
    ],
)
def test_a_damaged_record_ends_its_action_and_no_other(system: System, field: str, value: str, state: str) -> None:
    fail_many(system, 3)
    fail_many(system, 3, group="other")
    action_id = start(system, group="a1f3aaaa")
    sound = start(system, group="other")
    system.client.hset(keys.BULK + action_id, field, value)
    work = BulkWork(system.client)
    work.carry_on(1)
    found = BulkActions(system.client).find(action_id)
    assert (found.state if found else "") == state
    assert the(system, sound).result == "done; 3 runs replayed"
    assert BulkActions(system.client).at_work() == []


def test_an_error_of_the_server_is_no_damage(system: System) -> None:
    fail_many(system, 3)
    action_id = start(system)
    system.client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(ResponseError, match="NOREPLICAS"):
            BulkWork(system.client).carry_on(1)
    finally:
        system.client.config_set("min-replicas-to-write", 0)
    assert the(system, action_id).state == "running"


def test_some_runs_of_each_handler_are_tried(system: System) -> None:
    fail_many(system, 6, group="aaaa")
    fail_many(system, 6, group="bbbb")
    fail_many(system, 20, group="cccc", handler="erp.export")
    action_id = start(system, first=5)
    work = BulkWork(system.client)
    work.carry_on(1)
    action = the(system, action_id)
    assert action.state == "trying"
    assert Counter(keys.split_item(one)[1] for one in action.tried) == {GREET: 5, "erp.export": 5}
    finish_ready(system.inbox, "done")
    work.carry_on(1)
    assert the(system, action_id).changed == 10, "the other handler's runs are still to run"
    finish_ready(system.inbox, "done", handler="erp.export")
    (ended,) = work.carry_on(1)
    assert (ended.state, ended.results) == ("done", {"ready": 32})


def test_a_run_that_cannot_be_tried_is_counted_once(system: System) -> None:
    items = fail_many(system, 4)
    system.client.delete(keys.BODY + keys.split_item(items[1])[0])
    action_id = start(system, first=2)
    work = BulkWork(system.client)
    work.carry_on(1)
    assert the(system, action_id).tried == (items[0], items[2])
    finish_ready(system.inbox, "done")
    (ended,) = work.carry_on(1)
    assert (ended.state, ended.results) == ("done", {"ready": 3, "no-body": 1})


@pytest.mark.parametrize("how", ["record", "run"])
def test_a_tried_run_whose_record_is_damaged_is_no_success(system: System, how: str) -> None:
    fail_many(system, 20)
    action_id = start(system, first=5)
    work = BulkWork(system.client)
    work.carry_on(1)
    event_id, handler = keys.split_item(the(system, action_id).tried[0])
    finish_ready(system.inbox, "done")
    if how == "record":
        system.client.delete(keys.EVENT + event_id)
        system.client.rpush(keys.EVENT + event_id, "damaged")
    else:
        system.client.hdel(keys.EVENT + event_id, f"r:{handler}")
    (ended,) = work.carry_on(1)
    assert (ended.state, ended.changed) == ("halted", 5)
    assert ended.why == "the records of 1 of the first 5 runs are damaged"


@pytest.mark.parametrize("action", ["replay", "drop"])
def test_failures_ahead_of_the_clock_are_taken(system: System, action: BulkKind) -> None:
    """The server's clock was set back after they failed."""
    items = fail_many(system, STEP + 30)
    for item in items[:-10]:
        system.client.zincrby(keys.GROUP_RUNS + "a1f3aaaa", 3_600_000, item)
    start(system, action)
    (ended,) = BulkWork(system.client).carry_on(10)
    assert (ended.state, ended.changed, ended.examined) == ("done", len(items), len(items))


def test_the_end_is_audited_once_by_a_person_or_by_the_last_step(system: System) -> None:
    fail_many(system, 2 * STEP)
    action_id = start(system)
    work = BulkWork(system.client)
    work._step(action_id)
    assert BulkActions(system.client).stop(action_id)
    end, begin = AuditTrail(system.client).newest()
    assert (end.of, end.result) == (begin.id, f"stopped; {STEP} runs replayed")
    action_id = start(system)
    BulkActions(system.client).set_state(action_id, BulkState.DONE)  # and then it was killed
    assert [one.id for one in work.carry_on(1)] == [action_id]
    assert work.carry_on(1) == []
    BulkActions(system.client).close(action_id)  # another one was slower
    end, begin, *_ = audited = AuditTrail(system.client).newest()
    assert (end.of, end.result, len(audited)) == (begin.id, "done; 0 runs replayed", 4)
