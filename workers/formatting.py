"""Text for people: durations, sizes, times, numbers, and text from outside made harmless. Pure."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from itertools import pairwise

_DURATIONS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SIZES = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))
_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n\t]")
_CONTROLLING = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def harmless(text: str) -> str:
    """Text without characters that control a terminal: escape sequences, line breaks, bidi controls."""
    return "".join(c if unicodedata.category(c) not in _CONTROLLING else "\N{REPLACEMENT CHARACTER}" for c in text)


def escaped(text: str) -> str:
    """Text with `\\u001b` in place of each character that could control a terminal, but with its line breaks and tabs.

    JSON stays the same document.
    """
    return _NOT_PLAIN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if unicodedata.category(character) not in _CONTROLLING:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def span(seconds: float) -> str:
    """A duration: `3 s`, `51 min`, `2 h 51 min`, `12 d`."""
    seconds = max(0.0, seconds)
    for (unit, name), (next_unit, next_name) in pairwise(_DURATIONS):
        if seconds >= unit:
            number, rest = divmod(int(seconds), unit)
            more = rest // next_unit if unit == 3600 else 0
            return f"{number} {name} {more} {next_name}" if more else f"{number} {name}"
    return f"{seconds:.0f} s"


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


def waits(number: int, noun: str, nouns: str = "") -> str:
    """`1 run waits`, `2 runs wait`."""
    return f"{counted(number, noun, nouns)} {'waits' if number == 1 else 'wait'}"
