"""Topics: `resource.action`, lower case, resource singular, action in the past tense."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal

MappedBy = Literal["config", "preset", "rule"]

_SEPARATORS = re.compile(r"[/.:\s]+")
_UNSAFE = re.compile(r"[^a-z0-9_.-]+")
_IRREGULAR = {"pay": "paid", "send": "sent", "buy": "bought", "set": "set", "put": "put", "add": "added"}
_MAX_LENGTH = 100


def normalise(name: str) -> str:
    """Our word for a store's event name where no mapping says otherwise: `orders/create` -> `order.created`."""
    words = [_UNSAFE.sub("-", word) for word in _SEPARATORS.split(name.strip().lower()) if word]
    if not words:
        return ""
    if len(words) == 1:
        return words[0][:_MAX_LENGTH]
    *resources, action = words
    return ".".join([*map(_singular, resources), _past(action)])[:_MAX_LENGTH]


def translate(name: str, mapping: Mapping[str, str]) -> str:
    """The topic for a store's event name: the scheme's map first, then the rule."""
    return mapping.get(name) or normalise(name)


def matches(pattern: str, topic: str) -> bool:
    """Whether a handler that asked for `pattern` (`order.*`, `*`) wants `topic`."""
    return fnmatchcase(topic, pattern)


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith(("ed", "aid", "ent")):
        return word
    return word + ("d" if word.endswith("e") else "ed")
