"""The no-op handler as a celery task that is acknowledged when it is done."""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.comparators import counting

app = Celery("bench", broker="redis+socket://" + os.environ["BENCH_REDIS"].removeprefix("unix://"))
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=4)


@app.task(name="handle")
def handle(event: dict[str, object]) -> None:
    counting.handle(event)


def send(event: dict[str, object], many: int) -> None:
    for _ in range(many):
        handle.delay(event)
