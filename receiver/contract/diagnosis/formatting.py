"""Text for people: durations, sizes, times and numbers. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

_DURATIONS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SIZES = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


def span(seconds: float) -> str:
    """A duration: `3 s`, `51 min`, `2 h 51 min`, `12 d`."""
    seconds = max(0.0, seconds)
    for (unit, name), (next_unit, next_name) in pairwise(_DURATIONS):
        if seconds >= unit:
            number, rest = divmod(int(seconds), unit)
            more = rest // next_unit if unit == 3600 else 0
            return f"{number} {name} {more} {next_name}" if more else f"{number} {name}"
    return f"{seconds:.0f} s"


def exact_span(seconds: float) -> str:
    """A duration that is not rounded: `90 s`, `90 min`, `1 d`."""
    return next((f"{seconds / unit:.0f} {name}" for unit, name in _DURATIONS if not seconds % unit), f"{seconds:g} s")


def size(octets: float) -> str:
    for unit, name in _SIZES:
        if octets >= unit:
            return f"{octets / unit:.3g} {name}" if octets < unit * 100 else f"{octets / unit:,.0f} {name}"
    return f"{octets:.0f} bytes"


def clock(at: float | datetime, now: datetime) -> str:
    """The local time without seconds; with the date if it is not today."""
    moment = (datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else at).astimezone()
    return f"{moment:%H:%M}" if moment.date() == now.astimezone().date() else f"{moment:%d %b %H:%M}"


def some(names: list[str], most: int = 4) -> str:
    """The first names, and how many more there are."""
    shown, rest = names[:most], len(names) - most
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def counted(number: int, noun: str, nouns: str = "") -> str:
    """`1 run`, `3,988 runs`."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


def waits(number: int, noun: str, nouns: str = "", *, or_more: bool = False) -> str:
    """`1 run waits`, `2 runs wait`, `at least 2 runs wait`."""
    least = "at least " if or_more else ""
    return f"{least}{counted(number, noun, nouns)} {'waits' if number == 1 else 'wait'}"
