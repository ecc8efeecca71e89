"""Stranded items: open, and in no set, because a key was damaged or removed. They are put back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from receiver.inbox import Outcome, housekeeping, keys
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


def make_due(system: System) -> None:
    for key in (keys.LEASED, keys.LATER):
        for item in system.client.zrange(key, 0, -1):
            system.client.zadd(key, {item: 1})


@pytest.mark.parametrize("damaged", [keys.READY + GREET, keys.PREFIX + "fair:" + GREET])
@pytest.mark.parametrize("state", [leased, later])
def test_a_tick_leaves_runs_of_a_damaged_lane_where_they_are(
    system: System, damaged: str, state: Callable[[System], None]
) -> None:
    """They were removed from their set and could not be added to the other one: they were open for ever."""
    state(system)
    before = items_in(system)
    good = system.client.dump(damaged)
    system.client.set(damaged, "damaged")
    make_due(system)
    assert system.housekeeping.tick() == (0, 0, [])
    system.client.delete(damaged)
    if good:
        system.client.restore(damaged, 0, good)
    assert (items_in(system), quarantined(system)) == (before, set())
    make_due(system)
    system.housekeeping.tick()
    assert len(system.inbox.claim({GREET: 1}, capacity=1).runs) == 1


def test_runs_of_a_damaged_lane_stop_no_others(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "TICK_SLICE", 2)
    leased_runs(system, 2)
    make_due(system)
    other = system.accept()
    system.inbox.claim({"": 1}, capacity=1)
    system.client.set(keys.READY + GREET, "damaged")
    system.client.zadd(keys.LEASED, {other: 2})  # behind the others
    ticks = [system.housekeeping.tick()[1] for _ in range(2)]
    assert ticks == [0, 1]
    assert system.client.zrange(keys.READY, 0, -1) == [other.encode()]


def test_orphans_are_ended_past_a_damaged_lane(system: System) -> None:
    (event_id,) = ready_runs(system, 1)
    system.client.hset(keys.LANES, "shop.a", "default")
    system.client.set(keys.READY + "shop.a", "damaged")
    system.inbox.declare([])
    assert [run.event_id for run in system.housekeeping.end_orphans(absent=0)] == [event_id]
