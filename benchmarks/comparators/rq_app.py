"""Jobs of the no-op handler for RQ."""

from __future__ import annotations

import os

from redis import Redis
from rq import Queue

GROUP = 100


def send(event: dict[str, object], many: int) -> None:
    queue = Queue(connection=Redis.from_url(os.environ["BENCH_REDIS"]))
    for at in range(0, many, GROUP):
        handler = "benchmarks.comparators.counting.handle"
        queue.enqueue_many([Queue.prepare_data(handler, (event,)) for _ in range(min(GROUP, many - at))])
