"""Text from outside for a terminal: characters that could control it are replaced or escaped. Pure."""

from __future__ import annotations

import re
import unicodedata

MAX_PRINTED = 60
_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n\t]")
_CONTROLLING = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def harmless(text: str) -> str:
    """Text without characters that control a terminal: escape sequences, line breaks, bidi controls."""
    return "".join(c if unicodedata.category(c) not in _CONTROLLING else "\N{REPLACEMENT CHARACTER}" for c in text)


def printable(text: str) -> str:
    """Return text from a delivery, safe to print: shortened, and without control characters."""
    clean = harmless(text[: MAX_PRINTED + 1])
    return clean if len(clean) <= MAX_PRINTED else clean[:MAX_PRINTED] + "…"


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
