"""What RQ runs: a wake-up for a queue, or a chore by its name. Nothing else is allowed.

A worker knows these jobs by their id. It never resolves a function from a job's data, and never
unpickles anything; the data only tells whoever looks with RQ's own tools what the job is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from receiver.inbox.keys import WAKE

CHORE = "chore-"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class WakeUp:
    queue: str


@dataclass(frozen=True)
class Chore:
    name: str


def read_job(job_id: str) -> WakeUp | Chore | None:
    """The job with this id, or None if it is none of ours."""
    for prefix, kind in ((WAKE, WakeUp), (CHORE, Chore)):
        name = job_id.removeprefix(prefix)
        if job_id.startswith(prefix) and _NAME.fullmatch(name):
            return kind(name)
    return None


def drain() -> None:
    """What a wake-up's data names. The work itself is in the inbox, and only `workers.runtime.worker.worker` does
    it."""
    raise RuntimeError("this queue is worked by `storehooks worker`, not by a plain RQ worker")
