"""Retry: whether a call may be sent again, and after which pause. Pure."""

from __future__ import annotations

import random
import time
from email.utils import parsedate_to_datetime

MAX_FAULTS = 6
"""Number of faults (5xx, lost connections) after which a call fails. A 429 is retried until the call's deadline."""
_MAX_PAUSE = 10.0
_LONGEST_ASKED = 366 * 86_400.0
"""Of seconds in a Retry-After: an infinite number could not be shown. Callers wait less."""
_FAULT_STATUSES = frozenset({408, 425, 500, 502, 503, 504})


def backoff(attempt: int) -> float:
    """Growing pauses with full jitter, so that clients that failed together do not retry together."""
    longest: float = min(_MAX_PAUSE, 0.25 * 2**attempt)
    return random.uniform(0.05, 1.0) * longest  # noqa: S311


def is_fault(status: int) -> bool:
    """Whether the same call may succeed a moment later."""
    return status in _FAULT_STATUSES


def retry_after(value: str | None, now: float | None = None) -> float | None:
    """Seconds from a Retry-After header, a number or a date; None where it is missing or cannot be parsed."""
    if not value:
        return None
    if value.isascii() and value.isdigit():
        return min(float(value), _LONGEST_ASKED)
    try:
        moment = parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, moment - (time.time() if now is None else now))
