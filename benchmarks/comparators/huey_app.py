"""The no-op handler as a huey task."""

from __future__ import annotations

import os

from huey import RedisHuey

from benchmarks.comparators import counting

huey = RedisHuey("bench", url=os.environ["BENCH_REDIS"], results=False)


@huey.task()
def handle(event: dict[str, object]) -> None:
    counting.handle(event)


def send(event: dict[str, object], many: int) -> None:
    for _ in range(many):
        handle(event)
