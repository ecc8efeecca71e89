"""Visible text: text from outside for a page, cut at a bound, with control and bidi characters written out. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from markupsafe import Markup

MAX_SHOWN = 2_000
"""Characters of one text that a page shows."""
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    r"\ufeff\ufff0-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that are not seen, or that change how others are seen. Joiners, which scripts need, are not among them."""


def visible(text: str, most: int = MAX_SHOWN) -> str:
    """The text as it can be shown: `[U+202E]` in place of a character that would hide or reorder others."""
    rest = len(text) - most
    cut = f"{text[:most]}… ({rest:,} more characters)" if rest > 0 else text
    return _HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", cut)


def visible_json(text: str) -> str:
    """JSON with the same meaning, whose hidden characters are written as escapes."""
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def as_sentence(text: str) -> str:
    """With a capital first letter. The others stay as they are, unlike with `capitalize`."""
    return text[:1].upper() + text[1:]


def breakable(name: str) -> Markup:
    """A name whose line may break after its dots, dashes, slashes and underscores, before a browser breaks a word."""
    return Markup("<wbr>").join(re.split(r"(?<=[._/-])", visible(name)))


def finalize(value: Any) -> Any:
    """What a template writes for a value: Jinja calls it for each expression of each page."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return visible(str(value))
