"""The no-op handler as a dramatiq actor."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers import run_counter

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS"]))


@dramatiq.actor
def handle(event: dict[str, object]) -> None:
    run_counter.handle(event)


def fill(event: dict[str, object], count: int) -> None:
    for _ in range(count):
        handle.send(event)
