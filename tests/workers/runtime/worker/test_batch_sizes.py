"""How many runs a worker claims at once: batches of fast handlers, one run for each child process otherwise."""

from __future__ import annotations

from workers.runtime.worker.batch_sizes import (
    EVENTS_TO_ROUTE,
    FAST,
    LARGEST_BATCH,
    LONG,
    MEASURED_AFTER,
    BatchSizes,
)


def measured(seconds: float, runs: int = 50) -> BatchSizes:
    sizes = BatchSizes(child_processes=4)
    for _ in range(runs):
        sizes.measured("shop.one", seconds)
    return sizes


def test_a_handler_that_was_not_measured_yet_gets_no_batches() -> None:
    assert BatchSizes(child_processes=4).batch("shop.one") == 1
    assert measured(0.0001, runs=MEASURED_AFTER - 1).batch("shop.one") == 1


def test_a_fast_handler_gets_batches_and_a_slow_one_does_not() -> None:
    assert measured(0.0001).batch("shop.one") == LARGEST_BATCH
    assert measured(0.005).batch("shop.one") == 10
    assert measured(FAST * 2).batch("shop.one") == 1


def test_one_hanging_run_ends_the_batches_until_many_fast_runs_have_followed() -> None:
    sizes = measured(0.0001)
    sizes.measured("shop.one", float("inf"))
    assert sizes.batch("shop.one") == 1
    for _ in range(150):
        sizes.measured("shop.one", 0.0001)
    assert sizes.batch("shop.one") > 1


def test_one_handler_holds_at_most_half_of_the_child_processes() -> None:
    sizes = BatchSizes(child_processes=4)
    assert sizes.quotas(["shop.one"], idle=4, busy={}) == {"shop.one": 2}
    assert sizes.quotas(["shop.one"], idle=3, busy={"shop.one": 1}) == {"shop.one": 1}
    assert sizes.quotas(["shop.one", "shop.two"], idle=2, busy={"shop.one": 2}) == {"shop.two": 2}
    assert BatchSizes(child_processes=1).quotas(["shop.one"], idle=1, busy={}) == {"shop.one": 1}


def test_a_slot_is_given_as_many_runs_as_are_done_in_a_moment() -> None:
    assert BatchSizes(child_processes=4).slot_batch("shop.one") == 1
    assert measured(0.07).slot_batch("shop.one") == 4
    assert measured(0.07, runs=2).slot_batch("shop.one") == 1
    assert measured(LONG * 1.1).slot_batch("shop.one") == 1
    assert measured(0.0001).slot_batch("shop.one") == LARGEST_BATCH


def test_each_claim_begins_with_another_lane() -> None:
    sizes = measured(0.07)
    lanes = [sizes.lanes({"shop.one": 2, "shop.two": 3}, slotted=["shop.one"]) for _ in range(3)]
    assert {next(iter(one)) for one in lanes} == {"", "shop.one", "shop.two"}
    assert lanes[0] == lanes[1] == {"": EVENTS_TO_ROUTE, "shop.one": 4, "shop.two": 3}
