"""The no-op handler as a huey task."""

from __future__ import annotations

import os

from huey import RedisHuey

from benchmarks.peers import run_counter

huey = RedisHuey("bench", url=os.environ["BENCH_REDIS"], results=False)


@huey.task()
def handle(event: dict[str, object]) -> None:
    run_counter.handle(event)


def fill(event: dict[str, object], count: int) -> None:
    for _ in range(count):
        handle(event)
