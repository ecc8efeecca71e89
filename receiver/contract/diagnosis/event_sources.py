"""Chooses where captured deliveries hold topic, id, resource, time and store: by words of the names, and by values.

A value that must differ in each delivery is proven by captures with different bodies; with one capture it is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from receiver.contract.diagnosis.captures import Capture, is_time, words
from receiver.contract.event import follow
from receiver.contract.signing.grammar import Sources
from receiver.contract.topics import ACTIONS, normalise

Texts = tuple[str, ...]
"""The values of one source, one for each capture."""
Score = Callable[[str, Texts], int]
DATA_KEYS = ("data", "payload", "resource", "object", "body", "entity", "record", "detail", "result", "item", "source")


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_KEYS = ("id", "uuid", "guid")
_OWN_IDS = ("json:id", "json:uuid", "json:guid")
_ID_WORDS = {*_KEYS, "ids", "gid", "key", "number", "reference"}
_DELIVERY_WORDS = {"delivery": 12, "message": 11, "msg": 11, "notification": 11, "event": 10, "idempotency": 9}
# Ids of these are equal in every delivery, and those of requests and traces differ in a redelivery.
_OTHER_IDS = _set("""
    shop store account app application client merchant webhook hook subscription subscriber customer user team tenant
    org organization organisation installation company site project seller partner endpoint config request trace
    correlation parent span session api location channel workspace owner sender actor vendor integration environment
""")
_NOT_A_TOPIC = _set("""
    id uuid guid retry attempt attempts count version time timestamp date at url uri domain host email currency locale
    format algorithm environment mode content user agent signature token key nonce sha hash status state source
    payment method shipping country language title sku vendor name code
""")
_TOPIC_NAMES = {
    "topic": 8,
    "event": 7,
    "scope": 6,
    "type": 6,
    "trigger": 6,
    "kind": 5,
    "action": 4,
    "operation": 4,
    "hook": 3,
}
_ABOUT_EVENT = _set("type name key code action kind")
_ENVELOPES = _set("event events meta metadata subscription notification header action")
_OF_RESOURCE = _set("resource object entity item model")
_TOPIC = re.compile(r"[A-Za-z][A-Za-z0-9]*([._/: -]+[A-Za-z0-9]+)*")
_SEPARATED = re.compile(r"[A-Za-z0-9]+([._/: -]+[A-Za-z0-9]+)+|[A-Z]?[a-z0-9]+([A-Z][a-z0-9]+)+")
_RANDOM = re.compile(r"(?=.*[0-9])[0-9A-Za-z-]{20,}|[0-9a-f-]{16,}|.*[0-9]{5,}.*")
_GENERIC = _set("event events notification webhook message object callback test live json list data default")
_TIME_NAMES = {
    "occurred": 5,
    "happened": 5,
    "triggered": 5,
    "event": 4,
    "timestamp": 4,
    "sent": 3,
    "created": 3,
    "updated": 3,
    "time": 2,
    "ts": 2,
    "date": 2,
    "at": 2,
}
_OTHER_TIMES = _set("expires expiry expiration due birth retry next start end period delivery")
_STORE_WORDS = _set("shop store merchant seller")


def choose_sources(captures: Sequence[Capture], *, used: set[str], signs: Callable[[str], bool]) -> Sources:
    """Return the sources that fit every capture best. `used` are those of the signature and of its timestamp."""
    return _Chooser(captures, used, signs).choose()


class _Chooser:
    def __init__(self, captures: Sequence[Capture], used: set[str], signs: Callable[[str], bool]) -> None:
        self.captures, self.signs = captures, signs
        self.values = [{key: text for key, text in one.values.items() if key not in used} for one in captures]
        self.common: dict[str, Texts] = {
            source: tuple(values[source] for values in self.values)
            for source in self.values[0]
            if all(source in values for values in self.values)
        }
        self.documents = [one.document for one in captures]
        self.distinct = [
            (left, right)
            for left, right in combinations(range(len(captures)), 2)
            if captures[left].body != captures[right].body
        ]

    def choose(self) -> Sources:
        topic = self._best(_topic_score)
        self.topic_words = {word for source in topic for text in self._texts(source) for word in _words_of_topic(text)}
        self.in_body = any(not source.startswith("header:") for source in topic)
        self.topic_parents = {source.rpartition(".")[0] for source in topic}
        identity = self._best(self._id_score)
        resource = self._best(lambda source, texts: 0 if source in identity else self._resource_score(source, texts))
        return Sources(
            topic=topic,
            id=identity,
            resource_id=resource,
            data=self._data(resource),
            occurred=self._best(_time_score),
            store=self._best(_store_score),
        )

    def _texts(self, source: str) -> Texts:
        return tuple(values[source] for values in self.values if source in values)

    def _best(self, score: Score) -> tuple[str, ...]:
        """The source with the highest score; of those with equal values, one that is signed.

        If no source is in every capture, the best of each: events of several kinds may have different ones.
        """
        found = _highest(self.common, score)
        if not found:
            own = ({key: (text,) for key, text in one.items() if key not in self.common} for one in self.values)
            return tuple(dict.fromkeys(source for values in own if (source := _highest(values, score))))
        equal = [key for key, texts in self.common.items() if texts == self.common[found] and score(key, texts) > 0]
        return (found if self.signs(found) else next(filter(self.signs, equal), found),)

    def _id_score(self, source: str, texts: Texts) -> int:
        """How well a value names one delivery. It differs in captures with different bodies."""
        if any(is_time(text) or not text or len(text) > 128 or " " in text for text in texts):
            return 0
        if len(texts) == len(self.captures) and any(texts[left] == texts[right] for left, right in self.distinct):
            return 0
        name, owner = words(_last_name(source)), _owner(source)
        is_header = source.startswith("header:")
        if source in ("header:webhook-id", "header:svix-id") or (is_header and name[-1:] == ["delivery"]):
            score = 12
        elif owner in _OTHER_IDS or not name or name[-1] not in (("key",) if owner == "idempotency" else _KEYS):
            score = 0
        elif owner in _DELIVERY_WORDS:
            score = _DELIVERY_WORDS[owner] - source.count(".")
        elif source in _OWN_IDS:
            score = 6 if self.in_body and self._has_envelope(texts) else 0
        elif "event" in words(source.rpartition(".")[0]) and source.rpartition(".")[0] in self.topic_parents:
            score = 8
        else:  # a header with another name: only if it is signed, and was seen to differ
            is_proven = is_header and self.distinct and self.signs(source)
            score = 4 if is_proven and owner not in self.topic_words else 0
        return score

    def _has_envelope(self, texts: Texts) -> bool:
        """Whether the resource is an object inside of the document, which then has an id of its own."""
        about = self.topic_words.union(DATA_KEYS)
        inner = [
            key for key in self.common if "." in key and words(_last_name(key))[-1:] == ["id"] and _owner(key) in about
        ]
        return any(self.common[key] != texts for key in inner) or all(map(_data_key, self.documents))

    def _resource_score(self, source: str, texts: Texts) -> int:
        """How well a value names what the event is about: best if its owner is a word of the topic."""
        name, owner = words(_last_name(source)), _owner(source)
        if name[-1:] == [] or name[-1] not in _ID_WORDS or not all(texts) or any(" " in text for text in texts):
            return 0
        is_header = source.startswith("header:")
        if owner in self.topic_words:
            score = 9
        elif owner in _DELIVERY_WORDS or owner in _OTHER_IDS:
            score = 0
        elif source in _OWN_IDS and self.in_body and self._has_envelope(texts):
            score = 1
        elif owner in DATA_KEYS:
            score = 8
        elif is_header:
            score = 0
        else:
            score = 6 if not owner else 5 if source[5:].startswith(DATA_KEYS) else 3
        weak = 4 if name[-1] in ("key", "number", "reference") else 0
        return max(score - weak - max(source.count(".") - 1, 0), 0)

    def _data(self, resource: tuple[str, ...]) -> tuple[str, ...]:
        """The object that has the resource's id, else the one with a usual name, else the whole body."""
        if any(one.form for one in self.captures):
            return ("form",)
        parents = [source.rpartition(".")[0] for source in resource if source.startswith("json:") and "." in source]
        usual = [f"json:{key}" for key in map(_data_key, self.documents) if key]
        return tuple(dict.fromkeys([*(parents or usual), "body"]))


def _highest(values: Mapping[str, Texts], score: Score) -> str:
    """The source with the highest score, the first of several; empty if none scores."""
    best = max(values, key=lambda source: score(source, values[source]), default="")
    return best if best and score(best, values[best]) > 0 else ""


def _last_name(source: str) -> str:
    kind, path = source.split(":", 1)
    return path.rpartition(".")[2] if kind == "json" else path


def _owner(source: str) -> str:
    """The word that says whose id it is: order in `order_id`, in `x-order-id` and in `order.id`."""
    before = words(_last_name(source))[:-1]
    if not before and source.startswith("json:"):
        before = words(source[5:].rpartition(".")[0])
    return before[-1] if before else ""


def _words_of_topic(text: str) -> set[str]:
    """The words that say what an event is about. `store/order/created` is about an order."""
    about = {word for part in normalise(text).split(".") for word in words(part)} - {"event", "webhook"}
    return about - {"store", "shop"} if len(about) > 2 else about


def _topic_score(source: str, texts: Texts) -> int:
    """How well a value names what happened: words with separators, at a place with a name like `event_type`."""
    if not all(_TOPIC.fullmatch(text) and len(text) <= 80 and not _RANDOM.fullmatch(text) for text in texts):
        return 0
    parts, parents = words(_last_name(source)), source[5:].split(".")[:-1] if source.startswith("json:") else []
    is_named = bool({"event", "hook", "webhook"} & set(parts))
    if not parts or (_NOT_A_TOPIC - (_ABOUT_EVENT if is_named else set())) & set(parts):
        score = 0
    elif parts[-1] in _TOPIC_NAMES or parts[-1] in _ABOUT_EVENT:
        score = max(_TOPIC_NAMES.get(word, 0) for word in parts)
    else:
        score = 0
    if not score:  # another name: only if the value says itself that something happened
        is_said = all(_SEPARATED.fullmatch(text) and words(text)[-1] in ACTIONS for text in texts)
        return 1 if is_said and not parents and not source.startswith("header:") else 0
    score += sum(2 if _SEPARATED.fullmatch(text) else 0 for text in texts[:1])
    score += 3 if all(words(text)[-1] in ACTIONS for text in texts) else 0
    score -= 2 if any(set(words(text)) <= _GENERIC for text in texts) else 0
    score -= 4 if _OF_RESOURCE & set(parts) else 0
    score -= 0 if parents and parents[-1] in _ENVELOPES else 3 * len(parents)
    return score


def _time_score(source: str, texts: Texts) -> int:
    parts = words(_last_name(source))
    if not all(map(is_time, texts)) or _OTHER_TIMES & set(parts):
        return 0
    score = max((_TIME_NAMES.get(word, 0) for word in parts), default=0)
    return score and 3 * score - 2 * source.count(".")


def _store_score(source: str, texts: Texts) -> int:
    """How well a value names the store. It is equal in every capture."""
    parts = words(_last_name(source))
    if len(set(texts)) > 1 or not parts or is_time(texts[0]) or source.count(".") > 1:
        return 0
    if parts[-1] == "domain":
        return 4
    if _STORE_WORDS & set(parts[-1:]):
        return 2
    return 3 if parts[-1] in ("id", "key", "hash") and _STORE_WORDS & set(parts[-2:-1]) else 0


def _data_key(document: Any) -> str:
    return next((key for key in DATA_KEYS if isinstance(follow(document, key), dict)), "")
