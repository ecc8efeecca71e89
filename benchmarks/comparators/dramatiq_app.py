"""The no-op handler as a dramatiq actor."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.comparators import counting

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS"]))


@dramatiq.actor
def handle(event: dict[str, object]) -> None:
    counting.handle(event)


def send(event: dict[str, object], many: int) -> None:
    for _ in range(many):
        handle.send(event)
