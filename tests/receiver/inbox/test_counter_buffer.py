"""Counter buffer: a refusal is counted in the server, also if the server was away."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from redis import Redis

from receiver.inbox import counter_buffer, keys
from receiver.inbox.counter_buffer import CounterBuffer
from tests.support.harness import eventually, own_server


def test_refusals_of_an_outage_are_counted_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_buffer, "FLUSH_EVERY", 0.05)
    with own_server(tmp_path) as server:
        counts = CounterBuffer(server.client)
        server.stop()
        before = set(threading.enumerate())
        counts.add("north", "refused", "refused:no-signature")
        (first,) = set(threading.enumerate()) - before
        eventually(lambda: not first.is_alive(), what="the first flush has failed")
        server.start()
        counted = lambda: server.client.hget(keys.COUNTERS, "refused|north")  # noqa: E731
        assert eventually(counted, what="the refusal is counted without another one") == b"1"


def test_a_field_that_is_no_number_keeps_only_its_own_count_waiting(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counter_buffer, "FLUSH_EVERY", 60)
    redis.hset(keys.COUNTERS, "refused|north", "many")
    counts = CounterBuffer(redis)
    counts.add("north", "refused")
    counts.add("south", "refused", number=3)
    for _ in range(3):
        counts.flush()
    assert redis.hgetall(keys.COUNTERS) == {b"refused|north": b"many", b"refused|south": b"3"}
    redis.hset(keys.COUNTERS, "refused|north", 5)
    counts.flush()
    assert redis.hget(keys.COUNTERS, "refused|north") == b"6"
