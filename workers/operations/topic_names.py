"""Topic names: the event names that stores really send, the topics they are mapped to, and their handlers. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from receiver.contract.signing.grammar import Scheme
from receiver.contract.signing.signatures import PRESETS
from receiver.contract.topics import PROBE, MappedBy, mapped_by, matches, translate
from receiver.inbox import Declaration
from receiver.inbox.queries.events import EventName
from workers.plugins.router import wanted_by
from workers.storeapi.sandbox.shop import TOPICS

USUAL = "order.created"


@dataclass(frozen=True)
class SentName:
    """An event name that a store has sent."""

    store: str
    theirs: str
    topic: str
    mapped_by: MappedBy
    seen: int
    last_at: datetime
    handlers: tuple[str, ...]


@dataclass(frozen=True)
class Unsent:
    """A topic that a handler listens to and no store has sent."""

    topic: str
    handler: Declaration
    nearest: str


def sent_names(
    store: str, scheme: Scheme, seen: Iterable[EventName], handlers: Iterable[Declaration]
) -> Iterator[SentName]:
    """The names that one store has sent, in the given order."""
    handlers = list(handlers)
    for name in seen:
        topic = translate(name.theirs, scheme.topics) if name.theirs else ""
        if topic == PROBE:  # sent by our own check
            continue
        takers = sorted(wanted_by(handlers, topic=topic, store=store)) if topic else []
        by = mapped_by(name.theirs, scheme.topics, scheme.configured)
        yield SentName(store, name.theirs, topic, by, name.seen, name.last_at, tuple(takers))


def unsent(handlers: Iterable[Declaration], names: Iterable[SentName]) -> Iterator[Unsent]:
    """The topics of handlers that no store has sent, each with the most similar topic that was sent."""
    sent = sorted({name.topic for name in names if name.topic})
    for handler in handlers:
        for pattern in handler.topics:
            if not any(matches(pattern, topic) for topic in sent):
                near = difflib.get_close_matches(pattern, sent, n=1, cutoff=0.4)
                yield Unsent(pattern, handler, near[0] if near else "")


def known_topics(schemes: Iterable[Scheme]) -> set[str]:
    """The topics that stores with these schemes may send. If a scheme has no topic map, those of the sandbox and of all
    presets count."""
    maps = [scheme.topics for scheme in schemes]
    if all(maps):
        return {topic for one in maps for topic in one.values()}
    maps += [preset.topics for preset in PRESETS.values()]
    return {*TOPICS, *(topic for one in maps for topic in one.values())}


def sendable(schemes: Mapping[str, Scheme], handlers: Sequence[Declaration] | None) -> tuple[str, str] | None:
    """A store and a topic that it may send, for these handlers if they are given. If possible, order.created."""
    named = {topic for one in handlers or () for topic in one.topics if "*" not in topic}
    sent = {(store, topic) for store, scheme in schemes.items() for topic in known_topics([scheme])}
    for pairs in (sent, {(store, topic) for store in schemes for topic in named}):
        wanted = [pair for pair in pairs if handlers is None or wanted_by(handlers, store=pair[0], topic=pair[1])]
        if wanted:
            return min(wanted, key=lambda pair: (pair[1] != USUAL, not pair[1].endswith(".created"), *pair))
    return None


def nearest_pattern(pattern: str, known: Iterable[str]) -> str:
    """The topic, or `order.*`, that is most similar to a pattern; empty if a known topic matches it, or none is."""
    known = set(known)
    if any(matches(pattern, topic) for topic in known):
        return ""
    return nearest_topic(pattern, known | {f"{topic.partition('.')[0]}.*" for topic in known})


def nearest_topic(topic: str, known: Iterable[str]) -> str:
    """The known topic that is most similar; empty if none is."""
    return next(iter(difflib.get_close_matches(topic, sorted(known), n=1, cutoff=0.6)), "")
