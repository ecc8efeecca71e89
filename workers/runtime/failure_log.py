"""Failure log: a line for each failed attempt, each run that failed for good, and each job that is not ours.

A line never has the exception's message, which may quote a payload; `storehooks failures show GROUP` shows that. Each
failed attempt has one line, written when its outcome is stored; the last one says that the run failed for good. An
attempt has none if the server stored its outcome and the answer was lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from receiver import logs
from receiver.inbox import Outcome
from receiver.inbox.housekeeping import FailedRun
from receiver.inbox.keys import run_item
from receiver.inbox.outcomes import OutcomeKind

RETRIED = "attempt failed; it will be retried"

log = logs.get("failures")


class FailureLog:
    """The failed attempts of one worker process."""

    def __init__(self) -> None:
        counted = logs.CountedLog(log, timer=False)
        self._retries = logs.LimitedLog(log, counted, more="more failed attempts, without a line each")
        self._failures = logs.LimitedLog(
            log, counted, level="error", more="more runs failed for good, without a line each"
        )
        self._foreign_jobs = logs.LimitedLog(log, counted, more="more jobs of other programs, without a line each")
        self.flush = counted.flush
        """Log how many attempts of each handler, and jobs, had no line. Call it about once a second."""

    def attempt_failed(self, outcome: Outcome, *, died: bool = False) -> None:
        """Log an attempt whose outcome is a retry or a failure. `died` says that its child process has ended."""
        run, detail = outcome.run, outcome.detail
        error, is_retried = str(detail.get("error", "")), outcome.kind is OutcomeKind.RETRY
        # The text of a death is ours. Of an exception, only its type is.
        cause = {"why": error} if died else {"exception": error.partition(":")[0]}
        (self._retries if is_retried else self._failures).add(
            RETRIED if is_retried else logs.FAILED,
            {"handler": run.handler},
            event_id=run.stored.id,
            run=run.item,
            store=run.stored.store,
            topic=run.stored.topic,
            version=detail.get("version"),
            attempt=run.attempts + 1,
            **cause,
            group=detail.get("group"),
            next_try=_after(outcome.delay) if is_retried else "none",
        )

    def foreign_job(self, rq_queue: str, job: bytes) -> None:
        """Log another program's job, which fails because it was put on one of our queues."""
        name = job[:64].decode("utf-8", "replace")
        self._foreign_jobs.add(
            "another program's RQ job was put on a queue of storehooks", {"queue": rq_queue}, job=name
        )


def log_failed_runs(runs: Iterable[FailedRun], *, reason: str) -> None:
    """Log the runs that a housekeeper made failures."""
    for run in runs:
        item = run_item(run.event_id, run.handler)
        log.error(logs.FAILED, **run._asdict(), run=item, reason=reason, next_try="none")


def _after(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
