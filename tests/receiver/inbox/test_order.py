"""Ordered runs, script by script, against a real server: one at a time for each key, in the order of acceptance."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from redis import Redis

from receiver.contract.event import Event
from receiver.contract.intake import Delivery
from receiver.inbox import Declaration, Limit, Outcome, Routes, Run, keys
from receiver.inbox.model import from_ms, order_for
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries.handlers import HandlerQueries
from tests.support.harness import System, eventually

PUSH = "shop.push"
BY_RESOURCE = (PUSH, "default", False, "c resource")
STOPPING = (PUSH, "default", False, "s resource")


@pytest.fixture
def ordered(system: System) -> System:
    """A system for which a worker has declared an ordered handler."""
    details = {"order_by": "resource", "on_failure": "continue"}
    system.inbox.declare([Declaration(PUSH, "1", ("*",), ("*",), "default", details)])
    return system


def delivery(name: str, resource: str = "7", store: str = "north") -> Delivery:
    event = Event(
        id=name,
        store=store,
        topic="order.updated",
        received_at=from_ms(time.time() * 1000),
        body=b"{}",
        resource_id=resource,
    )
    return Delivery(event, "orders/update")


def accept(system: System, name: str, resource: str = "7", *, store: str = "north") -> None:
    system.inbox.accept([delivery(name, resource, store)])


def to_route(system: System, many: int = 9) -> dict[str, Run]:
    return {run.stored.id: run for run in system.inbox.claim({"": many}, capacity=many).runs}


def route(system: System, *events: Run, how: tuple[str, str, bool | float, str] = BY_RESOURCE) -> None:
    replies = system.inbox.route([(event, [how]) for event in events], system.inbox.declarations().version)
    assert replies == [["routed"]] * len(events)


def accept_and_route(system: System, *names: str, how: tuple[str, str, bool | float, str] = BY_RESOURCE) -> None:
    for name in names:
        accept(system, name)
    route(system, *to_route(system).values(), how=how)


def claim(system: System, many: int = 1) -> list[Run]:
    return list(system.inbox.claim({PUSH: many}, capacity=many).runs)


def ids(runs: Sequence[Run]) -> list[str]:
    return [run.stored.id for run in runs]


def states(system: System, *names: str) -> list[str]:
    return [system.client.hget(keys.EVENT + name, f"r:{PUSH}").decode().split(" ")[0] for name in names]


def finish(system: System, run: Run, kind: OutcomeKind, **how: float) -> None:
    assert system.inbox.finish([Outcome(run, kind, {"error": "E: no"}, **how)]) == [True]


def test_a_run_waits_for_the_one_before_it_and_other_keys_do_not(ordered: System) -> None:
    accept_and_route(ordered, "a", "b")
    accept(ordered, "other", "8")
    route(ordered, *to_route(ordered).values())
    assert states(ordered, "a", "b", "other") == ["ready", "queued", "ready"]
    first, other = claim(ordered, 2)
    assert ids([first, other]) == ["a", "other"]
    assert claim(ordered, 9) == []
    finish(ordered, first, OutcomeKind.DONE)
    assert ids(claim(ordered, 9)) == ["b"]
    assert ordered.identity_holds()


def claim_and_route(
    system: System,
    many: int = 9,
    *,
    order: str = "s resource",
    one_at_a_time: Sequence[str] = (),
    routes_last: bool = False,
) -> list[Run]:
    how = (*STOPPING[:2], True, order)
    routes = Routes(system.inbox.declarations().version, {("north", "order.updated"): [how]})
    lanes = {PUSH: many, "": 9} if routes_last else {"": 9, PUSH: many}
    _, found = system.inbox.finish_and_claim((), lanes, capacity=9, routes=routes, one_at_a_time=one_at_a_time)
    return list(found.runs)


def test_the_first_run_of_a_key_is_leased_while_its_event_is_routed(ordered: System) -> None:
    for name, resource in (("a", "7"), ("b", "7"), ("c", "8")):
        accept(ordered, name, resource)
    first, other = claim_and_route(ordered, one_at_a_time=[PUSH])
    assert [(run.stored.id, run.order_key, run.stops_key) for run in (first, other)] == [
        ("a", "north:order:7", True),
        ("c", "north:order:8", True),
    ]
    assert 0 < first.fence < other.fence
    assert states(ordered, "a", "b", "c") == ["leased", "queued", "leased"]
    accept(ordered, "d")
    assert claim_and_route(ordered) == []
    finish(ordered, first, OutcomeKind.DONE)
    assert ids(claim(ordered, 9)) == ["b", "d"]
    assert ordered.identity_holds()


def test_runs_of_a_key_are_leased_together_while_their_events_are_routed(ordered: System) -> None:
    for name in ("a", "b", "c"):
        accept(ordered, name)
    first, second = claim_and_route(ordered, 2)
    assert ids([first, second]) == ["a", "b"]
    assert 0 < first.fence < second.fence
    assert states(ordered, "a", "b") == ["leased", "leased"]
    assert claim_and_route(ordered) == []
    finish(ordered, first, OutcomeKind.DONE)
    assert claim(ordered, 9) == []
    finish(ordered, second, OutcomeKind.RELEASE)
    assert ids(claim(ordered, 9)) == ["b", "c"]
    assert ordered.identity_holds()


@pytest.mark.parametrize(("many", "leased"), [(2, ["a", "b"]), (4, ["a", "b", "c", "d"])])
def test_runs_are_leased_while_they_are_routed_once_none_is_queued(
    ordered: System, many: int, leased: list[str]
) -> None:
    accept_and_route(ordered, "a", "b", "c")
    accept(ordered, "d")
    runs = claim_and_route(ordered, many, routes_last=True)
    assert ids(runs) == leased
    for run in runs:
        assert claim_and_route(ordered) == []
        finish(ordered, run, OutcomeKind.DONE)
    assert ids(claim_and_route(ordered)) == [one for one in "abcd" if one not in leased]
    assert ordered.identity_holds()


def test_runs_that_are_merged_are_not_leased_together_while_their_events_are_routed(ordered: System) -> None:
    for name in ("a", "b"):
        accept(ordered, name)
    assert ids(claim_and_route(ordered, order="m resource")) == ["a"]
    assert states(ordered, "a", "b") == ["leased", "queued"]


def test_no_run_is_leased_while_it_is_routed_past_one_that_was_queued(ordered: System) -> None:
    for name in ("a", "late", "b", "c"):
        accept(ordered, name)
    ordered.client.zadd(keys.READY, {"a": 1, "b": 2, "late": 3, "c": 4})
    (first,) = claim_and_route(ordered)
    assert states(ordered, "a", "late", "b", "c") == ["leased", "queued", "queued", "queued"]
    finish(ordered, first, OutcomeKind.DONE)
    assert ids(claim(ordered, 9)) == ["late", "b", "c"]


def test_an_event_that_is_not_routed_holds_back_later_ones_of_its_store(ordered: System) -> None:
    """Accept fixes the order, not the worker that is faster."""
    for name in ("a", "b"):
        accept(ordered, name)
    accept(ordered, "south", store="south")
    events = to_route(ordered)
    route(ordered, events["b"], events["south"])
    assert states(ordered, "b", "south") == ["queued", "ready"]
    route(ordered, events["a"])
    assert states(ordered, "a", "b") == ["ready", "queued"]


def test_an_event_that_no_handler_wants_lets_later_ones_go(ordered: System) -> None:
    for name in ("a", "b"):
        accept(ordered, name)
    events = to_route(ordered)
    route(ordered, events["b"])
    ordered.client.set(keys.DECLARED_SINCE, 1)
    assert ordered.inbox.route([(events["a"], ())], ordered.inbox.declarations().version) == [["unhandled"]]
    assert states(ordered, "b") == ["ready"]


def test_a_lost_event_to_be_routed_holds_back_none_for_ever(ordered: System) -> None:
    for name in ("a", "b"):
        accept(ordered, name)
    events = to_route(ordered)
    route(ordered, events["b"])
    ordered.client.delete(keys.EVENT + "a")
    ordered.housekeeping.tick()
    assert states(ordered, "b") == ["ready"]


def test_one_claim_takes_the_runs_that_are_queued_behind_the_first(ordered: System) -> None:
    accept_and_route(ordered, "a", "b", "c", "d")
    runs = claim(ordered, 3)
    assert ids(runs) == ["a", "b", "c"]
    assert {run.order_key for run in runs} == {"north:order:7"}
    assert [run.fence for run in runs] == sorted({run.fence for run in runs})
    finish(ordered, runs[0], OutcomeKind.DONE)
    assert claim(ordered, 9) == [], "the others are leased"
    finish(ordered, runs[1], OutcomeKind.RETRY, delay=60.0)
    finish(ordered, runs[2], OutcomeKind.RELEASE)
    assert states(ordered, "a", "b", "c", "d") == ["done", "later", "queued", "queued"]
    assert claim(ordered, 9) == [], "a head that waits for its retry blocks its key"


def test_one_at_a_time_a_lost_worker_had_no_run_that_is_queued_behind_another(ordered: System) -> None:
    accept_and_route(ordered, "a", "b", "c")
    how = {"capacity": 9, "one_at_a_time": {PUSH}}
    for expected in ("a", "b", "c"):
        _, found = ordered.inbox.finish_and_claim((), {PUSH: 9}, **how)
        assert ids(found.runs) == [expected]
        finish(ordered, found.runs[0], OutcomeKind.DONE)
    assert ordered.identity_holds()


def test_given_back_in_any_order_they_run_in_their_order(ordered: System) -> None:
    accept_and_route(ordered, "a", "b", "c")
    for run in reversed(claim(ordered, 3)):
        finish(ordered, run, OutcomeKind.RELEASE)
    assert states(ordered, "a", "b", "c") == ["ready", "queued", "queued"]
    assert ids(claim(ordered, 3)) == ["a", "b", "c"]


def test_the_runs_of_a_dead_worker_return_to_their_order(ordered: System) -> None:
    accept_and_route(ordered, "a", "b", "c")
    fence = claim(ordered, 2)[-1].fence
    for item in ordered.client.zrange(keys.LEASED, 0, -1):
        ordered.client.zadd(keys.LEASED, {item: 1})
    ordered.housekeeping.tick()
    assert states(ordered, "a", "b", "c") == ["ready", "queued", "queued"]
    (again,) = claim(ordered, 3)
    assert (again.stored.id, again.losses) == ("a", 1), "a suspect is claimed alone"
    assert again.fence > fence


def test_a_failure_lets_the_key_continue(ordered: System) -> None:
    accept_and_route(ordered, "a", "b")
    finish(ordered, claim(ordered)[0], OutcomeKind.FAILED)
    assert ids(claim(ordered)) == ["b"]


@pytest.mark.parametrize("how", ["replay", "drop", "trim"])
def test_a_failure_stops_the_key_until_it_is_replayed_or_dropped_or_gone(ordered: System, how: str) -> None:
    accept_and_route(ordered, "a", "b", how=STOPPING)
    finish(ordered, claim(ordered)[0], OutcomeKind.FAILED)
    accept_and_route(ordered, "c", how=STOPPING)
    assert claim(ordered, 9) == []
    if how == "replay":
        ordered.administration.reopen([f"a|{PUSH}"], {})
        (run,) = claim(ordered)
        assert run.stored.id == "a"
        finish(ordered, run, OutcomeKind.DONE)
    elif how == "drop":
        ordered.administration.drop([f"a|{PUSH}"], reason="because")
    else:
        ordered.client.zadd(keys.FAILED, {f"a|{PUSH}": 1})
        ordered.client.set(keys.FAILURES_END, 1)
        ordered.housekeeping.trim(bodies=1e9, records=1e9, failures=60)
    assert ids(claim(ordered, 9)) == ["b", "c"]
    assert ordered.identity_holds()


def test_a_replayed_run_comes_before_those_that_wait_and_never_beside_one_that_runs(ordered: System) -> None:
    accept_and_route(ordered, "a", "b", "c")
    finish(ordered, claim(ordered)[0], OutcomeKind.DONE)
    (second,) = claim(ordered)
    assert ordered.administration.reopen([f"a|{PUSH}"], {}) == ["ready"]
    assert states(ordered, "a", "b", "c") == ["queued", "leased", "queued"]
    finish(ordered, second, OutcomeKind.DONE)
    assert ids(claim(ordered, 9)) == ["a", "c"]


@pytest.mark.parametrize("pause", [{"handler": PUSH}, {"store": "north"}, {}])
def test_failures_are_replayed_before_a_newer_run_that_has_not_begun(ordered: System, pause: dict[str, str]) -> None:
    """The runbook: pause the handler, correct it, replay the failures, resume it."""
    accept_and_route(ordered, "a", "b")
    for _ in range(2):
        finish(ordered, claim(ordered)[0], OutcomeKind.FAILED)
    accept_and_route(ordered, "c", "d")
    if pause:
        ordered.administration.pause(**pause)
        assert claim(ordered, 9) == []
    ordered.administration.reopen([f"{name}|{PUSH}" for name in "ba"], {})
    assert ordered.identity_holds()
    if pause:
        ordered.administration.resume(**pause)
    assert ids(claim(ordered, 9)) == list("abcd")


def test_a_failure_that_is_tried_before_the_resume_begins_although_newer_runs_wait(ordered: System) -> None:
    accept_and_route(ordered, "a")
    finish(ordered, claim(ordered)[0], OutcomeKind.FAILED)
    ordered.administration.pause(handler=PUSH)
    accept_and_route(ordered, "b", "c")
    assert ordered.administration.reopen([f"a|{PUSH}"], {}, urgent=True) == ["although-paused"]
    (tried,) = claim(ordered, 9)
    assert tried.stored.id == "a"
    finish(ordered, tried, OutcomeKind.DONE)
    assert claim(ordered, 9) == []
    ordered.administration.resume(handler=PUSH)
    assert ids(claim(ordered, 9)) == ["b", "c"]


def test_a_due_retry_that_is_replayed_with_an_older_failure_has_all_its_attempts_again(ordered: System) -> None:
    """The older one must not take it for one that only waits."""
    accept_and_route(ordered, "a", "b")
    finish(ordered, claim(ordered)[0], OutcomeKind.FAILED)
    finish(ordered, claim(ordered)[0], OutcomeKind.RETRY, delay=0.001)
    ordered.administration.pause(handler=PUSH)
    eventually(lambda: (ordered.housekeeping.tick(), states(ordered, "b") == ["ready"])[1])
    chosen = [f"{name}|{PUSH}" for name in "ab"]
    assert ordered.administration.reopen(chosen, {}, urgent=True) == ["although-paused"] * 2
    for name in "ab":
        (run,) = claim(ordered)
        assert (run.stored.id, run.attempts) == (name, 0)
        finish(ordered, run, OutcomeKind.DONE)


@pytest.mark.parametrize("due", [True, False])
def test_a_failure_is_tried_before_the_resume_although_a_retry_of_its_key_waits(ordered: System, due: bool) -> None:
    accept_and_route(ordered, "a", "b")
    finish(ordered, claim(ordered)[0], OutcomeKind.FAILED)
    finish(ordered, claim(ordered)[0], OutcomeKind.RETRY, delay=0.001 if due else 60.0)
    ordered.administration.pause(handler=PUSH)
    eventually(lambda: (ordered.housekeeping.tick(), states(ordered, "b") == ["ready" if due else "later"])[1])
    assert ordered.administration.reopen([f"a|{PUSH}"], {}, urgent=True) == ["although-paused"]
    (tried,) = claim(ordered)
    assert tried.stored.id == "a"
    assert ordered.administration.reopen([f"b|{PUSH}"], {}) == ["handler-paused"], "with all its attempts again"
    finish(ordered, tried, OutcomeKind.DONE)
    ordered.administration.resume(handler=PUSH)
    (retried,) = claim(ordered)
    assert (retried.stored.id, retried.attempts) == ("b", 0)
    finish(ordered, retried, OutcomeKind.DONE)
    assert ordered.identity_holds()


def test_an_older_run_keeps_its_place_in_the_lane_when_a_newer_failure_is_replayed(ordered: System) -> None:
    accept_and_route(ordered, "a", "b")
    first, second = claim(ordered, 2)
    finish(ordered, second, OutcomeKind.FAILED)
    finish(ordered, first, OutcomeKind.RELEASE)
    accept(ordered, "other", "8")
    route(ordered, *to_route(ordered).values())
    ordered.administration.reopen([f"b|{PUSH}"], {})
    assert ids(claim(ordered, 1)) == ["a"]


def test_a_replay_beside_a_damaged_lane_waits_for_its_repair(ordered: System, redis: Redis) -> None:
    accept_and_route(ordered, "a", "b")
    finish(ordered, claim(ordered)[0], OutcomeKind.FAILED)
    redis.rename(keys.READY + PUSH, "aside")
    redis.set(keys.READY + PUSH, "damaged")
    assert ordered.administration.reopen([f"a|{PUSH}"], {}) == ["ready"]
    assert states(ordered, "a", "b") == ["queued", "ready"]


def test_runs_behind_a_retry_are_not_overtaken_while_their_worker_still_has_them(ordered: System) -> None:
    """A worker that dies, or is slow, after the retry was written and before it has given the others back."""
    accept_and_route(ordered, *"abcde")
    first, *others = claim(ordered, 3)
    finish(ordered, first, OutcomeKind.RETRY, delay=0.0)
    ordered.housekeeping.tick()
    assert claim(ordered, 9) == [], "no two leases of a key at once"
    for run in others:
        finish(ordered, run, OutcomeKind.RELEASE)
    assert ids(claim(ordered, 9)) == list("abcde")
    assert ordered.identity_holds()


@pytest.mark.parametrize(("last", "how"), [(OutcomeKind.FAILED, STOPPING), (OutcomeKind.RETRY, BY_RESOURCE)])
def test_replayed_together_they_run_in_their_order(
    ordered: System, last: OutcomeKind, how: tuple[str, str, bool | float, str]
) -> None:
    """The last one is what its key waits for. It began first, so the state of an older event was written last."""
    accept_and_route(ordered, *"abc", how=how)
    for run in claim(ordered, 2):
        finish(ordered, run, OutcomeKind.DONE)
    finish(ordered, claim(ordered)[0], last, delay=60.0)
    ordered.administration.reopen([f"{name}|{PUSH}" for name in "abc"], {})
    assert ids(claim(ordered, 9)) == list("abc")
    assert ordered.identity_holds()


def test_failures_of_one_moment_are_replayed_in_their_order(ordered: System) -> None:
    """A group lists those that failed in the same millisecond by their ids."""
    accept_and_route(ordered, *"cba")
    failed = [Outcome(run, OutcomeKind.FAILED, {"error": "E: no"}) for run in claim(ordered, 3)]
    ordered.inbox.finish(failed)
    ordered.administration.reopen([f"{name}|{PUSH}" for name in "abc"], {})
    assert ids(claim(ordered, 9)) == list("cba")


def test_a_run_that_begins_because_another_is_dropped_can_be_dropped_in_the_same_call(ordered: System) -> None:
    accept_and_route(ordered, "a", "b")
    finish(ordered, claim(ordered)[0], OutcomeKind.FAILED)
    finish(ordered, claim(ordered)[0], OutcomeKind.RETRY, delay=0.0)
    ordered.housekeeping.tick()
    (second,) = claim(ordered)
    ordered.administration.reopen([f"a|{PUSH}"], {})
    finish(ordered, second, OutcomeKind.RELEASE)
    finish(ordered, claim(ordered)[0], OutcomeKind.RETRY, delay=60.0)
    assert states(ordered, "a", "b") == ["later", "queued"]
    assert ordered.administration.drop([f"a|{PUSH}", f"b|{PUSH}"], reason="because") == ["dropped", "dropped"]
    assert claim(ordered, 9) == []
    assert not ordered.client.exists(keys.QUARANTINED)


def test_a_failure_that_stops_its_key_does_so_when_the_handler_is_changed_to_continue(ordered: System) -> None:
    accept_and_route(ordered, "a", how=STOPPING)
    finish(ordered, claim(ordered)[0], OutcomeKind.FAILED)
    accept_and_route(ordered, "b")
    ordered.housekeeping.put_back_stranded()
    assert claim(ordered, 9) == []


def test_a_run_from_before_the_order_joins_it_when_it_is_replayed(ordered: System) -> None:
    accept(ordered, "old")
    (event,) = to_route(ordered).values()
    ordered.inbox.route([(event, [(PUSH, "default", False)])], ordered.inbox.declarations().version)
    finish(ordered, claim(ordered)[0], OutcomeKind.DONE)
    accept_and_route(ordered, "a")
    claim(ordered)
    ordered.administration.reopen([f"old|{PUSH}"], {}, orders={f"old|{PUSH}": "c resource"})
    assert states(ordered, "old") == ["queued"]


def test_a_paused_store_and_a_paused_handler_keep_the_order(ordered: System) -> None:
    accept_and_route(ordered, "a", "b")
    ordered.administration.pause(store="north")
    assert claim(ordered, 9) == []
    assert states(ordered, "a", "b") == ["held", "queued"]
    ordered.administration.resume(store="north")
    ordered.administration.pause(handler=PUSH)
    ordered.administration.reopen([f"b|{PUSH}"], {}, urgent=True)
    assert claim(ordered, 9) == []
    ordered.administration.resume(handler=PUSH)
    assert ids(claim(ordered, 9)) == ["a", "b"]


def test_a_delayed_run_is_due_at_its_own_time(ordered: System) -> None:
    accept_and_route(ordered, "a", "b", how=(PUSH, "default", 3600.0, "c resource"))
    assert states(ordered, "a", "b") == ["later", "queued"]
    ordered.administration.make_due([f"a|{PUSH}"])
    ordered.housekeeping.tick()
    (run,) = claim(ordered, 9)
    finish(ordered, run, OutcomeKind.DONE)
    assert states(ordered, "b") == ["later"]


def test_retire_ends_queued_runs_too(ordered: System) -> None:
    accept_and_route(ordered, *"abcde")
    assert HandlerQueries(ordered.client).waiting([PUSH]) == {PUSH: (5, False)}
    assert ordered.administration.retire(PUSH) == 5
    assert ordered.client.keys(keys.QUEUED + "*") == ordered.client.keys(keys.ORDER + "*") == []
    assert ordered.ledger.counters().total["failed"] == 5


def test_all_runs_of_an_absent_handler_end_although_failures_stop_their_keys(ordered: System) -> None:
    for turn in "ab":
        many = (delivery(f"{turn}{number}", str(number)) for number in range(600))  # more than a page of the server
        ordered.inbox.accept(list(many))
        route(ordered, *to_route(ordered, 600).values(), how=STOPPING)
    ordered.client.delete(keys.DECLARED_AT)
    ordered.client.hset(keys.DECLARED_AT, "@", 9e15)
    ended, rounds = 0, 0
    while ended < 1200 and rounds < 200:
        ended, rounds = ended + len(ordered.housekeeping.end_orphans(absent=60)), rounds + 1
    assert ended == 1200


def test_damaged_keys_of_an_order_heal(ordered: System) -> None:
    accept_and_route(ordered, "a", "b", "c")
    (first,) = claim(ordered)
    queue = f"{keys.QUEUED}{PUSH}:north:order:7"
    for name in (keys.ORDER + PUSH, queue, keys.UNROUTED + "north"):
        ordered.client.delete(name)
        ordered.client.set(name, "damaged")
    finish(ordered, first, OutcomeKind.DONE)
    assert ordered.housekeeping.put_back_stranded() == 2
    ordered.housekeeping.put_back_stranded()  # a new walk
    assert ids(claim(ordered, 9)) == ["b", "c"]


KNOWN = {("north", "order.updated"): [BY_RESOURCE]}


@pytest.mark.parametrize("in_claim", [True, False])
@pytest.mark.parametrize(
    "name", ["unrouted:north", "heads", "heads:north", f"order:{PUSH}", f"queued:{PUSH}:north:order:7"]
)
def test_a_damaged_key_costs_no_event(ordered: System, name: str, in_claim: bool) -> None:
    """Neither accept nor routing, of any event of the store, fails for ever at it, and no event is quarantined."""
    if "heads" not in name:
        accept_and_route(ordered, "a", "b")
    accept(ordered, "c")
    older = to_route(ordered)
    ordered.client.delete(keys.PREFIX + name)
    ordered.client.set(keys.PREFIX + name, "damaged")
    accept(ordered, "d")
    if in_claim:
        routes = Routes(ordered.inbox.declarations().version, KNOWN)
        ordered.inbox.finish_and_claim((), {"": 9}, capacity=9, limits={}, routes=routes)
    else:
        route(ordered, *to_route(ordered).values())
    route(ordered, *older.values())
    begun = list[str]()
    for _ in range(3):
        while runs := claim(ordered, 9):
            begun += ids(runs)
            ordered.inbox.finish([Outcome(run, OutcomeKind.DONE) for run in runs])
        ordered.housekeeping.put_back_stranded()
    assert sorted(begun) == list("cd" if "heads" in name else "abcd")
    assert all(item.startswith(keys.PREFIX.encode()) for item in ordered.client.hkeys(keys.QUARANTINED))


def test_an_event_without_a_value_waits_for_no_other_and_is_counted(ordered: System) -> None:
    for name in ("a", "b"):
        accept(ordered, name, resource="")
    route(ordered, *to_route(ordered).values())
    assert ids(claim(ordered, 9)) == ["a", "b"]
    assert ordered.ledger.counters().total["unkeyed"] == 2
    (run,) = ordered.ledger.event("a").runs
    assert run.order.is_own_id


@pytest.mark.parametrize(
    ("data", "order"),
    [
        ('{"c": {"id": 5}}', "c =5"),
        ('{"c": {"id": "5"}}', "c =5"),
        ('{"c": {"id": true}}', "c =true"),
        ('{"c": {"id": ""}}', "c !"),
        ('{"c": {"id": null}}', "c !"),
        ('{"c": {"id": [1]}}', "c !"),
        ('{"c": 1}', "c !"),
    ],
)
def test_the_key_is_a_scalar_of_the_data(data: str, order: str) -> None:
    event = Event(id="a", store="north", topic="order.paid", received_at=from_ms(0), body=data.encode())
    assert order_for("c data.c.id", event) == order


def test_a_long_key_is_stored_as_its_digest(ordered: System) -> None:
    accept(ordered, "a")
    route(ordered, *to_route(ordered).values(), how=(PUSH, "default", False, f"c ={'x' * 1000}"))
    (key,) = ordered.client.hkeys(keys.ORDER + PUSH)
    assert key.startswith(b"north:sha1:")
    assert len(key) < 100


def test_the_place_of_a_queued_run_is_shown(ordered: System) -> None:
    accept_and_route(ordered, "a", "b", "c")
    (run,) = ordered.ledger.event("c").runs
    assert run.status == "waiting"
    assert (run.order.key, run.order.place, run.order.waits_for) == ("north:order:7", 2, "a")
    shown = ordered.run_cli("events", "show", "c").stdout
    assert "queued behind event a; place 2 of the key north:order:7" in " ".join(shown.split())


def test_a_run_behind_a_stopped_key_names_the_failure_and_what_ends_it(ordered: System) -> None:
    accept_and_route(ordered, "a", "b", how=STOPPING)
    finish(ordered, claim(ordered)[0], OutcomeKind.FAILED)
    stopped = "queued behind event a, which has failed and stops the key until it is replayed or dropped; place 1 of"
    for command in (("events", "show"), ("handlers", "explain")):
        assert stopped in " ".join(ordered.run_cli(*command, "b").stdout.split()), command
    explained = " ".join(ordered.run_cli("handlers", "explain", "b").stdout.split())
    assert f"storehooks events replay a --handler {PUSH}" in explained


def test_a_claim_of_a_key_with_very_many_queued_runs_is_fast(ordered: System, redis: Redis) -> None:
    accept_and_route(ordered, "a", "b")
    queue = f"{keys.QUEUED}{PUSH}:north:order:7"
    for start in range(0, 300_000, 50_000):
        redis.zadd(queue, {f"x{n}|{PUSH}": 9e15 + n for n in range(start, start + 50_000)})
    times = []
    for _ in range(3):  # others may have the processor meanwhile
        redis.config_resetstat()
        runs = claim(ordered, 2)
        times.append(redis.info("commandstats")["cmdstat_fcall"]["usec_per_call"])
        assert ids(runs) == ["a", "b"]
        for run in runs:
            finish(ordered, run, OutcomeKind.RELEASE)
    assert min(times) < 10_000, "µs"


def test_a_limit_and_an_order_together_starve_none(ordered: System) -> None:
    for turn in "abc":
        for resource in "78":
            accept(ordered, f"{turn}{resource}", resource)
    route(ordered, *to_route(ordered).values())
    limits, begun = {PUSH: Limit("erp", concurrency=1)}, list[str]()
    while runs := ordered.inbox.claim({PUSH: 9}, capacity=9, limits=limits).runs:
        assert ordered.inbox.claim({PUSH: 9}, capacity=9, limits=limits).runs == (), "the only slot is taken"
        assert len({run.order_key for run in runs}) == len(runs)
        begun += ids(runs)
        ordered.inbox.finish([Outcome(run, OutcomeKind.DONE) for run in runs])
    assert [one for one in begun if one.endswith("7")] == ["a7", "b7", "c7"]
    assert [one for one in begun if one.endswith("8")] == ["a8", "b8", "c8"]


def test_the_housekeeper_reads_the_active_runs_of_a_long_queue_once(ordered: System) -> None:
    """It read them for each queued run: 64 of them, in a script that held up all others."""
    for turn in range(21):
        accept_and_route(ordered, *(f"e{turn}x{n}" for n in range(9)))
    claim(ordered, 64)
    ordered.client.config_resetstat()
    ordered.housekeeping.put_back_stranded()
    calls = ordered.client.info("commandstats")["cmdstat_hget"]["calls"]
    assert calls < 4 * 190
