"""Bursts, script by script, against a real server: the waiting runs of a resource are merged into one."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from redis import Redis

from receiver.contract.event import Event
from receiver.contract.intake import Delivery
from receiver.inbox import Declaration, Outcome, Run, keys
from receiver.inbox.model import from_ms
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries.events import RunRecord
from tests.receiver.inbox.test_inbox import lapse
from tests.support.harness import System, eventually

PUSH = "shop.push"
MERGING = (PUSH, "default", False, "m resource")


@pytest.fixture
def merging(system: System) -> System:
    details = {"order_by": "resource", "on_failure": "continue", "coalesce": 5.0}
    system.inbox.declare([Declaration(PUSH, "1", ("*",), ("*",), "default", details)])
    return system


def accept(system: System, name: str, *, second: int | None = None) -> None:
    event = Event(
        id=name,
        store="north",
        topic="order.updated",
        received_at=from_ms(time.time() * 1000),
        body=b"{}",
        resource_id="7",
        occurred_at=None if second is None else datetime(2026, 11, 16, 12, 0, second, tzinfo=UTC),
    )
    system.inbox.accept([Delivery(event, "orders/update")])


def route(system: System, many: int = 999) -> None:
    events = system.inbox.claim({"": many}, capacity=many).runs
    system.inbox.route([(event, [MERGING]) for event in events], system.inbox.declarations().version)


def arrive(system: System, *names: str, **when: int) -> None:
    for name in names:
        accept(system, name, **when)
    route(system)


def claim(system: System, many: int = 9) -> list[Run]:
    return list(system.inbox.claim({PUSH: many}, capacity=many).runs)


def finish(system: System, run: Run, kind: OutcomeKind = OutcomeKind.DONE, **more: str) -> None:
    assert system.inbox.finish([Outcome(run, kind, more)]) == [True]


def record(system: System, name: str) -> RunRecord:
    found = system.ledger.event(name)
    assert found is not None
    return found.runs[0]


def state(redis: Redis, name: str) -> str:
    return redis.hget(keys.EVENT + name, f"r:{PUSH}").decode().split()[0]


def test_the_newest_is_run_and_the_others_are_dropped_when_it_is_done(merging: System, redis: Redis) -> None:
    arrive(merging, "a", "b", "c")
    (run,) = claim(merging)
    assert (run.stored.id, run.merged) == ("c", ("a", "b"))
    assert [state(redis, name) for name in "abc"] == ["queued", "queued", "leased"]
    assert claim(merging) == []
    assert merging.ledger.counters().total["open"] == 3
    finish(merging, run)
    assert [state(redis, name) for name in "abc"] == ["dropped", "dropped", "done"]
    merged = record(merging, "a")
    assert (merged.reason, merged.result) == ("merged", "merged into the run of event c")
    assert record(merging, "c").merged == ("a", "b")
    assert merging.ledger.counters().total["settled"] == 3
    assert merging.identity_holds()
    assert not redis.keys(f"{keys.QUEUED}*")
    assert not redis.exists(keys.ORDER + PUSH)


def test_what_arrives_while_it_runs_is_the_next_run(merging: System) -> None:
    arrive(merging, "a", "b")
    (first,) = claim(merging)
    arrive(merging, "c", "d")
    finish(merging, first)
    (second,) = claim(merging)
    assert (first.stored.id, second.stored.id, second.merged) == ("b", "d", ("c",))


def test_the_newest_is_the_one_that_occurred_last(merging: System) -> None:
    for name, second in (("a", 1), ("b", 9), ("c", 9), ("d", 2)):
        accept(merging, name, second=second)
    route(merging)
    (run,) = claim(merging)
    assert (run.stored.id, run.merged) == ("c", ("a", "b", "d"))


@pytest.mark.parametrize("kind", [OutcomeKind.FAILED, OutcomeKind.RELEASE])
def test_what_was_to_be_merged_is_run_if_the_newest_has_not_ended_well(
    merging: System, redis: Redis, kind: OutcomeKind
) -> None:
    arrive(merging, "a", "b", "c")
    (run,) = claim(merging)
    finish(merging, run, kind)
    assert merging.identity_holds()
    (again,) = claim(merging)
    assert (again.stored.id, again.merged) == (("b", ("a",)) if kind is OutcomeKind.FAILED else ("c", ("a", "b")))
    finish(merging, again)
    assert "queued" not in [state(redis, name) for name in "abc"]
    assert record(merging, "c").merged == (() if kind is OutcomeKind.FAILED else ("a", "b"))


def test_a_retry_is_merged_into_what_has_arrived_since(merging: System, redis: Redis) -> None:
    arrive(merging, "a", "b")
    (run,) = claim(merging)
    merging.inbox.finish([Outcome(run, OutcomeKind.RETRY, {"error": "x"}, delay=0.0)])
    arrive(merging, "c")
    merging.housekeeping.tick()
    (again,) = claim(merging)
    assert (again.stored.id, again.merged) == ("c", ("a", "b"))
    finish(merging, again)
    assert [state(redis, name) for name in "abc"] == ["dropped", "dropped", "done"]
    assert merging.identity_holds()
    assert not redis.exists(keys.GROUPS)


@pytest.mark.parametrize("reason", ["echo", "stale", "skipped"])
def test_a_run_that_was_not_called_settles_no_other(merging: System, redis: Redis, reason: str) -> None:
    arrive(merging, "a", "b", "c")
    (run,) = claim(merging)
    finish(merging, run, OutcomeKind.DROPPED, reason=reason, result="x")
    (next_one,) = claim(merging)
    assert (next_one.stored.id, next_one.merged) == ("b", ("a",))
    assert record(merging, "c").merged == ()


def test_a_run_that_the_handler_dropped_settles_the_others(merging: System, redis: Redis) -> None:
    arrive(merging, "a", "b")
    (run,) = claim(merging)
    finish(merging, run, OutcomeKind.DROPPED, result="not needed")
    assert [state(redis, name) for name in "ab"] == ["dropped", "dropped"]


def test_a_replay_in_the_meantime_is_not_dropped(merging: System, redis: Redis) -> None:
    arrive(merging, "a")
    (first,) = claim(merging)
    finish(merging, first)
    arrive(merging, "b", "c")
    (run,) = claim(merging)
    merging.administration.reopen([f"a|{PUSH}"], {PUSH: "default"})
    finish(merging, run)
    assert [state(redis, name) for name in "abc"] == ["ready", "dropped", "done"]


@pytest.mark.parametrize("late", [True, False])
def test_a_run_that_lost_its_worker_is_repeated_before_all_others(merging: System, redis: Redis, late: bool) -> None:
    """Its handler may have seen the newest event, so an older one must not follow."""
    arrive(merging, "a", "b", "c")
    (run,) = claim(merging)
    arrive(merging, "d")
    redis.zadd(keys.LEASED, {run.item: 1})
    merging.housekeeping.tick()
    if late:  # then the worker was not lost, and what has arrived since is merged too
        assert merging.inbox.finish([Outcome(run, OutcomeKind.DONE)]) == [False]
    ran = []
    while runs := claim(merging):
        ran += [(one.stored.id, one.merged) for one in runs]
        finish(merging, runs[0])
    assert ran == ([("d", ("a", "b", "c"))] if late else [("c", ("a", "b")), ("d", ())])
    assert merging.identity_holds()
    assert not redis.exists(keys.ORDER + PUSH)


def test_an_older_event_that_is_not_routed_holds_newer_ones_back(merging: System) -> None:
    arrive(merging, "a")
    accept(merging, "b")
    (unrouted,) = merging.inbox.claim({"": 1}, capacity=1).runs
    arrive(merging, "c")
    (run,) = claim(merging)
    assert (run.stored.id, run.merged) == ("a", ())
    version = merging.inbox.declarations().version
    merging.inbox.route([(unrouted, [MERGING])], version)
    finish(merging, run)
    (run,) = claim(merging)
    assert (run.stored.id, run.merged) == ("c", ("b",))


def test_a_burst_of_many_is_merged_in_slices(merging: System) -> None:
    arrive(merging, *(f"event{number:04}" for number in range(900)))
    route(merging)
    ran = []
    while runs := claim(merging):
        ran += [(one.stored.id, len(one.merged)) for one in runs]
        finish(merging, runs[0])
    assert ran == [("event0500", 500), ("event0899", 398)]
    assert merging.ledger.counters().total["settled"] == 900


@pytest.mark.parametrize("kind", [OutcomeKind.RELEASE, OutcomeKind.BUSY])
def test_a_lost_run_that_is_given_back_is_still_repeated_before_older_events(
    merging: System, redis: Redis, kind: OutcomeKind
) -> None:
    arrive(merging, "a", "b", "c")
    (run,) = claim(merging)
    redis.zadd(keys.LEASED, {run.item: 1})
    merging.housekeeping.tick()
    (again,) = claim(merging)
    assert merging.inbox.finish([Outcome(again, kind, {"error": "x"}, 0.001)]) == [True]
    (first,) = eventually(lambda: claim(merging), 5)
    assert (first.stored.id, first.merged) == ("c", ("a", "b"))
    finish(merging, first)
    assert [state(redis, name) for name in "abc"] == ["dropped", "dropped", "done"]


def test_a_run_that_lost_its_worker_is_repeated_before_an_older_failure_that_is_replayed(merging: System) -> None:
    arrive(merging, "a")
    finish(merging, claim(merging)[0], OutcomeKind.FAILED)
    arrive(merging, "b", "c")
    assert [run.stored.id for run in claim(merging)] == ["c"]
    lapse(merging.inbox)
    merging.administration.reopen([f"a|{PUSH}"], {})
    (again,) = claim(merging)
    assert (again.stored.id, again.merged) == ("c", ("b",))


def test_a_failure_that_is_tried_before_the_resume_begins_alone_although_newer_events_wait(merging: System) -> None:
    arrive(merging, "a")
    finish(merging, claim(merging)[0], OutcomeKind.FAILED)
    merging.administration.pause(handler=PUSH)
    arrive(merging, "b", "c")
    assert claim(merging) == []
    assert merging.administration.reopen([f"a|{PUSH}"], {}, urgent=True) == ["although-paused"]
    (tried,) = claim(merging)
    assert (tried.stored.id, tried.merged) == ("a", ())
    finish(merging, tried)
    assert claim(merging) == []
    merging.administration.resume(handler=PUSH)
    (last,) = claim(merging)
    assert (last.stored.id, last.merged) == ("c", ("b",))
