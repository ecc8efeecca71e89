"""The inbox protocol, script by script, against a real server."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from receiver.inbox import Claim, Declaration, Housekeeping, Inbox, Outcome, Routes, Run, keys
from receiver.inbox.leases import LEASE_MS, LOSSES_ALLOWED
from receiver.inbox.model import PlannedRun
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.redis.script_library import library
from tests.support.harness import System, eventually

GREET = ("shop.greet", "default", True)


def claim_one(inbox: Inbox, lane: str = "") -> Run:
    (run,) = inbox.claim({lane: 1}, capacity=1).runs
    return run


def route(inbox: Inbox, event: Run, *handlers: tuple[str, str, bool]) -> list[Run]:
    (reply,) = inbox.route([(event, handlers)], inbox.declarations().version)
    assert reply[0] == "routed"
    return [replace(event, item=f"{event.event.id}|{name}", handler=name) for name, _, mine in handlers if mine]


def lapse(inbox: Inbox) -> None:
    """Let every lease lapse."""
    for item in inbox.client.zrange(keys.LEASED, 0, -1):
        inbox.client.zadd(keys.LEASED, {item: 1})
    Housekeeping(inbox.client).tick()


def test_an_accepted_event_is_stored_with_its_wake_up_in_one_step(system: System) -> None:
    event_id = system.accept()
    assert system.status(event_id) == "open"
    assert system.client.lrange("rq:queue:storehooks", 0, -1) == [b"wake-default"]
    assert system.ledger.counters().total["accepted"] == 1
    assert system.identity_holds()


def test_the_same_delivery_twice_is_one_event(system: System) -> None:
    delivery = system.delivery()
    first, second = system.inbox.accept([delivery, delivery])
    assert (first.status, second.status) == ("accepted", "duplicate")
    assert first.id == second.id
    assert len(system.ledger.events()) == 1
    assert system.ledger.counters().total["duplicates"] == 1


def test_equal_bodies_without_an_id_are_duplicates_only_for_a_short_time(system: System) -> None:
    def without_id() -> object:
        delivery = system.delivery(data={"id": 7})
        event = replace(delivery.event, id=f"event{without_id.calls}", delivery_id="")
        without_id.calls += 1
        return replace(delivery, event=event, content_hash="m")

    without_id.calls = 0
    (first,) = system.inbox.accept([without_id()], repeat_window=0.2)
    (second,) = system.inbox.accept([without_id()], repeat_window=0.2)
    assert (first.status, second.status, second.id) == ("accepted", "duplicate", first.id)
    eventually(lambda: system.inbox.accept([without_id()], repeat_window=0.2)[0].status == "accepted")


def test_only_the_store_over_its_quota_is_full(system: System) -> None:
    system.inbox.accept([system.delivery()], quotas={"north": 1, "south": 1})
    assert system.inbox.accept([system.delivery()], quotas={"north": 1, "south": 1})[0].status == "full"
    assert (
        system.inbox.accept([system.delivery(store="south")], quotas={"north": 1, "south": 1})[0].status == "accepted"
    )


@pytest.mark.parametrize("key", ["t:south", "ix:south", "ix"])
def test_a_damaged_key_of_one_store_leaves_no_stored_event_outside_a_lane(system: System, key: str) -> None:
    """Stored and in no lane, it would never run, and its redelivery would be a duplicate."""
    system.client.set(f"{keys.PREFIX}{key}", "damaged")
    group = [system.delivery(store=store) for store in ("north", "south", "north")]
    with suppress(ResponseError):
        system.inbox.accept(group)
    assert len(system.inbox.claim({"": 5}, capacity=5).runs) == 3


def test_wake_ups_are_coalesced(system: System) -> None:
    for _ in range(20):
        system.accept()
    assert system.client.llen("rq:queue:storehooks") == 1


def test_a_claim_that_leaves_work_behind_wakes_the_next_worker(system: System) -> None:
    for _ in range(3):
        system.accept()
    system.client.delete("rq:queue:storehooks")
    claim = system.inbox.claim({"": 2}, capacity=2)
    assert len(claim.runs) == 2
    assert system.client.llen("rq:queue:storehooks") == 1
    assert system.client.zcard(keys.LEASED) == 2


def test_an_event_gets_a_run_for_each_handler_and_settles_when_the_last_ends(system: System) -> None:
    event_id = system.accept()
    greet, count = route(system.inbox, claim_one(system.inbox), GREET, ("shop.count", "default", True))
    assert system.inbox.finish([Outcome(greet, "done", {"result": "hi"})]) == [True]
    assert system.status(event_id) == "open"
    assert system.inbox.finish([Outcome(count, "dropped", {"result": "not ours"})]) == [True]
    assert system.status(event_id) == "settled"
    assert [run.status for run in system.ledger.event(event_id).runs] == ["dropped", "done"]
    assert system.identity_holds()


def test_an_event_without_handlers_is_settled_as_unhandled(system: System) -> None:
    event_id = system.accept()
    system.client.set(keys.DECLARED_SINCE, 1)
    replies = system.inbox.route([(claim_one(system.inbox), ())], "0")
    assert replies == [["unhandled"]]
    assert (system.status(event_id), system.ledger.event(event_id).reason) == ("settled", "unhandled")


def test_routing_by_old_declarations_is_noticed(system: System) -> None:
    system.accept()
    event = claim_one(system.inbox)
    version = system.inbox.declare([Declaration("shop.greet", "1", ("*",), ("*",))])
    assert system.inbox.route([(event, ())], "0") == [["reroute"]]
    assert system.inbox.route([(event, [GREET])], version) == [["routed", "shop.greet"]]


def test_one_failed_run_makes_the_event_failed(system: System) -> None:
    event_id = system.accept()
    greet, count = route(system.inbox, claim_one(system.inbox), GREET, ("shop.count", "default", True))
    system.inbox.finish([Outcome(greet, "failed", {"error": "KeyError: 'x'"}), Outcome(count, "done")])
    assert system.status(event_id) == "failed"
    assert system.client.zrange(keys.FAILED, 0, -1) == [f"{event_id}|shop.greet".encode()]
    assert system.identity_holds()


def test_a_retry_counts_as_an_attempt_and_is_ready_when_due(system: System) -> None:
    system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, "retry", {"error": "E"}, delay=0.05)])
    assert system.inbox.claim({"shop.greet": 1}, capacity=1).runs == ()
    eventually(lambda: system.housekeeping.tick()[0] == 1)
    again = claim_one(system.inbox, "shop.greet")
    assert (again.attempts, again.losses) == (1, 0)


def test_a_first_attempt_that_is_retried_without_a_delay_begins_before_those_that_wait(system: System) -> None:
    ids = [system.accept() for _ in range(3)]
    for event in system.inbox.claim({"": 9}, capacity=9).runs:
        assert route(system.inbox, event, ("shop.greet", "default", False)) == []
    system.client.delete("rq:queue:storehooks")
    run = claim_one(system.inbox, "shop.greet")
    system.inbox.finish([Outcome(run, "retry", {"error": "its process was killed"})])
    again = claim_one(system.inbox, "shop.greet")
    assert (again.event.id, again.attempts, again.losses) == (ids[0], 1, 0)
    assert system.client.lrange("rq:queue:storehooks", 0, -1) == [b"wake-default"]
    system.inbox.finish([Outcome(again, "retry", {"error": "and again"})])
    assert claim_one(system.inbox, "shop.greet").event.id == ids[1], "it may kill each process"
    assert system.housekeeping.tick()[0] == 1
    assert [one.event.id for one in system.inbox.claim({"shop.greet": 9}, capacity=9).runs] == [ids[2], ids[0]]
    assert system.identity_holds()


def test_release_and_busy_count_no_attempt(system: System) -> None:
    system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, "release")])
    run = claim_one(system.inbox, "shop.greet")
    system.inbox.finish([Outcome(run, "busy", {"error": "Busy"}, delay=0)])
    assert claim_one(system.inbox, "shop.greet").attempts == 0


def test_a_limit_that_busy_has_closed_is_open_again_when_the_handler_is_resumed(system: System) -> None:
    """For an hour nothing could be done about it."""
    system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, "busy", {"error": "Busy"}, delay=3600)])
    assert system.administration.is_busy("shop.greet")
    assert system.inbox.claim({"shop.greet": 1}, capacity=1).runs == ()
    system.administration.resume(handler="shop.greet")
    assert not system.administration.is_busy("shop.greet")
    assert claim_one(system.inbox, "shop.greet").attempts == 0


@pytest.mark.parametrize("call", ["renew", "finish"])
def test_a_late_worker_is_not_counted_as_a_loss(system: System, call: str) -> None:
    """A starved machine must not turn good runs into failures."""
    system.accept()
    (late,) = route(system.inbox, claim_one(system.inbox), GREET)
    for _ in range(3 * LOSSES_ALLOWED):
        lapse(system.inbox)
        if call == "renew":
            assert system.inbox.renew([late]) == {late.item}, "the lease is lost"
        else:
            assert system.inbox.finish([Outcome(late, "done")]) == [False]
        again = claim_one(system.inbox, "shop.greet")
        assert (again.attempts, again.losses) == (0, 0)
        late = again


def test_a_loss_is_taken_back_once_even_while_another_worker_has_the_run(system: System) -> None:
    system.accept()
    (late,) = route(system.inbox, claim_one(system.inbox), GREET)
    for _ in range(2):
        lapse(system.inbox)
        other = claim_one(system.inbox, "shop.greet")
    assert other.losses == 2
    system.inbox.renew([late])
    lapse(system.inbox)
    assert system.inbox.renew([other, other]) == {other.item}
    third = claim_one(system.inbox, "shop.greet")
    assert third.losses == 2, "only the last lapsed lease is forgiven"


def test_a_late_worker_that_routes_is_not_counted_as_a_loss(system: System) -> None:
    system.accept()
    for _ in range(3 * LOSSES_ALLOWED):
        late = claim_one(system.inbox)
        lapse(system.inbox)
        assert system.inbox.route([(late, [GREET])], system.inbox.declarations().version) == [["stale"]]
    assert claim_one(system.inbox).losses == 0


def test_a_run_that_always_makes_its_worker_late_ends_as_a_failure(system: System) -> None:
    event_id = system.accept()
    (late,) = route(system.inbox, claim_one(system.inbox), GREET)
    for _ in range(50):
        lapse(system.inbox)
        system.inbox.renew([late])
        if system.status(event_id) == "failed":
            break
        late = claim_one(system.inbox, "shop.greet")
    assert system.run_of(event_id, "shop.greet").error.startswith("lost-worker")


def test_a_lapsed_lease_is_a_loss_and_the_late_outcome_is_refused(system: System) -> None:
    event_id = system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    lapse(system.inbox)
    again = claim_one(system.inbox, "shop.greet")
    assert (again.attempts, again.losses) == (0, 1)
    assert system.inbox.finish([Outcome(run, "done")]) == [False]
    assert system.inbox.renew([run]) == {run.item}
    assert system.inbox.finish([Outcome(again, "done")]) == [True]
    assert system.status(event_id) == "settled"


def test_a_run_that_keeps_losing_its_worker_becomes_a_failure(system: System) -> None:
    event_id = system.accept()
    route(system.inbox, claim_one(system.inbox), GREET)
    for _ in range(LOSSES_ALLOWED):
        lapse(system.inbox)
        claim_one(system.inbox, "shop.greet")
    lapse(system.inbox)
    assert system.status(event_id) == "failed"
    assert "lost-worker" in system.run_of(event_id, "shop.greet").error
    assert system.identity_holds()


def test_a_suspect_is_claimed_alone(system: System) -> None:
    for _ in range(3):
        system.accept()
        route(system.inbox, claim_one(system.inbox), ("shop.greet", "default", False))
    claim_one(system.inbox, "shop.greet")
    lapse(system.inbox)
    assert [run.losses for run in system.inbox.claim({"shop.greet": 10}, capacity=10).runs] == [1]
    assert [run.losses for run in system.inbox.claim({"shop.greet": 10}, capacity=10).runs] == [0, 0]


def test_renewing_keeps_a_lease(system: System) -> None:
    system.accept()
    run = claim_one(system.inbox)
    system.client.zadd(keys.LEASED, {run.item: 1})
    assert system.inbox.renew([run]) == set()
    assert system.housekeeping.tick() == (0, 0, [])


def test_a_lease_that_ends_too_late_is_shortened(system: System) -> None:
    """The server's clock was set back by an hour."""
    system.accept()
    run = claim_one(system.inbox)
    seconds, _ = system.client.time()
    system.client.zadd(keys.LEASED, {run.item: (seconds + 3600) * 1000})
    system.housekeeping.tick()
    assert system.client.zscore(keys.LEASED, run.item) <= (seconds + 1) * 1000 + LEASE_MS + 1000


def test_stores_take_turns_regardless_of_their_number_of_events(system: System) -> None:
    for _ in range(20):
        system.accept(store="north")
    for _ in range(3):
        system.accept(store="south")
    stores = [run.event.store for run in system.inbox.claim({"": 8}, capacity=8).runs]
    assert stores.count("south") == 3


def test_events_of_one_store_keep_their_order(system: System) -> None:
    ids = [system.accept() for _ in range(10)]
    assert [run.event.id for run in system.inbox.claim({"": 10}, capacity=10).runs] == ids


@pytest.mark.parametrize("damage", ["missing", "wrong type", "junk"])
def test_a_damaged_event_is_quarantined_and_the_next_one_is_claimed(system: System, redis: Redis, damage: str) -> None:
    bad, good = system.accept(), system.accept()
    if damage == "missing":
        redis.delete(keys.EVENT + bad)
    elif damage == "wrong type":
        redis.delete(keys.EVENT + bad)
        redis.set(keys.EVENT + bad, "x")
    else:
        redis.hset(keys.EVENT + bad, "r:", "what is this")
    claim = system.inbox.claim({"": 2}, capacity=2)
    assert [run.event.id for run in claim.runs] == [good]
    assert redis.hexists(keys.QUARANTINED, bad)


def test_an_error_affects_only_the_delivery_that_caused_it(system: System) -> None:
    first, bad, last = system.delivery(), replace(system.delivery(), content_hash="damaged"), system.delivery()
    system.damage_mark_of(bad)
    with pytest.raises(ResponseError):
        system.inbox.accept([first, bad, last])
    assert [one.status for one in system.inbox.accept([first, last])] == ["duplicate", "duplicate"]
    assert {run.event.id for run in system.inbox.claim({"": 9}, capacity=9).runs} == {first.event.id, last.event.id}
    assert system.identity_holds()


def test_a_damaged_index_of_one_store_does_not_affect_other_stores(system: System, redis: Redis) -> None:
    redis.set("sh:ix:south", "x")
    deliveries = [system.delivery(), system.delivery(store="south"), system.delivery()]
    with pytest.raises(ResponseError):
        system.inbox.accept(deliveries)
    assert len(system.inbox.claim({"": 9}, capacity=9).runs) == 3
    assert system.identity_holds()


def test_duplicates_and_quotas_count_within_a_group(system: System) -> None:
    one, other, third = system.delivery(), system.delivery(), system.delivery()
    results = system.inbox.accept([one, one, other, third], quotas={"north": 2})
    assert [result.status for result in results] == ["accepted", "duplicate", "accepted", "full"]
    assert system.ledger.counters().total["open"] == 2
    assert system.identity_holds()


def test_large_bodies_are_accepted_in_several_calls_and_answered_in_order(system: System) -> None:
    deliveries = [system.delivery(data={"id": n, "text": "x" * 100_000}) for n in range(7)]
    results = system.inbox.accept(deliveries)
    assert [result.id for result in results] == [one.event.id for one in deliveries]
    assert system.ledger.event_names("north")[0].seen == 7


def test_one_call_routes_events_with_different_results(system: System) -> None:
    ids = [system.accept() for _ in range(4)]
    system.client.set(keys.DECLARED_SINCE, 1)
    runs = list(system.inbox.claim({"": 4}, capacity=4).runs)
    version = system.inbox.declarations().version
    lost = replace(runs[1], token="another")
    decisions = [
        (runs[0], [("shop.one", "default", True), ("shop.two", "default", False)]),
        (lost, [("shop.one", "default", True)]),
        (runs[2], []),
        (runs[3], [("shop.two", "slow", False)]),
    ]
    replies = system.inbox.route(decisions, version)
    assert replies == [["routed", "shop.one"], ["stale"], ["unhandled"], ["routed"]]
    assert [run.event.id for run in system.inbox.claim({"shop.two": 9}, capacity=9).runs] == [ids[0], ids[3]]
    assert system.status(ids[2]) == "settled"
    assert system.identity_holds()


def claim_with_routes(system: System, *handlers: PlannedRun, version: str = "", count: int = 8) -> list[Run]:
    routes = Routes(version or system.inbox.declarations().version, {("north", "order.created"): handlers})
    lanes = {"": count, **{name: count for name, _, _ in handlers}}
    return list(system.inbox.finish_and_claim((), lanes, capacity=count, routes=routes)[1].runs)


def test_an_event_with_a_known_route_is_routed_by_the_claim(system: System) -> None:
    event_id = system.accept()
    runs = claim_with_routes(system, GREET, ("shop.other", "slow", False))
    assert [(run.item, run.handler, run.event.id) for run in runs] == [
        (f"{event_id}|shop.greet", "shop.greet", event_id)
    ]
    assert system.inbox.finish([Outcome(runs[0], "done")]) == [True]
    assert system.status(event_id) == "open"
    assert system.client.lrange("rq:queue:storehooks:slow", 0, -1) == [b"wake-slow"]
    assert system.inbox.finish([Outcome(claim_one(system.inbox, "shop.other"), "done")]) == [True]
    assert system.status(event_id) == "settled"
    assert system.identity_holds()


def test_a_route_by_other_declarations_is_not_used(system: System) -> None:
    event_id = system.accept()
    (event,) = claim_with_routes(system, GREET, version="another")
    assert (event.item, event.handler) == (event_id, "")


def test_an_event_that_has_runs_already_is_not_routed_by_the_claim(system: System, redis: Redis) -> None:
    event_id = system.accept()
    redis.hset(keys.EVENT + event_id, "r:shop.greet", "done 1 0 default ")
    (event,) = claim_with_routes(system, GREET)
    assert event.handler == ""


def test_an_event_that_lost_its_worker_is_claimed_alone_and_not_routed_by_the_claim(system: System) -> None:
    suspect = system.accept()
    claim_one(system.inbox)
    lapse(system.inbox)
    system.accept()
    (event,) = claim_with_routes(system, GREET)
    assert (event.item, event.handler, event.losses) == (suspect, "", 1)


def test_an_event_routed_by_the_claim_keeps_its_delays(system: System, redis: Redis) -> None:
    event_id = system.accept()
    assert [run.handler for run in claim_with_routes(system, GREET, ("shop.late", "slow", 60.0))] == ["shop.greet"]
    (due,) = [score for item, score in redis.zscan_iter(keys.LATER) if item == f"{event_id}|shop.late".encode()]
    record = system.ledger.event(event_id)
    assert record is not None
    assert due == record.summary.received_at.timestamp() * 1000 + 60_000
    assert redis.llen("rq:queue:storehooks:slow") == 0
    assert system.inbox.claim({"shop.late": 9}, capacity=9).runs == ()
    redis.zadd(keys.LATER, {f"{event_id}|shop.late": 1})
    assert system.housekeeping.tick()[0] == 1
    assert claim_one(system.inbox, "shop.late").event.id == event_id
    assert system.identity_holds()


def test_an_event_with_only_delayed_runs_stays_open(system: System) -> None:
    event_id = system.accept()
    assert claim_with_routes(system, ("shop.late", "default", 60.0)) == []
    assert system.status(event_id) == "open"
    assert system.inbox.claim({"": 9}, capacity=9).runs == ()
    assert system.identity_holds()


def test_a_new_run_waits_behind_older_runs_of_its_handler(system: System) -> None:
    older = system.accept()
    assert claim_with_routes(system, ("shop.greet", "default", False)) == []
    newer = system.accept()
    assert [run.event.id for run in claim_with_routes(system, GREET, count=1)] == [older]
    assert [run.event.id for run in system.inbox.claim({"shop.greet": 9}, capacity=9).runs] == [newer]


def test_a_claim_routes_no_more_events_than_the_caller_has_room_for(system: System) -> None:
    ids = [system.accept() for _ in range(5)]
    assert [run.event.id for run in claim_with_routes(system, GREET, count=2)] == ids[:2]
    assert system.client.zcard(keys.READY) == 3, "made ready, a run is read and written once more"
    system.client.delete("rq:queue:storehooks")
    assert route(system.inbox, claim_one(system.inbox), ("shop.greet", "default", False)) == [], "it is made ready"
    routes = Routes(system.inbox.declarations().version, {("north", "order.created"): (GREET,)})
    claim = system.inbox.finish_and_claim((), {"shop.greet": 1, "": 9}, capacity=9, routes=routes)[1]
    assert [run.event.id for run in claim.runs] == [ids[2]]
    assert system.client.zcard(keys.READY) == 2
    assert system.client.lrange("rq:queue:storehooks", 0, -1) == [b"wake-default"], "another worker may have room"
    claim = system.inbox.finish_and_claim((), {"shop.greet": 1, "shop.idle": 1, "": 9}, capacity=9, routes=routes)[1]
    assert [run.event.id for run in claim.runs] == [ids[3]]
    assert system.client.zcard(keys.READY) == 0, "a run for the idle handler may be behind them"
    assert system.identity_holds()


def test_a_run_of_a_paused_handler_waits_even_if_a_lease_was_asked_for(system: System) -> None:
    system.accept()
    system.administration.pause(handler="shop.greet")
    assert claim_with_routes(system, GREET) == []
    system.administration.resume(handler="shop.greet")
    assert claim_one(system.inbox, "shop.greet").handler == "shop.greet"
    assert system.identity_holds()


def test_the_library_is_loaded_again_after_the_server_lost_it(system: System, redis: Redis) -> None:
    system.accept()
    redis.function_delete(library().name)
    assert system.inbox.accept([system.delivery(), system.delivery()])[1].status == "accepted"


def test_a_verified_but_unreadable_delivery_is_stored_as_a_failure_of_the_intake(system: System) -> None:
    delivery = replace(system.delivery(), unreadable="the body is not JSON")
    (accepted,) = system.inbox.accept([delivery])
    assert accepted.status == "accepted"
    assert system.status(accepted.id) == "failed"
    assert system.run_of(accepted.id, "intake").error == "the body is not JSON"
    assert system.identity_holds()


def test_declarations_are_the_union_of_all_workers(system: System) -> None:
    def make(name: str, version: str) -> Declaration:
        return Declaration(name, version, ("*",), ("*",))

    first = system.inbox.declare([make("shop.greet", "1")])
    assert system.inbox.declare([make("shop.greet", "1")]) == first
    assert system.inbox.declare([make("shop.greet", "2"), make("shop.new", "2")]) != first
    assert {one.handler for one in system.inbox.declarations().handlers} == {"shop.greet", "shop.new"}


def test_only_versions_of_live_workers_are_running(system: System) -> None:
    system.declare_as_worker(Declaration("shop.greet", "1", ("*",), ("*",)), worker="host-1-1")
    system.declare_as_worker(Declaration("shop.greet", "2", ("*",), ("*",)), worker="host-2-2")
    system.declare_as_worker(Declaration("shop.greet", "2", ("*",), ("*",)), worker="host-3-3")
    queries = HandlerQueries(system.client)
    assert queries.running_versions() == {"shop.greet": {"1": 1, "2": 2}}
    system.client.delete(f"{keys.RQ_WORKER}host-1-1")  # it has stopped
    assert queries.running_versions() == {"shop.greet": {"2": 2}}


def test_an_empty_claim_is_no_error(system: System) -> None:
    assert system.inbox.claim({"": 5, "shop.greet": 5}, capacity=5) == Claim("0", ())


@pytest.mark.parametrize(
    ("arrived", "state", "due"), [(0, "later", 60), (-50, "later", 10), (-3600, "ready", 0), (3600, "later", 60)]
)
def test_a_delay_counts_from_arrival_and_is_never_longer_from_now(
    system: System, arrived: int, state: str, due: int
) -> None:
    """A late event is not delayed twice, and a receiver's clock that is ahead adds no delay."""
    delivery = system.delivery()
    event = replace(delivery.event, received_at=delivery.event.received_at + timedelta(seconds=arrived))
    event_id = system.inbox.accept([replace(delivery, event=event)])[0].id
    reply = system.inbox.route([(claim_one(system.inbox), [("shop.greet", "default", 60.0)])], "0")
    assert reply == [["routed"]]
    item = keys.run_item(event_id, "shop.greet")
    assert system.client.hget(keys.EVENT + event_id, "r:shop.greet").split()[0].decode() == state
    if state == "later":
        now = system.client.time()[0]
        assert due - 3 <= system.client.zscore(keys.LATER, item) / 1000 - now <= due + 1
        system.client.zadd(keys.LATER, {item: 1})
        assert system.housekeeping.tick()[0] == 1
    assert claim_one(system.inbox, "shop.greet").item == item
    assert system.identity_holds()
