"""The newest event of a resource that a handler has settled, as `finish` keeps it."""

from __future__ import annotations

import pytest
from redis import Redis

from receiver.inbox import Outcome, Run, keys
from receiver.inbox.outcomes import OutcomeKind
from tests.support.harness import System

PUSH = "shop.push"
MARK = f"{keys.NEWEST}{PUSH}|north|order|1001"
KEEP = 60_000


def leased_run(system: System) -> Run:
    system.accept("order.updated")
    (event,) = system.inbox.claim({"": 1}, capacity=1).runs
    system.inbox.route([(event, [(PUSH, "default", False)])], system.inbox.declarations().version)
    (run,) = system.inbox.claim({PUSH: 1}, capacity=1).runs
    return run


def settle(system: System, place: str, kind: OutcomeKind = OutcomeKind.DONE) -> str:
    """End a run with a place, and return its event."""
    run = leased_run(system)
    assert system.inbox.finish([Outcome(run, kind, settles=f"{place} {KEEP}")]) == [True]
    return run.stored.id


@pytest.mark.parametrize(
    ("first", "second", "newest"),
    [
        ("s9", "s10", 2),
        ("s10", "s9", 1),
        ("s5", "s5", 2),
        (f"s{10**39}", f"s{10**39 + 1}", 2),
        (f"s{10**39 + 1}", f"s{10**39}", 1),
        ("t1700000000000000", "s1", 2),  # the scheme has a sequence since then
        ("t4070908800000000", "u1700000000000000", 2),  # of a source that does not count any more
        ("u1700000000000001", "u1700000000000000", 1),
    ],
)
def test_the_newest_is_kept(system: System, redis: Redis, first: str, second: str, newest: int) -> None:
    events = settle(system, first), settle(system, second, OutcomeKind.DROPPED)
    assert redis.get(MARK) == f"{(first, second)[newest - 1]} {events[newest - 1]}".encode()
    assert 0 < redis.pttl(MARK) <= KEEP


def test_a_damaged_mark_is_written_again(system: System, redis: Redis) -> None:
    redis.rpush(MARK, "another type")
    event = settle(system, "s3")
    assert redis.get(MARK) == f"s3 {event}".encode()


def test_nothing_is_kept_of_a_run_that_was_lost_or_has_no_place(system: System, redis: Redis) -> None:
    run = leased_run(system)
    stale = Run(run.item, run.handler, "another token", 0, 0, run.stored)
    assert system.inbox.finish([Outcome(stale, OutcomeKind.DONE, settles=f"s3 {KEEP}")]) == [False]
    assert system.inbox.finish([Outcome(run, OutcomeKind.DONE)]) == [True]
    assert redis.exists(MARK) == 0
