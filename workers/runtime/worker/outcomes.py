"""Ends: what the end of a run in its child process means for it. Pure."""

from __future__ import annotations

from receiver.inbox import Declaration, Outcome
from workers.runtime import retries
from workers.runtime.pool.pool import RunEnd


def outcome_of(ended: RunEnd, declared: Declaration | None) -> Outcome:
    """What is written of a run; `declared` is its handler, where this worker has it."""
    run, detail = ended.run, ended.detail
    match ended.end:
        case "done" | "dropped" | "failed":
            return Outcome(run, ended.end, detail)
        case "raised":
            return retries.after_error(run, detail, retries=_retries(declared), after=ended.after)
        case "died":
            told = {
                **detail,
                "group": retries.fingerprint("died", [run.handler]),
                "version": declared.version if declared else "?",
            }
            # Most often it was killed from outside, so the first time it is tried again at once.
            after = 0.0 if run.attempts == 0 else None
            return retries.after_error(run, told, retries=_retries(declared), after=after)
        case "busy" | "wait":
            delay = ended.after if ended.after is not None else retries.BUSY_DELAY
            return Outcome(run, ended.end, detail, delay=delay)
        case _:  # lost, stopped, absent: nobody's fault, and another worker may begin it at once
            return Outcome(run, "release")


def _retries(declared: Declaration | None) -> retries.Retries:
    allowed: retries.Retries = declared.details["retries"] if declared else 0
    return allowed
