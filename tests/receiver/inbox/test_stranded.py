"""Stranded items: open, and in no set, because a key was damaged or removed. They are put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from redis.exceptions import ResponseError

from receiver.inbox import Outcome, housekeeping, keys
from receiver.inbox.model import Limit
from receiver.inbox.outcomes import OutcomeKind
from tests.faults.test_damaged_records import GREET, PLUGIN, leased_runs, quarantined, ready_runs
from tests.receiver.inbox.test_inbox import route
from tests.support.harness import System

EVERY_SET = (keys.READY, keys.READY + GREET, keys.LEASED, keys.LATER, keys.HELD + "north")


def walk(system: System) -> int:
    """Examine all events. Returns how many items were put back."""
    many = system.housekeeping.put_back_stranded()
    while system.housekeeping._position:
        many += system.housekeeping.put_back_stranded()
    return many


def items_in(system: System) -> dict[str, set[bytes]]:
    return {key: found for key in EVERY_SET if (found := set(system.client.zrange(key, 0, -1)))}


def to_route(system: System) -> None:
    system.accept()


def ready(system: System) -> None:
    ready_runs(system, 1)


def leased(system: System) -> None:
    leased_runs(system, 1)


def later(system: System) -> None:
    (run,) = leased_runs(system, 1)
    system.inbox.finish([Outcome(run, "retry", {"error": "E"}, 600)])


def held(system: System) -> None:
    ready_runs(system, 1)
    system.administration.pause(store="north")
    assert not system.inbox.claim({GREET: 1}, capacity=1).runs


@pytest.mark.parametrize("state", [to_route, ready, leased, later, held])
def test_an_item_that_is_in_no_set_is_put_back(system: System, state: Callable[[System], None]) -> None:
    """It was open for ever."""
    state(system)
    before = items_in(system)
    assert walk(system) == 0, "an item in a set is left alone"
    assert items_in(system) == before
    system.client.delete(*EVERY_SET)
    assert walk(system) == 1
    assert items_in(system) == (before if state is not held else {keys.READY + GREET: before[keys.HELD + "north"]})
    assert walk(system) == 0
    if state is held:
        assert not system.inbox.claim({GREET: 1}, capacity=1).runs
        assert items_in(system) == before, "its store is paused"


def test_a_run_whose_worker_is_alive_is_not_run_twice(system: System) -> None:
    (run,) = leased_runs(system, 1)
    system.client.delete(keys.LEASED)
    assert walk(system) == 1
    assert not system.inbox.claim({GREET: 1}, capacity=1).runs
    assert system.inbox.finish([Outcome(run, "done")]) == [True]
    assert system.status(run.stored.id) == "settled"


def test_a_run_that_waits_until_later_keeps_its_delay(system: System) -> None:
    later(system)
    (due,) = system.client.zrange(keys.LATER, 0, -1, withscores=True)
    system.client.delete(keys.LATER)
    assert walk(system) == 1
    assert system.client.zrange(keys.LATER, 0, -1, withscores=True)[0][1] >= due[1]


def test_nothing_is_put_back_while_it_is_unknown_whether_it_is_in_a_set(system: System) -> None:
    ready_runs(system, 1)
    system.client.delete(keys.READY + GREET)
    for key in (keys.LEASED, keys.LATER, keys.READY + GREET, keys.HELD + "north", keys.PREFIX + "fair:" + GREET):
        good = system.client.dump(key)
        system.client.set(key, "damaged")
        assert walk(system) == 0, key
        system.client.delete(key)
        if good:
            system.client.restore(key, 0, good)
    assert walk(system) == 1


def test_closed_quarantined_and_damaged_events_are_left_alone(system: System) -> None:
    done, failed = leased_runs(system, 2)
    system.inbox.finish([Outcome(done, "done"), Outcome(failed, "failed", {"error": "E"})])
    bad, damaged, no_store = ready_runs(system, 3)
    system.client.hset(keys.QUARANTINED, f"{bad}|{GREET}", "damaged")
    system.client.set(keys.EVENT + damaged, "damaged")
    system.client.hdel(keys.EVENT + no_store, "store")
    system.client.delete(*EVERY_SET)
    assert walk(system) == 0
    assert items_in(system) == {}


def test_a_walk_examines_all_events_in_slices(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "STRANDED_SLICE", 2)
    for _ in range(5):
        system.accept()
    system.client.delete(keys.READY)
    assert [system.housekeeping.put_back_stranded() for _ in range(4)] == [2, 2, 1, 0]
    system.accept()
    assert system.client.zcard(keys.READY) == 6


def test_a_walk_ends_although_events_keep_arriving(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would never come back to the events that were stranded behind it."""
    monkeypatch.setattr(housekeeping, "STRANDED_SLICE", 1)
    system.accept()
    positions = []
    for _ in range(4):
        system.housekeeping.put_back_stranded()
        positions.append(system.housekeeping._position)
        system.accept()
    assert b"" in positions


@pytest.mark.parametrize("lost", [keys.READY + GREET, keys.LEASED, keys.LATER])
def test_events_are_handled_although_a_set_was_removed(make_system: Callable[..., System], lost: str) -> None:
    system = make_system(plugin=PLUGIN)
    {keys.READY + GREET: ready, keys.LEASED: leased, keys.LATER: later}[lost](system)
    if lost == keys.LATER:
        (item,) = system.client.zrange(lost, 0, -1)
        system.client.hset(keys.EVENT + item.decode().partition("|")[0], f"r:{GREET}", "later 1 0 default 50")
    assert system.client.delete(lost) == 1
    system.start("worker", "housekeeper")
    (event,) = system.ledger.events()
    assert system.settled(event.id) == "settled"
    assert "open runs were in no set" in system.log("housekeeper")


KEY_OF = {
    to_route: keys.READY,
    ready: keys.READY + GREET,
    leased: keys.LEASED,
    later: keys.LATER,
    held: keys.HELD + "north",
}


@pytest.mark.parametrize("state", KEY_OF)
@pytest.mark.parametrize("fair", [False, True])
def test_a_damaged_set_is_kept_under_another_name_and_its_items_are_put_back(
    system: System, state: Callable[[System], None], fair: bool
) -> None:
    """Claims failed for all lanes, and ticks failed or left runs in no set, until a person renamed the key."""
    state(system)
    before = items_in(system)
    lane = "" if state is to_route else GREET
    damaged = keys.PREFIX + "fair:" + lane if fair else KEY_OF[state]
    system.client.delete(damaged)
    system.client.set(damaged, "damaged")
    assert system.housekeeping.tick() == (0, 0, [])
    walk(system)
    (kept,) = system.client.keys(keys.PREFIX + "damaged:*")
    assert system.client.get(kept) == b"damaged"
    assert damaged in quarantined(system)
    expected = {keys.READY + GREET: before[KEY_OF[held]]} if state is held and not fair else before
    assert items_in(system) == expected
    assert system.housekeeping.tick() == (0, 0, [])
    assert len(system.client.keys(keys.PREFIX + "damaged:*")) == 1


def test_a_claim_leases_nothing_if_one_of_its_lanes_is_damaged(system: System) -> None:
    """The leases that it had given would lapse, and count as losses of their runs."""
    ready_runs(system, 1)
    system.client.set(keys.READY + "shop.other", "damaged")
    with pytest.raises(ResponseError, match="is damaged"):
        system.inbox.claim({GREET: 1, "shop.other": 1}, capacity=2)
    assert system.client.zcard(keys.LEASED) == 0


@pytest.mark.parametrize("damaged", [keys.READY + GREET, keys.PREFIX + "fair:" + GREET])
@pytest.mark.parametrize("outcome", ["release", "busy"])
def test_a_run_that_is_given_back_into_a_damaged_lane_stays_leased(
    system: System, damaged: str, outcome: OutcomeKind
) -> None:
    """It was quarantined, and its event open for ever."""
    run, other = leased_runs(system, 2)
    system.client.delete(damaged)
    system.client.set(damaged, "damaged")
    with pytest.raises(ResponseError, match="is damaged"):
        system.inbox.finish([Outcome(other, "done"), Outcome(run, outcome, {"error": "E"}, 1)])
    assert (system.client.zcard(keys.LEASED), quarantined(system)) == (2, set())
    system.housekeeping.tick()
    assert system.inbox.finish([Outcome(other, "done"), Outcome(run, outcome, {"error": "E"}, 1)]) == [True, True]
    assert system.client.zcard(keys.READY + GREET) == 1


def test_orphans_are_ended_past_a_damaged_lane(system: System) -> None:
    (event_id,) = ready_runs(system, 1)
    system.client.hset(keys.LANES, "shop.a", "default")
    system.client.set(keys.READY + "shop.a", "damaged")
    system.inbox.declare([])
    assert [run.event_id for run in system.housekeeping.end_orphans(absent=0)] == [event_id]


def test_runs_of_a_store_whose_pause_was_removed_by_hand_are_resumed(system: System) -> None:
    """They were held for ever, and no finding said so."""
    held(system)
    system.client.delete(keys.PAUSED)
    walk(system)
    system.housekeeping.tick()
    assert len(system.inbox.claim({GREET: 1}, capacity=1).runs) == 1


SHARED = [
    "quarantined",
    "failed",
    "groups",
    "done",
    "ix",
    "n",
    "lanes",
    "limits",
    "paces",
    "busy",
    "suspects",
    "resuming",
]


@pytest.mark.parametrize("name", SHARED)
def test_work_goes_on_after_the_next_tick_if_a_shared_key_is_damaged(system: System, name: str) -> None:
    """A run was repeated up to six times, failed without an attempt, or left its event open for ever."""
    done, failed = leased_runs(system, 2)
    ready_runs(system, 1)
    system.client.delete(keys.PREFIX + name)
    system.client.set(keys.PREFIX + name, "damaged")
    system.housekeeping.tick()
    assert system.inbox.finish([Outcome(done, "done"), Outcome(failed, "failed", {"error": "E"})]) == [True, True]
    (run,) = system.inbox.claim({GREET: 1}, capacity=1, limits={GREET: Limit("erp", 1, 100.0)}).runs
    assert system.inbox.finish([Outcome(run, "done")]) == [True]
    states = [system.status(one.stored.id) for one in (done, failed, run)]
    assert states == ["settled", "failed", "settled"]
    assert quarantined(system) == {keys.PREFIX + name}


@pytest.mark.parametrize("damage", ["type", "value"])
def test_a_damaged_counter_costs_no_work(system: System, damage: str) -> None:
    """Outcomes failed with it again and again, until the leases lapsed and the runs were repeated."""
    (run,) = leased_runs(system, 1)
    if damage == "type":
        system.client.delete(keys.COUNTERS)
        system.client.set(keys.COUNTERS, "damaged")
    else:
        system.client.hset(keys.COUNTERS, mapping={"stale": "x", "open|north": "x", "settled|north": "x"})
    lost = replace(run, token="another")
    assert system.inbox.finish([Outcome(lost, "done"), Outcome(run, "done")]) == [False, True]
    assert system.status(run.stored.id) == "settled"


@pytest.mark.parametrize("name", ["fair:" + GREET, "paces"])
def test_a_time_that_is_no_number_counts_as_0(system: System, name: str) -> None:
    """Runs were quarantined, or never began."""
    ready_runs(system, 1)
    system.client.hset(keys.PREFIX + name, mapping={"": "x", "north": "x", "erp": "x"})
    other = system.accept()
    (event,) = system.inbox.claim({"": 1}, capacity=1).runs
    assert [one.handler for one in route(system.inbox, event, (GREET, "default", False))] == []
    assert len(system.inbox.claim({GREET: 9}, capacity=9, limits={GREET: Limit("erp", rate=100.0)}).runs) == 2
    assert (system.status(other), quarantined(system)) == ("open", set())


@pytest.mark.parametrize("name", ["gh:" + GREET, "g:", "gr:"])
def test_a_damaged_list_of_failures_stops_no_run(system: System, name: str) -> None:
    """The run was quarantined, and its event open for ever."""
    first, second = leased_runs(system, 2)
    detail = {"error": "E", "group": "abc"}
    system.inbox.finish([Outcome(first, "retry", detail, 1)])
    key = keys.PREFIX + (name if name.endswith(GREET) else name + "abc")
    system.client.delete(key)
    system.client.set(key, "damaged")
    assert system.inbox.finish([Outcome(second, "failed", detail)]) == [True]
    system.client.zadd(keys.LATER, {f"{first.stored.id}|{GREET}": 1})
    system.housekeeping.tick()
    (again,) = system.inbox.claim({GREET: 1}, capacity=1).runs
    assert system.inbox.finish([Outcome(again, "done")]) == [True]
    assert [system.status(one.stored.id) for one in (first, second)] == ["settled", "failed"]
    assert quarantined(system) == set()
    system.administration.drop([f"{second.stored.id}|{GREET}"], reason="given up")
    assert system.status(second.stored.id) == "settled"


def test_counters_that_were_lost_are_never_negative_and_are_right_once_the_events_from_before_have_ended(
    system: System,
) -> None:
    """`open` was negative for good."""
    done, failed, replayed = leased_runs(system, 3)
    system.inbox.finish([Outcome(replayed, "failed", {"error": "E"})])
    system.client.delete(keys.COUNTERS)
    system.accept()
    system.inbox.finish([Outcome(done, "done"), Outcome(failed, "failed", {"error": "E"})])
    for run in (failed, replayed):
        system.administration.reopen([run.item], queues={GREET: "default"})
    assert min(system.ledger.counters().total.values()) == 0
    assert system.identity_holds()
    (event,) = system.inbox.claim({"": 9}, capacity=9).runs
    route(system.inbox, event, (GREET, "default", False))
    runs = system.inbox.claim({GREET: 9}, capacity=9).runs
    system.inbox.finish([Outcome(run, "done") for run in runs])
    found = system.ledger.counters().total
    assert (found["accepted"], found["settled"], found["open"], found["failed"]) == (4, 4, 0, 0)
