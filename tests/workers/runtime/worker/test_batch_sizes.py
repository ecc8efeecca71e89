"""How many runs a worker takes at once: batches for the fast, a child process alone for the rest."""

from __future__ import annotations

from workers.runtime.worker.batch_sizes import FAST, KNOWN_AFTER, LARGEST_BATCH, LONG, BatchSizes


def trained(seconds: float, runs: int = 50) -> BatchSizes:
    pace = BatchSizes(child_processes=4)
    for _ in range(runs):
        pace.measured("shop.one", seconds)
    return pace


def test_a_handler_nobody_has_measured_gets_a_horse_alone() -> None:
    assert BatchSizes(child_processes=4).batch("shop.one") == 1
    assert trained(0.0001, runs=KNOWN_AFTER - 1).batch("shop.one") == 1


def test_a_fast_handler_is_given_in_batches_and_a_slow_one_is_not() -> None:
    assert trained(0.0001).batch("shop.one") == LARGEST_BATCH
    assert trained(0.005).batch("shop.one") == 10
    assert trained(FAST * 2).batch("shop.one") == 1


def test_a_hanging_run_ends_the_batches_until_many_fast_ones_have_followed() -> None:
    pace = trained(0.0001)
    pace.measured("shop.one", float("inf"))
    assert pace.batch("shop.one") == 1
    for _ in range(150):
        pace.measured("shop.one", 0.0001)
    assert pace.batch("shop.one") > 1


def test_one_handler_holds_at_most_half_of_the_horses() -> None:
    pace = BatchSizes(child_processes=4)
    assert pace.quotas(["shop.one"], idle=4, holding={}) == {"shop.one": 2}
    assert pace.quotas(["shop.one"], idle=3, holding={"shop.one": 1}) == {"shop.one": 1}
    assert pace.quotas(["shop.one", "shop.two"], idle=2, holding={"shop.one": 2}) == {"shop.two": 2}
    assert BatchSizes(child_processes=1).quotas(["shop.one"], idle=1, holding={}) == {"shop.one": 1}


def test_a_slot_is_given_as_much_as_is_done_in_a_moment() -> None:
    assert BatchSizes(child_processes=4).behind_each_other("shop.one") == 1
    assert trained(0.07).behind_each_other("shop.one") == 4
    assert trained(0.07, runs=2).behind_each_other("shop.one") == 1
    assert trained(LONG * 1.1).behind_each_other("shop.one") == 1
    assert trained(0.0001).behind_each_other("shop.one") == LARGEST_BATCH
