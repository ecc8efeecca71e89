"""How many runs a worker claims at once: batches of fast handlers, one run for each child process otherwise."""

from __future__ import annotations

from workers.runtime.worker.claim_sizes import (
    ABSENT_SECONDS,
    BATCH_SECONDS,
    EVENTS_TO_ROUTE,
    LARGEST_BATCH,
    LONG,
    MEASURED_AFTER,
    ClaimSizes,
)


def measured(seconds: float, runs: int = 50) -> ClaimSizes:
    sizes = ClaimSizes(child_processes=4)
    for _ in range(runs):
        sizes.note_duration("shop.one", seconds)
    return sizes


def test_a_handler_that_was_not_measured_yet_gets_no_batches() -> None:
    assert ClaimSizes(child_processes=4).batch("shop.one") == 1
    assert measured(0.0001, runs=MEASURED_AFTER - 1).batch("shop.one") == 1


def test_a_fast_handler_gets_batches_and_a_slow_one_does_not() -> None:
    assert measured(0.0001).batch("shop.one") == LARGEST_BATCH
    assert measured(0.005).batch("shop.one") == 10
    assert measured(BATCH_SECONDS / 2).batch("shop.one") == 2
    assert measured(BATCH_SECONDS).batch("shop.one") == 1


def test_a_killed_child_process_makes_the_batches_small_until_a_few_fast_runs_have_followed() -> None:
    sizes = measured(0.004)
    sizes.note_duration("shop.one", float("inf"))
    assert sizes.batch("shop.one") == 2
    for _ in range(10):
        sizes.note_duration("shop.one", 0.004)
    assert sizes.batch("shop.one") >= 4
    sizes.note_duration("shop.one", float("inf"))
    sizes.note_duration("shop.one", float("inf"))
    assert sizes.batch("shop.one") == 1, "it is not clear that the handler is not the cause"


def test_one_handler_holds_at_most_half_of_the_child_processes() -> None:
    sizes = ClaimSizes(child_processes=4)
    assert sizes.quotas(["shop.one"], idle=4, busy={}) == {"shop.one": 2}
    assert sizes.quotas(["shop.one"], idle=3, busy={"shop.one": 1}) == {"shop.one": 1}
    assert sizes.quotas(["shop.one", "shop.two"], idle=2, busy={"shop.one": 2}) == {"shop.two": 2}
    assert ClaimSizes(child_processes=1).quotas(["shop.one"], idle=1, busy={}) == {"shop.one": 1}
    assert ClaimSizes(child_processes=3).quotas(["shop.one"], idle=3, busy={}) == {"shop.one": 2}, "rounded up"


def test_a_slot_is_given_as_many_runs_as_are_done_in_a_moment() -> None:
    assert ClaimSizes(child_processes=4).slot_batch("shop.one") == 1
    assert measured(0.07).slot_batch("shop.one") == 4
    assert measured(0.07, runs=2).slot_batch("shop.one") == 1
    assert measured(LONG * 1.1).slot_batch("shop.one") == 1
    assert measured(0.0001).slot_batch("shop.one") == LARGEST_BATCH


def test_each_claim_begins_with_another_lane() -> None:
    sizes = measured(0.07)
    claims = [sizes.next_claim({"shop.one": 2, "shop.two": 3}, slotted=["shop.one"]) for _ in range(3)]
    lanes = [lanes for lanes, _ in claims]
    assert {next(iter(one)) for one in lanes} == {"", "shop.one", "shop.two"}
    assert lanes[0] == lanes[1] == {"": EVENTS_TO_ROUTE, "shop.one": 4, "shop.two": 3}


def test_every_other_claim_begins_with_the_lanes_that_have_suspects() -> None:
    sizes = measured(0.07)
    turns = [suspects_first for _, suspects_first in (sizes.next_claim({"shop.one": 2}, slotted=()) for _ in range(4))]
    assert turns == [False, True, False, True]


def test_no_run_of_an_absent_handler_is_claimed_for_a_while() -> None:
    sizes = ClaimSizes(child_processes=4)
    assert sizes.note_absent("shop.one", 100.0)
    assert not sizes.note_absent("shop.one", 101.0), "it was noted a second ago"
    absent_until = 101.0 + ABSENT_SECONDS
    assert sizes.quotas(["shop.one", "shop.two"], idle=4, busy={}, now=absent_until - 0.1) == {"shop.two": 2}
    assert sizes.quotas(["shop.one", "shop.two"], idle=4, busy={}, now=absent_until) == {"shop.one": 2, "shop.two": 2}
    assert sizes.note_absent("shop.one", absent_until)
