"""Topics: translates a store's event names to `resource.action`, lower case, singular, past tense, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

PROBE = "storehooks-probe.sent"
"""The topic of the probe: an event that storehooks sends to its own public URL to test it. No handler gets it."""
WILDCARDS = "*?["
"""The letters that make a name a pattern."""
MappedBy = Literal["config", "preset", "rule"]

_SEPARATORS = re.compile(r"[/.:\s]+")
_WORD_ENDS = re.compile(r"[_-]+|(?<=[a-z0-9])(?=[A-Z])")
_UNSAFE = re.compile(r"[^a-z0-9_.-]+")
_MAX_LENGTH = 100

# Only known verbs are put in the past tense: in `customer.login`, login is not a verb.
_REGULAR = """
    abandon accept activate add approve archive assign authorize award capture change charge close complete
    confirm create decline deactivate delete deliver disable dispatch edit enable enter expire export fail
    fulfil fulfill generate import initiate install invite invoice issue merge modify move open order pack
    pause pick place process publish purchase receive redact redeem refund register reject release remove
    rename renew replace request resolve restock restore resume return revise revoke save schedule start
    subscribe suspend sync trash trigger uninstall unpack unpublish unsubscribe update upgrade validate void
"""
_IRREGULAR = {
    "buy": "bought",
    "canceled": "cancelled",
    "cancel": "cancelled",
    "pay": "paid",
    "put": "put",
    "read": "read",
    "reset": "reset",
    "sell": "sold",
    "send": "sent",
    "set": "set",
    "ship": "shipped",
    "submit": "submitted",
    "transfer": "transferred",
    "verify": "verified",
}

_PAST_TENSE = {**{verb: verb + ("d" if verb.endswith("e") else "ed") for verb in _REGULAR.split()}, **_IRREGULAR}
ACTIONS = frozenset((*_PAST_TENSE, *_PAST_TENSE.values()))
"""The actions that the rule knows, in both tenses."""


def normalise(name: str) -> str:
    """Return the topic for a store's event name by rule: `orders/create` -> `order.created`."""
    words = [word for word in _SEPARATORS.split(name[:_MAX_LENGTH].strip()) if word]
    if len(words) == 1:
        words = _split_word(words[0])
    words = [_UNSAFE.sub("-", word.lower()) for word in words]
    if len(words) < 2:
        return "".join(words)
    *resources, action = words
    return ".".join([*map(_singular, resources), _PAST_TENSE.get(action, action)])[:_MAX_LENGTH]


def translate(name: str, mapping: Mapping[str, str]) -> str:
    """Return the topic for a store's event name: by the scheme's map, else by the rule."""
    return mapping.get(name) or _by_rule(name[:_MAX_LENGTH])


def mapped_by(name: str, mapping: Mapping[str, str], configured: Iterable[str]) -> MappedBy:
    """Return what maps a store's event name: a line of the config, the preset, or the rule."""
    if name not in mapping:
        return "rule"
    return "config" if name in configured else "preset"


def their_names(topic: str, mapping: Mapping[str, str]) -> tuple[str, ...]:
    """Return the store's names for a topic or a pattern (`order.*`). A topic that is not in the map is its own name.

    A pattern that matches nothing in the map has no names: the store's names for it are unknown.
    """
    names = tuple(theirs for theirs, ours in mapping.items() if matches(topic, ours))
    if names or any(letter in topic for letter in WILDCARDS):
        return names
    return (topic,)


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern (`order.*`, `*`) matches a topic."""
    return fnmatchcase(topic, pattern)


@lru_cache(maxsize=512)
def _by_rule(name: str) -> str:
    return normalise(name)


def _split_word(word: str) -> list[str]:
    """Split `ORDER_CREATED`, `order-created` or `OrderCreated` into resource and action."""
    *resource, action = [part for part in _WORD_ENDS.split(word) if part] or [""]
    return ["_".join(resource), action] if resource else [action]


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word
