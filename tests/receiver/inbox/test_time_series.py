"""The counters over time: rings that any number of housekeepers may fill."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import count

import pytest
from redis import Redis

from receiver.inbox import Outcome, keys
from receiver.inbox.queries.time_series import (
    COUNTERS,
    DAY,
    HOUR,
    NAMES,
    OF_STORE,
    RINGS,
    WEEK,
    Ring,
    SeriesQueries,
    changes,
    pack_sample,
    read_ring,
)
from receiver.inbox.redis import script_runner
from receiver.inbox.sampling import Sampler
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import System, eventually

NOW = int(time.time())


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def accept_settle_and_retry(system: System) -> None:
    system.accept()
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, "done")])
    system.accept(store="south")
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, "retry", {"error": "E"}, delay=60)])
    system.inbox.publish_spool("other:/data", 3, 1.0)


def test_samples_have_the_counters_and_their_times(system: System) -> None:
    sampler, queries = Sampler(system.client), SeriesQueries(system.client)
    sampler.write(NOW - 20)
    accept_settle_and_retry(system)
    sampler.write(NOW - 10)
    for ring in RINGS:
        samples = queries.samples(ring)
        assert samples[-1].at == at(NOW - 10)
        assert samples[-1].values == {
            **dict.fromkeys(NAMES, 0), "accepted": 2, "settled": 1, "open": 1, "retried": 1, "spooled": 3
        }  # fmt: skip
    (change,) = changes(queries.samples(HOUR))
    assert (change.since, change.until) == (at(NOW - 20), at(NOW - 10))
    assert change.counts == {**dict.fromkeys(COUNTERS, 0), "accepted": 2, "settled": 1, "retried": 1}
    assert change.levels == {"open": 1, "spooled": 3}
    of_stores = queries.of_stores(["north", "south", "unknown"])
    assert [of_stores[name][-1].values["retried"] for name in ("north", "south")] == [0, 1]
    assert of_stores["unknown"] == []


def test_two_housekeepers_and_one_that_hung_change_nothing(system: System) -> None:
    accept_settle_and_retry(system)
    for sampler in (Sampler(system.client), Sampler(system.client)):
        sampler.write(NOW - 7)
    written = {name: system.client.get(name) for name in system.client.scan_iter(f"{keys.PREFIX}series*")}
    stale = pack_sample(NOW - 7 - HOUR.step * HOUR.slots, {"accepted": 99})
    arguments = (HOUR.name, HOUR.size, HOUR.offset(NOW - 7), stale)
    assert script_runner.run_one(system.client, "record_samples", *arguments) == 0
    assert {name: system.client.get(name) for name in written} == written
    assert len(written) == len(RINGS)


def test_a_ring_keeps_its_size_and_forgets_what_is_older(redis: Redis) -> None:
    sampler = Sampler(redis)
    for second in range(NOW - HOUR.step * (HOUR.slots + 5), NOW + 1, HOUR.step):
        sampler.write(second)
    assert {ring: redis.strlen(keys.PREFIX + ring.name) for ring in RINGS} == {ring: ring.size for ring in RINGS}
    found = read_ring(redis.get(keys.PREFIX + HOUR.name), HOUR, NOW)
    assert [one.at for one in found] == [at(NOW - HOUR.step * number) for number in reversed(range(HOUR.slots))]


def test_a_time_ahead_of_the_clock_is_written_over(redis: Redis) -> None:
    sampler = Sampler(redis)
    sampler.write(NOW + HOUR.step * HOUR.slots)  # then the clock was set back
    assert SeriesQueries(redis).samples(HOUR) == []
    sampler.write(NOW)
    assert [one.at for one in SeriesQueries(redis).samples(HOUR)] == [at(NOW)]


@pytest.mark.parametrize("damage", ["type", "size"])
def test_a_damaged_ring_is_written_anew(redis: Redis, damage: str) -> None:
    key = keys.PREFIX + DAY.name
    redis.rpush(key, "x") if damage == "type" else redis.set(key, "x")
    assert SeriesQueries(redis).samples(DAY) == []
    Sampler(redis).write(NOW)
    assert len(SeriesQueries(redis).samples(DAY)) == 1


def test_counters_that_wrap_or_begin_anew_are_understood() -> None:
    ring = Ring(10, 4)
    samples = [{"accepted": 2**32 - 2, "settled": 7}, {"accepted": 2**32 + 3, "settled": 5}, {"accepted": 1}]
    text = b"".join(pack_sample(NOW - 20 + 10 * place, one) for place, one in zip(count(), samples, strict=False))
    text += bytes(ring.size - len(text))
    first, second = changes(read_ring(text, ring, NOW))
    assert (first.counts["accepted"], first.counts["settled"]) == (5, -2)
    assert second.counts["accepted"] == 1


def test_the_rings_of_many_stores_take_little_memory(redis: Redis) -> None:
    for number in range(1_000):
        redis.hset(keys.COUNTERS, f"accepted|store-{number:03}", number)
    before = redis.info("memory")["used_memory"]
    sampler = Sampler(redis)
    for second in range(NOW - 7200, NOW, 3600):
        sampler.write(second)
    used = redis.info("memory")["used_memory"] - before
    assert redis.strlen(f"{keys.PREFIX}{OF_STORE}store-999") == WEEK.size
    assert used < 10_000_000
    print(f"rings of 1,000 stores: {used / 1e6:.1f} MB")


def test_a_store_is_written_once_an_hour_and_when_it_changes(redis: Redis) -> None:
    sampler, hour = Sampler(redis), NOW // 3600 * 3600 - 7200
    redis.hset(keys.COUNTERS, "accepted|north", 1)

    def times() -> list[int]:
        return [int(one.at.timestamp()) for one in SeriesQueries(redis).of_stores(["north"])["north"]]

    sampler.write(hour)
    sampler.write(hour + 10)
    assert times() == [hour]
    redis.hset(keys.COUNTERS, "accepted|north", 2)
    sampler.write(hour + 20)
    assert times() == [hour + 20]
    sampler.write(hour + 3600)
    assert times() == [hour + 20, hour + 3600]


def test_the_housekeeper_samples_every_ten_seconds(system: System) -> None:
    system.accept()
    system.start("housekeeper")
    queries = SeriesQueries(system.client)
    found = eventually(lambda: queries.samples(HOUR), 15)
    assert found[0].values["accepted"] == 1
    of_store = eventually(lambda: queries.of_stores(["north"])["north"])
    assert of_store[0].values["open"] == 1
