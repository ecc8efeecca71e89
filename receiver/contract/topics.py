"""Topics: `resource.action`, lower case, resource singular, action in the past tense."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

PROBE = "storehooks-probe.sent"
"""Our own event, by which we see that our public URL takes deliveries. It goes to no handler."""
MappedBy = Literal["config", "preset", "rule"]

_SEPARATORS = re.compile(r"[/.:\s]+")
_WORD_ENDS = re.compile(r"[_-]+|(?<=[a-z0-9])(?=[A-Z])")
_UNSAFE = re.compile(r"[^a-z0-9_.-]+")
_MAX_LENGTH = 100

# Only words known to be verbs are put in the past: `customer.login` is no verb, and must not be bent.
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


def _regular(verb: str) -> str:
    return verb + ("d" if verb.endswith("e") else "ed")


_PAST = {**{verb: _regular(verb) for verb in _REGULAR.split()}, **_IRREGULAR}


def normalise(name: str) -> str:
    """Our word for a store's event name where no map has it: `orders/create` -> `order.created`."""
    words = [word for word in _SEPARATORS.split(name[:_MAX_LENGTH].strip()) if word]
    if len(words) == 1:
        words = _in_two(words[0])
    words = [_UNSAFE.sub("-", word.lower()) for word in words]
    if len(words) < 2:
        return "".join(words)
    *resources, action = words
    return ".".join([*map(_singular, resources), _PAST.get(action, action)])[:_MAX_LENGTH]


def translate(name: str, mapping: Mapping[str, str]) -> str:
    """The topic for a store's event name: the scheme's map first, then the rule."""
    return mapping.get(name) or _by_rule(name[:_MAX_LENGTH])


def mapped_by(name: str, mapping: Mapping[str, str], configured: Iterable[str]) -> MappedBy:
    """What decides over a store's event name: a line of the config, the preset, or the rule."""
    if name not in mapping:
        return "rule"
    return "config" if name in configured else "preset"


def their_names(topic: str, mapping: Mapping[str, str]) -> tuple[str, ...]:
    """The store's names for a topic or a pattern (`order.*`); a topic that no name maps to is its own name.

    A pattern that no name maps to has no names: nobody knows what the store would call them.
    """
    names = tuple(theirs for theirs, ours in mapping.items() if matches(topic, ours))
    if names or any(letter in topic for letter in "*?["):
        return names
    return (topic,)


def matches(pattern: str, topic: str) -> bool:
    """Whether a handler that asked for `pattern` (`order.*`, `*`) wants `topic`."""
    return fnmatchcase(topic, pattern)


@lru_cache(maxsize=512)
def _by_rule(name: str) -> str:
    return normalise(name)


def _in_two(word: str) -> list[str]:
    """`ORDER_CREATED`, `order-created` and `OrderCreated` are a resource and an action too."""
    *resource, action = [part for part in _WORD_ENDS.split(word) if part] or [""]
    return ["_".join(resource), action] if resource else [action]


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word
