"""RQ's records, apart from wake-ups: our workers, and other programs' jobs that were put on our queues."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redis import Redis

from receiver import __version__
from receiver.inbox import keys
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.raw_connection import Argument
from receiver.inbox.redis.script_runner import ScriptCall

WORKER_SECONDS = 20
"""Seconds after its last heartbeat for which a worker is shown."""
CHILD_PROCESSES = "child_processes"
"""The field with the number of a worker's child processes. RQ has no such field."""
START_FAULT = "start_fault"
"""The field that says why a worker cannot start child processes now."""
OUR_MARK = "storehooks"
"""The field that tells our workers from RQ's others, with their version; 0.1.0 wrote 1."""
FAILED_JOB_SECONDS = 365 * 24 * 3600
"""RQ's default for failed jobs."""


def register_worker(client: Redis, name: str, queues: Sequence[str], fields: Mapping[str, Any]) -> None:
    """Show a worker to RQ's tools for WORKER_SECONDS, and remove killed workers from RQ's lists of our queues."""
    arguments: list[Argument] = [keys.RQ_WORKER + name, WORKER_SECONDS, len(queues), *map(keys.rq_queue, queues)]
    for field, value in {**fields, OUR_MARK: __version__}.items():
        arguments += (field, value)
    script_runner.run_one(client, "register", *arguments)


def fail_foreign_jobs(client: Redis, queues: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Put other programs' jobs, taken from our queues by any worker, into RQ's registry of failed jobs.

    Yields RQ's name of the queue and the id of each. Nothing of a job is run, decoded or unpickled.
    """
    calls = [_fail_jobs_of(queue) for queue in queues]
    for queue, jobs in zip(queues, script_runner.run(client, calls), strict=True):
        for job in jobs:
            yield keys.rq_queue(queue), job


def _fail_jobs_of(queue: str) -> ScriptCall:
    name = keys.rq_queue(queue)
    reason = (
        f"The RQ queue {name} belongs to storehooks, which runs no jobs of other programs. "
        "This job was not run. Enqueue it on a queue of your own program."
    )
    stored = b64encode(zlib.compress(reason.encode()))
    return ScriptCall("fail_jobs", [name, keys.WAKE + queue, FAILED_JOB_SECONDS, stored])
