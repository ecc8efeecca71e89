"""Retry: whether a call is worth another try, and when. Pure."""

from __future__ import annotations

import random
import time
from email.utils import parsedate_to_datetime

FAULTS = 6
"""How often a store may fault in one call before we give up. Refusals by rate end with the call's time only."""
_LONGEST = 10.0
_FAULTY = frozenset({408, 425, 500, 502, 503, 504})


def backoff(attempt: int) -> float:
    """Growing pauses with full jitter: many clients that failed together do not come back together."""
    most: float = min(_LONGEST, 0.25 * 2**attempt)
    return random.uniform(0.05, 1.0) * most  # noqa: S311


def is_fault(status: int) -> bool:
    """Whether the same call may well succeed a moment later."""
    return status in _FAULTY


def retry_after(value: str | None, now: float | None = None) -> float | None:
    """Seconds from a Retry-After header: a number or a date; None where there is none one can read."""
    if not value:
        return None
    if value.isascii() and value.isdigit() and len(value) < 8:
        return float(value)
    try:
        moment = parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, moment - (time.time() if now is None else now))
