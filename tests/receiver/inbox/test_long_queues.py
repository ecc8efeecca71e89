"""Order keys with very many queued runs, and an order together with a paused store and a limit."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from receiver.inbox import Limit, Outcome, keys
from receiver.inbox.administration import RETIRE_SLICE
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.redis import script_runner
from tests.receiver.inbox.test_order import (
    PUSH,
    STOPPING,
    accept,
    accept_and_route,
    claim,
    delivery,
    finish,
    ids,
    ordered,
    route,
    states,
    to_route,
)
from tests.support.harness import System

__all__ = ["ordered"]
QUEUE = f"{keys.QUEUED}{PUSH}:north:order:7"
MANY = 50_000


@pytest.fixture
def long(ordered: System, redis: Redis) -> System:
    """A key with an active run, one behind it, and very many after that. They have no records, so none may be read."""
    accept_and_route(ordered, "a", "b", how=STOPPING)
    redis.zadd(QUEUE, {f"x{n}|{PUSH}": 9e15 + n for n in range(MANY)})
    return ordered


def commands(client: Redis) -> int:
    """How many commands the server has performed since `config_resetstat`, those of scripts too."""
    stats: dict[str, Any] = client.info("commandstats")
    return sum(one["calls"] for one in stats.values())


@pytest.mark.parametrize("how", ["done", "drop", "trim"])
def test_the_next_of_very_many_queued_runs_begins_without_reading_the_others(
    long: System, redis: Redis, how: str
) -> None:
    (run,) = claim(long)
    if how != "done":
        finish(long, run, OutcomeKind.FAILED)
    redis.config_resetstat()
    if how == "done":
        finish(long, run, OutcomeKind.DONE)
    elif how == "drop":
        long.administration.drop([run.item], reason="because")
    else:
        long.client.zadd(keys.FAILED, {run.item: 1})
        long.client.set(keys.FAILURES_END, 1)
        long.housekeeping.trim(bodies=1e9, records=1e9, failures=60)
    assert commands(redis) < 100
    assert redis.info("commandstats")["cmdstat_fcall"]["usec_per_call"] < 20_000
    assert states(long, "b") == ["ready"]
    assert redis.zcard(QUEUE) == MANY


def test_a_replay_and_a_look_at_a_run_behind_very_many_others_read_none_of_them(long: System, redis: Redis) -> None:
    finish(long, claim(long)[0], OutcomeKind.FAILED)
    redis.config_resetstat()
    assert long.administration.reopen([f"a|{PUSH}"], {}) == ["ready"]
    assert long.ledger.event("b").runs[0].order.place == 1
    assert commands(redis) < 100
    assert ids(claim(long)) == ["a"]


def test_a_long_queue_is_retired_in_slices(ordered: System, redis: Redis) -> None:
    many = 2 * RETIRE_SLICE + 100
    ordered.inbox.accept([delivery(f"e{number}") for number in range(many)])
    route(ordered, *to_route(ordered, many).values())
    assert redis.zcard(QUEUE) == many - 1
    _, ended = script_runner.run_one(redis, "retire", PUSH, "queued", "0", RETIRE_SLICE, "{}")
    assert (ended, redis.zcard(QUEUE)) == (RETIRE_SLICE, many - 1 - RETIRE_SLICE)
    assert ordered.identity_holds()
    assert ordered.administration.retire(PUSH) == many - RETIRE_SLICE
    counts = ordered.ledger.counters().total
    assert (counts["open"], counts["failed"]) == (0, many)
    assert redis.keys(keys.QUEUED + "*") == redis.keys(keys.ORDER + "*") == []


def test_a_paused_store_a_limit_and_an_order_together_starve_none(ordered: System) -> None:
    """The one slot is free for the other store while the first is paused, and the order is kept when it is resumed."""
    for turn in "abc":
        for store, resource in (("north", "7"), ("north", "8"), ("south", "9")):
            accept(ordered, f"{turn}{resource}", resource, store=store)
    route(ordered, *to_route(ordered).values())
    limits, begun = {PUSH: Limit("erp", concurrency=1)}, list[str]()

    def run_all(most: int) -> None:
        for _ in range(most):
            runs = ordered.inbox.claim({PUSH: 9}, capacity=9, limits=limits).runs
            assert ordered.inbox.claim({PUSH: 9}, capacity=9, limits=limits).runs == () or not runs, "one slot"
            begun.extend(ids(runs))
            ordered.inbox.finish([Outcome(run, OutcomeKind.DONE) for run in runs])

    run_all(1)
    ordered.administration.pause(store="north")
    run_all(6)
    assert [one for one in begun if one.endswith("9")] == ["a9", "b9", "c9"], "the other store goes on"
    waiting = 9 - len(begun)
    assert waiting > 0
    assert states(ordered, "c7", "c8") == ["queued", "queued"]
    ordered.administration.resume(store="north")
    run_all(2 * waiting)
    for resource in "78":
        assert [one for one in begun if one.endswith(resource)] == [f"{turn}{resource}" for turn in "abc"]
    assert ordered.identity_holds()
    assert ordered.ledger.counters().total["settled"] == 9
