"""Chooses where captured deliveries hold topic, id, resource, time and store: by words of the names, and by values.

A value that must differ in each delivery is proven by captures with different bodies; with one capture it is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

from receiver.contract.diagnosis.captures import Capture, is_time, words
from receiver.contract.event import follow
from receiver.contract.signing.grammar import Sources
from receiver.contract.topics import ACTIONS, normalise

DATA_KEYS = ("data", "payload", "resource", "object", "body", "entity", "record", "detail", "result", "item", "source")


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _weights(text: str) -> dict[str, int]:
    """`"topic 8 event 7"` as a dict."""
    return dict(zip(text.split()[::2], map(int, text.split()[1::2]), strict=True))


_KEYS = ("id", "uuid", "guid")
_OWN_IDS = ("json:id", "json:uuid", "json:guid")
_WEAK_IDS = ("key", "number", "reference")
_ID_WORDS = {*_KEYS, *_WEAK_IDS, "ids", "gid"}
_DELIVERY_WORDS = _weights("delivery 12 message 11 msg 11 notification 11 event 10 idempotency 9")
_HOOKS = ("webhook", "hook")
# Ids of these are equal in every delivery, and those of requests and traces differ in a redelivery.
_OTHER_IDS = _set("""
    shop store account app application client merchant webhook hook subscription subscriber customer user team tenant
    org organization organisation installation company site project seller partner endpoint config request trace
    correlation parent span session api location channel workspace owner sender actor vendor integration environment
""")
_NO_ID = _OTHER_IDS | _set("nonce salt random attempt attempts retry count")
_NOT_A_TOPIC = _set("""
    id uuid guid retry attempt attempts count version time timestamp date at url uri domain host email currency locale
    format algorithm environment mode content user agent signature token key nonce sha hash status state source
    payment method shipping country language title sku vendor name code
""")
_TOPIC_NAMES = _weights("topic 8 event 7 scope 6 type 6 trigger 6 kind 5 action 4 operation 4 hook 3")
_ABOUT_EVENT = _set("type name key code action kind")
_ENVELOPES = _set("event events meta metadata subscription notification header action")
_OF_RESOURCE = _set("resource object entity item model")
_TOPIC = re.compile(r"[A-Za-z][A-Za-z0-9]*([._/: -]+[A-Za-z0-9]+)*")
_SEPARATED = re.compile(r"[A-Za-z0-9]+([._/: -]+[A-Za-z0-9]+)+|[A-Z]?[a-z0-9]+([A-Z][a-z0-9]+)+")
_RANDOM = re.compile(r"(?=.*[0-9])[0-9A-Za-z-]{20,}|[0-9a-f-]{16,}|.*[0-9]{5,}.*")
_GENERIC = _set("event events notification webhook message object callback test live json list data default")
_TIME_NAMES = _weights(
    "occurred 5 happened 5 triggered 5 event 4 timestamp 4 sent 3 created 3 updated 3 time 2 ts 2 date 2 at 2"
)
_OTHER_TIMES = _set("expires expiry expiration due birth retry next start end period delivery")
_STORE_WORDS = _set("shop store merchant seller")


def choose_sources(captures: Sequence[Capture], *, used: set[str], signs: Callable[[str], bool]) -> Sources:
    """Return the sources that fit every capture best. `used` are those of the signature and of its timestamp."""
    return _Chooser(captures, used, signs).choose()


def guess_id(captures: Sequence[Capture], *, used: set[str], signs: Callable[[str], bool]) -> tuple[str, ...]:
    """The only signed header that differs in all captures, whatever its name; empty if there is none, or several."""
    if len({one.body for one in captures}) < max(len(captures), 2):  # in a redelivery, an id does not differ
        return ()
    texts = {source: {one.values.get(source, "") for one in captures} for source in captures[0].values}
    found = [
        source
        for source, different in texts.items()
        if source.startswith("header:") and source not in used and signs(source) and len(different) == len(captures)
        if not _NO_ID.intersection(words(source))
        if all(text and " " not in text and not is_time(text) for text in different)
    ]
    return tuple(found) if len(found) == 1 else ()


class _Value:
    """A value: its source, the words of its name, and its text in each capture."""

    def __init__(self, source: str, texts: tuple[str, ...]) -> None:
        self.source, self.texts = source, texts
        kind, self.path = source.split(":", 1)
        self.is_header = kind == "header"
        *self.parents, last = self.path.split(".") if kind == "json" else [self.path]
        self.parent = source.rpartition(".")[0] if self.parents else ""
        self.name = words(last)
        self.end = self.name[-1] if self.name else ""
        before = self.name[:-1] or words(".".join(self.parents))
        self.owner = before[-1] if before else ""
        """The word that says whose id it is: order in `order_id`, in `x-order-id` and in `order.id`."""


Score = Callable[[_Value], int]


class _Chooser:
    def __init__(self, captures: Sequence[Capture], used: set[str], signs: Callable[[str], bool]) -> None:
        self.captures, self.signs = captures, signs
        self.values = [{key: text for key, text in one.values.items() if key not in used} for one in captures]
        self.common = {
            source: _Value(source, tuple(values[source] for values in self.values))
            for source in self.values[0]
            if all(source in values for values in self.values)
        }
        self.usual = [_data_key(one.document) for one in captures]
        pairs = combinations(range(len(captures)), 2)
        self.distinct = [(left, right) for left, right in pairs if captures[left].body != captures[right].body]

    def choose(self) -> Sources:
        topic = self._best(_topic_score)
        self.topics = [next((values[source] for source in topic if source in values), "") for values in self.values]
        self.topic_words = {word for text in self.topics for word in _words_of_topic(text)}
        self.in_body = any(not source.startswith("header:") for source in topic)
        self.topic_parents = {source.rpartition(".")[0] for source in topic}
        identity = self._best(self._id_score)
        resource = self._best(lambda value: 0 if value.source in identity else self._resource_score(value))
        return Sources(
            topic=topic,
            id=identity,
            resource_id=resource,
            data=self._data(resource),
            occurred=self._best(_time_score),
            store=self._best(_store_score),
        )

    def _best(self, score: Score) -> tuple[str, ...]:
        """The source with the highest score; of those with equal values, one that is signed.

        If no source is in every capture, the best of each: events of several kinds may have different ones.
        """
        found = _highest(self.common.values(), score)
        if not found:
            own = ([_Value(key, (text,)) for key, text in one.items() if key not in self.common] for one in self.values)
            return tuple(dict.fromkeys(best.source for values in own if (best := _highest(values, score))))
        equal = (one.source for one in self.common.values() if one.texts == found.texts and score(one) > 0)
        return (found.source if self.signs(found.source) else next(filter(self.signs, equal), found.source),)

    def _id_score(self, value: _Value) -> int:
        """How well a value names one delivery. It differs in captures with different bodies."""
        texts, owner = value.texts, value.owner
        if any(is_time(text) or not text or len(text) > 128 or " " in text for text in texts):
            return 0
        distinct = self.distinct if len(texts) == len(self.captures) else []
        if any(texts[left] == texts[right] for left, right in distinct):
            return 0
        score = 0
        if value.source in ("header:webhook-id", "header:svix-id") or (value.is_header and value.end == "delivery"):
            score = 12
        elif value.end not in (("key",) if owner == "idempotency" else _KEYS):
            score = 0
        elif owner in _HOOKS:  # a webhook of each topic may have its own id: only deliveries of one topic prove it
            score = 7 if any(self.topics[left] == self.topics[right] for left, right in distinct) else 0
        elif owner in _DELIVERY_WORDS:
            score = _DELIVERY_WORDS[owner] - len(value.parents)
        elif value.source in _OWN_IDS:
            score = 6 if self.in_body and self._has_envelope(texts) else 0
        elif "event" in words(value.parent) and value.parent in self.topic_parents:
            score = 8
        elif value.is_header and distinct and self.signs(value.source):  # another name: signed, and seen to differ
            score = 4 if owner not in self.topic_words | _OTHER_IDS else 0
        return score

    def _has_envelope(self, texts: tuple[str, ...]) -> bool:
        """Whether the resource is an object inside of the document, which then has an id of its own."""
        about = self.topic_words.union(DATA_KEYS)
        inner = (one for one in self.common.values() if one.parents and one.end == "id" and one.owner in about)
        return any(one.texts != texts for one in inner) or all(self.usual)

    def _resource_score(self, value: _Value) -> int:
        """How well a value names what the event is about: best if its owner is a word of the topic."""
        owner = value.owner
        if value.end not in _ID_WORDS or any(not text or " " in text for text in value.texts):
            return 0
        if owner in self.topic_words:
            score = 9
        elif owner in _DELIVERY_WORDS or owner in _OTHER_IDS:
            score = 0
        elif value.source in _OWN_IDS and self.in_body and self._has_envelope(value.texts):
            score = 1
        elif owner in DATA_KEYS:
            score = 8
        elif value.is_header:
            score = 0
        else:
            score = 6 if not owner else 5 if value.path.startswith(DATA_KEYS) else 3
        return max(score - (4 if value.end in _WEAK_IDS else 0) - max(len(value.parents) - 1, 0), 0)

    def _data(self, resource: tuple[str, ...]) -> tuple[str, ...]:
        """The object that has the resource's id, else the one with a usual name, else the whole body."""
        if any(one.form for one in self.captures):
            return ("form",)
        parents = [source.rpartition(".")[0] for source in resource if source.startswith("json:") and "." in source]
        usual = [f"json:{key}" for key in self.usual if key]
        return tuple(dict.fromkeys([*(parents or usual), "body"]))


def _highest(values: Iterable[_Value], score: Score) -> _Value | None:
    """The value with the highest score, the first of several; None if none scores."""
    best = max(values, key=score, default=None)
    return best if best and score(best) > 0 else None


def _words_of_topic(text: str) -> set[str]:
    """The words that say what an event is about. `store/order/created` is about an order."""
    about = {word for part in normalise(text).split(".") for word in words(part)} - {"event", "webhook"}
    return about - {"store", "shop"} if len(about) > 2 else about


def _topic_score(value: _Value) -> int:
    """How well a value names what happened: words with separators, at a place with a name like `event_type`."""
    name, texts = set(value.name), value.texts
    if not all(_TOPIC.fullmatch(text) and len(text) <= 80 and not _RANDOM.fullmatch(text) for text in texts):
        return 0
    excluded = _NOT_A_TOPIC - (_ABOUT_EVENT if name & {"event", *_HOOKS} else set())
    is_topic = not excluded & name and value.end in _ABOUT_EVENT.union(_TOPIC_NAMES)
    score = max(_TOPIC_NAMES.get(word, 0) for word in name) if is_topic else 0
    lasts = [words(text)[-1] for text in texts]
    is_said = all(last in ACTIONS for last in lasts)
    if not score:  # another name: only if the value says itself that something happened
        is_said = is_said or (value.name == ["name"] and all(last.endswith("ed") for last in lasts))
        is_separated = all(map(_SEPARATED.fullmatch, texts))
        return 1 if is_said and is_separated and not value.parents and not value.is_header else 0
    score += 2 if _SEPARATED.fullmatch(texts[0]) else 0
    score += 3 if is_said else 0
    score -= 2 if any(set(words(text)) <= _GENERIC for text in texts) else 0
    score -= 4 if _OF_RESOURCE & name else 0
    return score - (0 if value.parents and value.parents[-1] in _ENVELOPES else 3 * len(value.parents))


def _time_score(value: _Value) -> int:
    if not all(map(is_time, value.texts)) or _OTHER_TIMES.intersection(value.name):
        return 0
    score = max((_TIME_NAMES.get(word, 0) for word in value.name), default=0)
    return score and 3 * score - 2 * len(value.parents)


def _store_score(value: _Value) -> int:
    """How well a value names the store. It is equal in every capture."""
    if len(set(value.texts)) > 1 or is_time(value.texts[0]) or len(value.parents) > 1:
        return 0
    if value.end == "domain":
        return 4
    if value.end in _STORE_WORDS:
        return 2
    return 3 if value.end in ("id", "key", "hash") and _STORE_WORDS.intersection(value.name[-2:-1]) else 0


def _data_key(document: Any) -> str:
    return next((key for key in DATA_KEYS if isinstance(follow(document, key), dict)), "")
