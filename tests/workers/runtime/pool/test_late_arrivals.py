"""Which runs are skipped as stale, or wait for a missing number, in a child process. With a real server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from redis import Redis

from receiver.inbox import Run, keys
from receiver.inbox.model import StoredEvent
from receiver.inbox.outcomes import Ending, RunResult
from tests.support.harness import System
from workers.plugins.router import Handler
from workers.runtime.pool.late_arrivals import LateArrivals

NUMBERED = """
[schemes.numbered]
extends = "standard-webhooks"
[schemes.numbered.event]
sequence = ["json:number", "json:version"]
[stores.numbered]
scheme = "numbered"
signing_secrets = ["whsec_c2FuZGJveCBvbmx5LCBuZXZlciBpbiBwcm9kdWN0aW9u"]
[schemes.open]
extends = "shopify"
[schemes.open.event]
occurred = ["json:updated_at"]
sequence = ["header:X-Number"]
[stores.open]
scheme = "open"
signing_secrets = ["a secret"]
[stores.west]
scheme = "shopify"
signing_secrets = ["another secret"]
"""
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
SKIP = Handler("shop.push", print, ("*",), stale="skip")
WAIT = replace(SKIP, wait_for_gap="30s")


class ChildProcess:
    def __init__(self, system: System, redis: Redis) -> None:
        system.config_file.write_text(system.config_file.read_text() + NUMBERED)
        self.redis, self.count = redis, 0
        self.late = LateArrivals(system.config, redis)

    def run(
        self, *, at: datetime | None = None, number: Any = None, age: float = 0.0, store: str = "", body: bytes = b""
    ) -> Run:
        self.count += 1
        store = store or ("north" if number is None and not body else "numbered")
        received = str(int((datetime.now(UTC).timestamp() - age) * 1000)).encode()
        occurred = at.isoformat().encode() if at else b""
        values = (store.encode(), b"order.updated", b"d", b"7", received, occurred, b"webhook", b"")
        stored = StoredEvent(f"event{self.count}", values, b"{}\n" + (body or orjson.dumps({"version": number})))
        return Run(f"event{self.count}|shop.push", "shop.push", "token", 0, 0, stored)

    def judge(self, run: Run, handler: Handler = SKIP) -> RunResult | None:
        return self.late.judge(run, run.event, handler)

    def settle(self, run: Run, ending: Ending = Ending.DONE) -> dict[str, Any]:
        result = RunResult(ending, {})
        self.late.note_settled(run, run.event, result)
        return result.detail

    def came_into_line(self, run: Run, number: int, *, seconds_ago: float) -> None:
        line, since = f"{keys.GAP}shop.push|numbered|order|7", int((datetime.now(UTC).timestamp() - seconds_ago) * 1000)
        for member in self.redis.zrange(line, number, number, byscore=True):
            self.redis.zrem(line, member)
        self.redis.zadd(line, {f"{since} {run.event.id}": number})

    def has_settled(self, place: str) -> None:
        self.redis.set(f"{keys.NEWEST}shop.push|numbered|order|7", f"{place} before")


@pytest.fixture
def child(system: System, redis: Redis) -> ChildProcess:
    return ChildProcess(system, redis)


def test_an_older_event_is_dropped_and_names_the_newer(child: ChildProcess) -> None:
    child.settle(child.run(at=NOON))
    result = child.judge(child.run(at=NOON - timedelta(microseconds=1)))
    assert result is not None
    assert result.ending is Ending.DROPPED
    assert result.detail == {
        "result": "stale: event event1 is newer, and this handler has settled it",
        "reason": "stale",
    }


@pytest.mark.parametrize("at", [NOON, NOON + timedelta(microseconds=1), None])
def test_what_is_equal_newer_or_unknown_is_run(child: ChildProcess, at: datetime | None) -> None:
    child.settle(child.run(at=NOON))
    assert child.judge(child.run(at=at)) is None


def test_a_stored_mark_counts_as_one_of_the_batch_does(child: ChildProcess) -> None:
    child.has_settled("s17")
    assert child.judge(child.run(number=17)) is None
    stale = child.judge(child.run(number=16))
    assert stale is not None
    assert "event before is newer" in stale.detail["result"]
    child.settle(child.run(number=20))
    assert child.judge(child.run(number=19)) is not None
    child.late.begin_batch()
    assert child.judge(child.run(number=19)) is None


def test_the_sequence_counts_and_not_the_time(child: ChildProcess) -> None:
    child.settle(child.run(number=5, at=NOON))
    assert child.judge(child.run(number=6, at=NOON - timedelta(hours=1))) is None
    assert child.judge(child.run(number=4, at=NOON + timedelta(hours=1))) is not None


@pytest.mark.parametrize("number", [True, -1, 1.5, "1.5", "x", "", [4], "9" * 41, None])
def test_what_is_no_number_is_not_compared_by_it(child: ChildProcess, number: Any) -> None:
    child.settle(child.run(number=5))
    assert child.judge(child.run(number=number, store="numbered")) is None


@pytest.mark.parametrize("body", [b"no JSON", b"[1]", b"[" * 99_999, b'{"version": %b}' % (b"9" * 9999)])
def test_a_body_that_cannot_be_read_is_run(child: ChildProcess, body: bytes) -> None:
    child.settle(child.run(number=5))
    assert child.judge(child.run(body=body)) is None


def test_the_first_source_with_a_number_counts(child: ChildProcess) -> None:
    child.settle(child.run(number=5))
    run = child.run(number=9)
    stored = StoredEvent(run.stored.id, run.stored.values, b'{}\n{"number": "4", "version": 9}')
    assert child.judge(replace(run, stored=stored)) is not None


def test_long_numbers_and_numbers_as_text_are_exact(child: ChildProcess) -> None:
    child.settle(child.run(number=str(10**39 + 1)))
    assert child.judge(child.run(number=str(10**39))) is not None
    assert child.judge(child.run(number=str(10**39 + 1))) is None


@pytest.mark.parametrize("ending", [Ending.RAISED, Ending.FAILED, Ending.RETRY, Ending.WAIT, Ending.BUSY])
def test_only_what_is_done_or_dropped_is_settled(child: ChildProcess, ending: Ending) -> None:
    assert child.settle(child.run(number=5), ending) == {}
    assert child.judge(child.run(number=4)) is None
    assert child.settle(child.run(number=5), Ending.DROPPED) == {"settles": f"s5 {90 * 86_400_000}"}


def test_a_time_that_does_not_count_is_not_compared(child: ChildProcess) -> None:
    """Neither that of an event nor that of a mark, of an earlier version: a header said them, and it is not signed."""
    body, planted = b'{"updated_at": "2026-11-16T12:00:00Z"}', datetime(2099, 1, 1, tzinfo=UTC)
    mark = f"{keys.NEWEST}shop.push|west|order|7"
    child.redis.set(mark, f"t{int(planted.timestamp())}000000 before")
    replayed = child.run(at=planted, store="west", body=body)
    assert child.judge(replayed) is None
    us = int(NOON.timestamp()) * 10**6
    assert child.settle(replayed) == {"settles": f"u{us} {90 * 86_400_000}"}
    assert child.judge(child.run(at=NOON, store="west", body=body)) is None
    assert child.judge(child.run(store="west", body=b"{}")) is None
    for stored in ("", f"u{us} before"):
        child.redis.set(mark, stored)
        assert child.judge(child.run(at=planted, store="west", body=body.replace(b"12:", b"11:"))) is not None
        child.late.begin_batch()


def test_a_number_that_does_not_count_is_not_compared(child: ChildProcess) -> None:
    run = child.run(at=NOON, store="open")
    stored = StoredEvent(run.stored.id, run.stored.values, b'{"x-number": "9"}\n{}')
    assert child.settle(replace(run, stored=stored))["settles"].startswith("t")


@pytest.mark.parametrize("damaged", ["", "s", "x5 e", "s-5 e", "s5x e", "s" + "9" * 9999, "\udcff"])
def test_a_damaged_mark_is_none(child: ChildProcess, damaged: str) -> None:
    name = f"{keys.NEWEST}shop.push|numbered|order|7"
    child.redis.set(name, damaged.encode("utf-8", "surrogateescape"))
    assert child.judge(child.run(number=4)) is None


def test_without_an_answer_of_the_server_it_waits(child: ChildProcess) -> None:
    child.redis.lpush(f"{keys.NEWEST}shop.push|north|order|7", "another type")
    result = child.judge(child.run(at=NOON))
    assert result is not None
    assert (result.ending, result.after) == (Ending.WAIT, 1.0)


# wait_for_gap


def test_a_run_waits_for_the_number_before_its_own(child: ChildProcess) -> None:
    child.has_settled("s15")
    late = child.run(number=17)
    result = child.judge(late, WAIT)
    assert result is not None
    assert (result.ending, result.after, result.detail["reason"]) == (Ending.WAIT, 1.0, "gap")
    assert result.detail["error"] == "sequence 17 waits for 16, at most 30 s"
    assert child.judge(child.run(number=16), WAIT) is None
    child.has_settled("s16")
    assert child.judge(late, WAIT) is None


def test_it_waits_for_a_missing_number_no_longer_than_that(child: ChildProcess) -> None:
    """From when it was first looked at: all that waited while no worker ran would run at once, in any order."""
    child.has_settled("s15")
    late = child.run(number=17, age=99)
    child.came_into_line(late, 17, seconds_ago=29.5)
    result = child.judge(late, WAIT)
    assert result is not None
    assert result.after is not None
    assert 0 < result.after <= 0.5
    child.came_into_line(late, 17, seconds_ago=30)
    assert child.judge(late, WAIT) is None


@pytest.mark.parametrize(
    ("state", "waits"),
    [("ready", True), ("leased", True), ("later", True), ("held", True), ("failed", False), ("quarantined", False)],
)
def test_it_waits_for_smaller_numbers_that_are_there(child: ChildProcess, state: str, waits: bool) -> None:
    """Behind a gap, events that were there ran at the same moment, and the smaller numbers were dropped as stale."""
    child.has_settled("s2")
    first, second, third = (child.run(number=number) for number in (5, 6, 7))
    for run, number in ((third, 7), (second, 6), (first, 5)):
        child.came_into_line(run, number, seconds_ago=99)
        child.redis.hset(f"{keys.EVENT}{run.event.id}", "r:shop.push", "leased 0 0 default token")
    if state == "quarantined":  # its record says that it is leased, for ever
        child.redis.hset(keys.QUARANTINED, first.item, "damaged")
    else:
        child.redis.hset(f"{keys.EVENT}{first.event.id}", "r:shop.push", f"{state} 1 0 default 0")
    results = [child.judge(run, WAIT) for run in (third, second)]
    assert [result and result.after for result in results] == ([2.0, 1.0] if waits else [1.0, None])
    if waits:
        assert results[0] is not None
        assert results[0].detail["error"] == "sequence 7 waits for smaller ones that have not ended"
        assert child.judge(first, WAIT) is None
    child.has_settled("s5")
    assert child.judge(second, WAIT) is None


def test_a_damaged_line_begins_anew(child: ChildProcess) -> None:
    line = f"{keys.GAP}shop.push|numbered|order|7"
    child.redis.set(line, "another type")
    assert child.judge(child.run(number=1), WAIT) is None
    child.redis.zadd(line, {"damaged": 0})
    assert child.judge(child.run(number=1), WAIT) is None


def test_a_run_does_not_wait_for_itself_under_another_number(child: ChildProcess) -> None:
    """The scheme was changed meanwhile."""
    child.has_settled("s2")
    run = child.run(number=7)
    child.redis.hset(f"{keys.EVENT}{run.event.id}", "r:shop.push", "leased 0 0 default token")
    for number in (5, 7):
        child.came_into_line(run, number, seconds_ago=99)
    assert child.judge(run, WAIT) is None


def test_one_waits_for_zero_if_it_is_there(child: ChildProcess) -> None:
    zero = child.run(number=0)
    assert child.judge(zero, WAIT) is None
    child.redis.hset(f"{keys.EVENT}{zero.event.id}", "r:shop.push", "later 1 0 default 5000")
    assert child.judge(child.run(number=1), WAIT) is not None


def test_numbers_that_have_one_score_do_not_begin_anew_at_each_look(child: ChildProcess) -> None:
    child.has_settled(f"s{10**18}")
    late = child.run(number=10**18 + 2)
    child.came_into_line(late, 10**18 + 2, seconds_ago=31)
    assert child.judge(late, WAIT) is None


def test_a_line_is_kept_for_longer_than_a_run_waits(system: System, redis: Redis) -> None:
    system.config_file.write_text(system.config_file.read_text() + '[retention]\nrecords = "0s"\n')
    child = ChildProcess(system, redis)
    assert child.judge(child.run(number=7), WAIT) is not None
    assert redis.pttl(f"{keys.GAP}shop.push|numbered|order|7") > 30_000


def test_the_first_number_of_a_resource_waits_for_nothing_and_others_do(child: ChildProcess) -> None:
    assert child.judge(child.run(number=0), WAIT) is None
    assert child.judge(child.run(number=1), WAIT) is None
    assert child.judge(child.run(number=2), WAIT) is not None
    assert child.judge(child.run(at=NOON), WAIT) is None
