"""The no-op handler as an RQ job."""

from __future__ import annotations

import os

from redis import Redis
from rq import Queue

GROUP = 100


def fill(event: dict[str, object], count: int) -> None:
    queue = Queue(connection=Redis.from_url(os.environ["BENCH_REDIS"]))
    for at in range(0, count, GROUP):
        handler = "benchmarks.peers.run_counter.handle"
        queue.enqueue_many([Queue.prepare_data(handler, (event,)) for _ in range(min(GROUP, count - at))])
