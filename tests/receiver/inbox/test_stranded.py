"""Stranded items: open, and in no set, because a key was damaged or removed. They are put back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import ResponseError

from receiver.inbox import Outcome, housekeeping, keys
from receiver.inbox.outcomes import OutcomeKind
from tests.faults.test_damaged_records import GREET, PLUGIN, leased_runs, quarantined, ready_runs
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
