"""The no-op handler as a celery task that is acknowledged after it has run."""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.peers import run_counter

app = Celery("bench", broker="redis+socket://" + os.environ["BENCH_REDIS"].removeprefix("unix://"))
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=4)


@app.task(name="handle")
def handle(event: dict[str, object]) -> None:
    run_counter.handle(event)


def fill(event: dict[str, object], count: int) -> None:
    for _ in range(count):
        handle.delay(event)
