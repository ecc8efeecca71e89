"""Attempts: whether a run that went wrong is tried again, and when. Pure."""

from __future__ import annotations

import hashlib
import random
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from receiver.inbox import Outcome, Run

FIRST_DELAY = 30.0
GROWTH = 3.6
LONGEST_DELAY = 12 * 3600.0
MAX_TRACEBACK = 8_000
MAX_TEXT = 500
BUSY_DELAY = 5.0

Retries = int | Sequence[float]


def allowed(retries: Retries) -> int:
    return retries if isinstance(retries, int) else len(retries)


def delay_before(attempt: int, retries: Retries) -> float:
    """Seconds to wait after failed attempt number `attempt` (1 is the first).

    A plain number of retries means exponential backoff with full jitter: eight of them take about a day.
    """
    if not isinstance(retries, int):
        return float(retries[attempt - 1])
    longest = min(LONGEST_DELAY, FIRST_DELAY * GROWTH ** (attempt - 1))
    return random.uniform(0, longest)  # noqa: S311  jitter, not a secret


def after_error(run: Run, detail: Mapping[str, Any], *, retries: Retries, after: float | None = None) -> Outcome:
    """The outcome of an attempt that went wrong: tried again while retries are left, else a failure."""
    attempt = run.attempts + 1
    if attempt > allowed(retries):
        return Outcome(run, "failed", detail)
    return Outcome(run, "retry", detail, delay=after if after is not None else delay_before(attempt, retries))


def fingerprint(kind: str, places: Iterable[str]) -> str:
    """Equal for failures of one cause: the exception's type and where in plugin code it was raised."""
    return hashlib.sha256("\n".join([kind, *places]).encode()).hexdigest()[:8]


def describe_error(error: BaseException, plugin_files: Iterable[str]) -> dict[str, Any]:
    """An exception as it is kept: one line, a bounded traceback, and its group."""
    files = set(plugin_files)
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.name}" for frame in frames if frame.filename in files]
    last = next((frame for frame in reversed(frames) if frame.filename in files), None)
    text = text_of(error, lambda one: "".join(traceback.format_exception(one))).encode("utf-8", "replace").decode()
    kind = type(error).__name__
    return {
        "error": shorten(f"{kind}: {text_of(error)}"),
        "traceback": text if len(text) <= MAX_TRACEBACK else "…" + text[-MAX_TRACEBACK:],
        "group": fingerprint(kind, places),
        "at": f"{last.filename}:{last.lineno}" if last else None,
    }


def text_of(value: Any, how: Callable[[Any], str] = str) -> str:
    """A value as text, even if it does not know how."""
    try:
        return how(value)
    except Exception as error:  # noqa: BLE001  a plugin's __str__ may do anything
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def shorten(value: Any) -> str:
    """Bounded, and storable whatever the handler put into it."""
    clean = text_of(value).encode("utf-8", "replace").decode()
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"
