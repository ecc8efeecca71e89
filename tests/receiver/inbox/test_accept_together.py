"""A batch is accepted as a whole: one script, one decision about the quota, all events or none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from redis.exceptions import RedisError

from receiver.contract.intake import Delivery
from receiver.inbox import AcceptResult, keys
from receiver.inbox.accept_batch import GROUP_SIZE, AcceptBatch
from tests.support.harness import Server, System


def batch_of(system: System, *numbers: int, **changes: object) -> Delivery:
    """Events of equal numbers are equal, also if they are made in another second."""
    found = [replace(numbered(system, number), **changes) for number in numbers]  # type: ignore[arg-type]
    return replace(found[0], rest=tuple(found[1:]))


def numbered(system: System, number: int) -> Delivery:
    one = system.delivery(delivery_id=f"msg_{number}")
    return replace(one, event=replace(one.event, body=b"{}", occurred_at=None))


def events_of(batch: Delivery) -> list[str]:
    return [one.event.id for one in (batch, *batch.rest)]


def accept(system: System, *deliveries: Delivery, quota: int = 0) -> list[AcceptResult]:
    return system.inbox.accept(deliveries, quotas={"north": quota})


def stored(system: System) -> int:
    return len(system.client.keys(keys.EVENT + "*"))


def test_the_result_has_every_event_in_order(system: System) -> None:
    batch = batch_of(system, *range(5))
    (result,) = accept(system, batch)
    assert result.status == "accepted"
    assert [one.id for one in result.items] == events_of(batch)
    assert [one.status for one in result.items] == ["accepted"] * 5
    assert [one.id for one in system.ledger.events()] == events_of(batch)[::-1]
    assert system.ledger.counters().total["accepted"] == 5
    assert system.identity_holds()


def test_a_redelivered_batch_adds_none_and_counts_each_event_as_a_duplicate(system: System) -> None:
    accept(system, batch_of(system, *range(5)))
    (again,) = accept(system, batch_of(system, *range(5)))
    assert (again.status, {one.status for one in again.items}) == ("duplicate", {"duplicate"})
    counters = system.ledger.counters().total
    assert (counters["accepted"], counters["duplicates"]) == (5, 5)


def test_a_batch_that_overlaps_another_adds_the_others(system: System) -> None:
    accept(system, batch_of(system, 1, 2, 3))
    (result,) = accept(system, batch_of(system, 2, 3, 4))
    assert (result.status, [one.status for one in result.items]) == ("accepted", ["duplicate", "duplicate", "accepted"])
    assert stored(system) == 4


def test_an_event_that_is_in_a_batch_twice_is_accepted_once(system: System) -> None:
    (result,) = accept(system, batch_of(system, 1, 1, 2))
    assert [one.status for one in result.items] == ["accepted", "duplicate", "accepted"]
    assert system.identity_holds()


def test_a_full_store_takes_none_of_a_batch(system: System) -> None:
    accept(system, *[system.delivery() for _ in range(3)])
    (result,) = accept(system, batch_of(system, *range(5)), quota=3)
    assert (result.status, {one.status for one in result.items}) == ("full", {"full"})
    assert stored(system) == 3
    assert system.ledger.counters().total["accepted"] == 3


def test_a_store_that_is_not_full_takes_all_of_a_batch(system: System) -> None:
    """Else one larger than `max_stored` could never be accepted, and one after another single delivery would win."""
    (result,) = accept(system, batch_of(system, *range(5)), quota=3)
    assert result.status == "accepted"
    assert stored(system) == 5


def test_a_full_store_still_answers_a_redelivered_batch_as_a_duplicate(system: System) -> None:
    accept(system, batch_of(system, *range(5)))
    (again,) = accept(system, batch_of(system, *range(5)), quota=3)
    assert again.status == "duplicate"
    (more,) = accept(system, batch_of(system, 4, 5), quota=3)
    assert more.status == "full"
    assert system.ledger.counters().total["duplicates"] == 5, "a batch that is not taken is not counted"


def test_an_event_that_the_server_refuses_costs_the_whole_batch_and_no_other_delivery(system: System) -> None:
    bad = replace(system.delivery(), content_hash="m")
    system.damage_mark_of(bad)
    batch = replace(system.delivery(), rest=(system.delivery(), bad))
    before, broken, after = system.inbox.accept_each([system.delivery(), batch, system.delivery()])
    assert isinstance(broken, RedisError)
    assert isinstance(before, AcceptResult)
    assert isinstance(after, AcceptResult)
    assert {one.id for one in system.ledger.events()} == {before.id, after.id}
    assert system.ledger.counters().total["accepted"] == 2


def test_damaged_sets_cost_the_whole_batch(system: System) -> None:
    for key in (keys.INDEX, f"{keys.INDEX}:north", keys.FAILED, "rq:queue:storehooks"):
        system.client.flushdb()
        system.client.set(key, "not a set")
        (result,) = system.inbox.accept_each([batch_of(system, 1, 2, 3, unreadable="why")])
        assert isinstance(result, RedisError), key
        assert stored(system) == 0, key


def test_damaged_counters_cost_no_part_of_a_batch(system: System) -> None:
    """One event was accepted before and is sent again by its receiver, which counts nothing."""
    known = system.delivery()
    accept(system, known)
    for damage in ("the key", "a number"):
        system.client.delete(keys.COUNTERS)
        if damage == "the key":
            system.client.set(keys.COUNTERS, "not a hash")
        else:
            system.client.hset(keys.COUNTERS, "duplicates|north", "not a number")
        (result,) = accept(system, replace(system.delivery(), rest=(known, system.delivery())))
        assert [one.status for one in result.items] == ["accepted", "duplicate", "accepted"], damage
    assert stored(system) == 5


def test_a_batch_has_a_call_of_its_own(system: System) -> None:
    """A server that refuses it must accept the deliveries beside it."""
    single = [system.delivery() for _ in range(3)]
    large = batch_of(system, *range(GROUP_SIZE + 10))
    batch = AcceptBatch([single[0], large, *single[1:]], 60.0, {})
    assert len(batch.calls) == 3
    results = system.inbox.accept([single[0], large, *single[1:]])
    assert [len(one.items) for one in results] == [0, GROUP_SIZE + 10, 0, 0]


def test_memory_that_runs_out_within_a_batch_costs_no_part_of_it(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """The server decides about memory when a script begins, and not again within it."""
    system = make_system(url=own_redis.url)
    one = system.delivery()
    large = [replace(one, event=replace(one.event, id=f"{number:026}", body=b"x" * 2000)) for number in range(1000)]
    accepted, ran_out = 0, False
    for step in range(1, 11):
        batch = [replace(one, event=replace(one.event, id=f"{step}-{one.event.id}")) for one in large]
        limit = int(own_redis.client.info("memory")["used_memory"]) + step * 500_000
        own_redis.client.config_set("maxmemory", limit)
        (result,) = system.inbox.accept_each([replace(batch[0], rest=tuple(batch[1:]))])
        own_redis.client.config_set("maxmemory", 0)
        accepted += isinstance(result, AcceptResult)
        assert stored(system) == 1000 * accepted
        ran_out |= isinstance(result, AcceptResult) and int(own_redis.client.info("memory")["used_memory"]) > limit
    assert 0 < accepted < 10
    assert ran_out, "within a batch"
