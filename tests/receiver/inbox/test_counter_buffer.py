"""Counter buffer: a refusal is counted in the server, also if the server was away."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from redis import Redis

from receiver.inbox import connect, counter_buffer, keys
from receiver.inbox.counter_buffer import CounterBuffer
from tests.support.harness import Server, eventually, own_server


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


def test_a_server_that_hung_counts_a_refusal_once(own_redis: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It executes everything that was sent to it meanwhile."""
    monkeypatch.setattr(counter_buffer, "FLUSH_EVERY", 60)
    counts = CounterBuffer(connect(own_redis.url, timeout=0.1))
    counts.add("south", "refused")
    counts.flush()  # the connection is open
    counts.add("north", "refused")
    own_redis.process.send(signal.SIGSTOP)
    for _ in range(3):
        counts.flush()
    own_redis.process.send(signal.SIGCONT)
    eventually(own_redis.client.ping)
    counts.flush()
    assert own_redis.client.hget(keys.COUNTERS, "refused|north") == b"1"


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
