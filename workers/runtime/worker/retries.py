"""Decides the outcome of a run that ended in its child process, and the delay (backoff) before a retry. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

from receiver.contract.failure_groups import group_id
from receiver.inbox import Declaration, Outcome, Run
from receiver.inbox.outcomes import Ending, OutcomeKind, RunResult, kind_of

FIRST_DELAY = 30.0
GROWTH = 3.6
LONGEST_DELAY = 12 * 3600.0
BUSY_DELAY = 5.0

Retries = int | Sequence[float]
"""A number of retries with growing delays, or the delays in seconds."""


def outcome_of(run: Run, result: RunResult, declared: Declaration) -> Outcome:
    """The outcome that the inbox is to write. `declared` is the run's handler."""
    if result.ending is Ending.DONE:  # most often
        return Outcome(run, OutcomeKind.DONE, result.detail, settles=result.detail.pop("settles", ""))
    retries: Retries = declared.details["retries"]
    number = retries if isinstance(retries, int) else len(retries)
    kind = kind_of(result.ending, retries_left=run.attempts < number)
    detail = result.detail
    if result.ending is Ending.DIED:
        group = group_id(run.handler, Ending.DIED, detail["error"])
        detail = {**detail, "group": group, "version": declared.version}
    match kind:
        case OutcomeKind.RETRY:
            return Outcome(run, kind, detail, delay=_delay_before_retry(run, result, retries))
        case OutcomeKind.BUSY | OutcomeKind.WAIT:
            return Outcome(run, kind, detail, delay=BUSY_DELAY if result.after is None else result.after)
        case OutcomeKind.RELEASE:
            return Outcome(run, kind)
        case _:
            return Outcome(run, kind, detail, settles=detail.pop("settles", ""))


def _delay_before_retry(run: Run, result: RunResult, retries: Retries) -> float:
    """Seconds until the next attempt: what the handler asked for, else its next delay."""
    if result.after is not None:
        return result.after
    if result.ending is Ending.DIED and run.attempts == 0:  # most often it was killed from outside
        return 0.0
    return delay_after(run.attempts + 1, retries)


def delay_after(attempt: int, retries: Retries) -> float:
    """Seconds to wait after failed attempt number `attempt` (1 is the first).

    A plain number of retries means exponential backoff with full jitter: eight of them take about a day.
    """
    if not isinstance(retries, int):
        return float(retries[attempt - 1])
    longest = min(LONGEST_DELAY, FIRST_DELAY * GROWTH ** (attempt - 1))
    return random.uniform(0, longest)  # noqa: S311  jitter, not a secret
