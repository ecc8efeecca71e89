"""Subscriptions: what a store should tell us of, what it does tell us of, and the changes between the two.

Law of this room: pure, but for `actual` and `offered`, which only read the store's API. What is not ours is never
in a change. `workers.subscriptions.apply` carries changes out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit

from receiver.config import Config
from receiver.contract.records import Record, Subscription
from receiver.contract.stores import Store
from receiver.contract.topics import matches, their_names, translate
from receiver.inbox import Declaration
from workers.plugins.router import wanted_by
from workers.storeapi.client import Client
from workers.storeapi.errors import ApiError

Action = Literal["create", "enable", "update", "delete"]
ORDER: tuple[Action, ...] = ("create", "enable", "update", "delete")
PRESENT = timedelta(minutes=15)
EVERYTHING = "*"
"""A subscription of this name is of every topic; a store that knows it needs no other."""


@dataclass(frozen=True)
class Offer:
    """The names a store has for its events, and how we know them."""

    names: tuple[str, ...]
    source: Literal["store", "seen"] = "store"
    note: str = ""
    """Where the store would not tell: why, and what is used in its place."""


@dataclass(frozen=True)
class Name:
    """One of the store's names that we want to be told of, and for whom."""

    theirs: str
    topic: str
    why: str
    """`for loyalty.award`, or the line of config."""


@dataclass(frozen=True)
class Unoffered:
    """Something a handler or config asks for and the store has no name for."""

    pattern: str
    why: str


@dataclass(frozen=True)
class Wanted:
    store: str
    names: tuple[Name, ...]
    url: str = ""
    unoffered: tuple[Unoffered, ...] = ()
    note: str = ""
    known: bool = True
    """False while no worker has ever said what its handlers want: then nothing is called unwanted."""


@dataclass(frozen=True)
class Ours:
    """Which callbacks are ours: the one we use now, and those we used before."""

    url: str
    also: tuple[str, ...] = ()
    """As good as `url`: the address of all stores."""
    former: tuple[str, ...] = ()

    def standing(self, callback: str) -> Literal["current", "former", "foreign"]:
        given = _same_form(callback)
        if given in map(_same_form, (self.url, *self.also)):
            return "current"
        return "former" if given in map(_same_form, self.former) else "foreign"


@dataclass(frozen=True)
class There:
    """A subscription as the store lists it."""

    id: int | str
    theirs: str
    url: str
    enabled: bool
    standing: Literal["current", "former", "foreign"]
    topic: str = ""
    """Our word for `theirs`."""


@dataclass(frozen=True)
class Change:
    action: Action
    topic: str
    theirs: str
    reason: str
    id: int | str = ""
    """Of the subscription at the store; empty for one that is to be created."""
    url: str = ""
    """What its callback shall be."""
    rotate: bool = False
    """Its secret is made anew."""


@dataclass(frozen=True)
class Handlers:
    """What workers have declared, each with when that was last."""

    declared: tuple[tuple[Declaration, datetime], ...] = ()

    @property
    def known(self) -> bool:
        return bool(self.declared)

    @cached_property
    def present(self) -> tuple[Declaration, ...]:
        """Those of the last 15 minutes, counted from the newest: that all workers are stopped says nothing."""
        newest = max((at for _, at in self.declared), default=datetime.min.replace(tzinfo=UTC))
        return tuple(one for one, at in self.declared if newest - at <= PRESENT)

    def gone(self, topic: str, store: str) -> datetime | None:
        """When the last handler that wanted a topic was last there; None if one is, or none ever was."""
        wanted_it = [(one, at) for one, at in self.declared if wanted_by([one], topic=topic, store=store)]
        if not wanted_it or any(one in self.present for one, _ in wanted_it):
            return None
        return max(at for _, at in wanted_it)


@dataclass(frozen=True)
class Plan:
    """One store: what is to be done, what stays untouched, and why we may not know."""

    store: str
    changes: tuple[Change, ...] = ()
    foreign: Mapping[str, int] = field(default_factory=dict)
    """Subscriptions of others, by host. They stay."""
    unknown: str = ""
    """Why the store could not be looked at; then there are no changes."""
    wanted: Wanted | None = None
    there: tuple[There, ...] = ()
    """Ours at the store, now."""
    listed: frozenset[str] = frozenset()
    """The ids of all that are there, ours or not."""

    @property
    def gentle(self) -> tuple[Change, ...]:
        """Everything but deleting, which cannot be undone: a new subscription may have another secret, and a gap."""
        return tuple(change for change in self.changes if change.action != "delete")

    def as_json(self) -> dict[str, Any]:
        """The store's line of `subscriptions plan --json`."""
        return {
            "store": self.store,
            "wanted": len(self.wanted.names) if self.wanted else None,
            "there": len(self.there),
            "foreign": dict(self.foreign),
            "unoffered": [one.pattern for one in self.wanted.unoffered] if self.wanted else [],
            "note": self.wanted.note if self.wanted else "",
            "unknown": self.unknown or None,
        }


# Wanted


def wanted(
    store: Store,
    declarations: Iterable[Declaration],
    offer: Offer,
    *,
    subscribe: Sequence[str] = (),
    known: bool = True,
    there: Iterable[str] = (),
) -> Wanted:
    """The names of a store that its handlers listen to, plus or minus `subscribe`; later entries of that win.

    `there` are the names of our subscriptions: one that somebody listens to is wanted, whatever the store offers.
    """
    asked = [
        (pattern, f"for {one.handler}")
        for one in declarations
        if any(matches(stores, store.name) for stores in one.stores)
        for pattern in one.topics
    ]
    asked += [(pattern, "for [stores] subscribe") for pattern in subscribe if not pattern.startswith("-")]
    topics = {theirs: translate(theirs, store.scheme.topics) for theirs in _names(store, offer, asked, there)}
    chosen: dict[str, str] = {}
    for pattern, why in asked:
        for theirs in _fitting(pattern, topics):
            chosen[theirs] = _both(chosen.get(theirs, ""), why)
    _apply_subscribe(subscribe, topics, chosen)
    missing = (Unoffered(pattern, why) for pattern, why in dict.fromkeys(asked) if not _fitting(pattern, topics))
    return Wanted(
        store.name,
        tuple(Name(theirs, topics[theirs], chosen[theirs]) for theirs in sorted(chosen, key=lambda one: topics[one])),
        url=store.url,
        unoffered=tuple(missing),
        note=offer.note,
        known=known,
    )


def _names(store: Store, offer: Offer, asked: Iterable[tuple[str, str]], there: Iterable[str]) -> list[str]:
    """What can be subscribed, or is. A store that tells has the last word; else its scheme's map is used backwards."""
    names = [*offer.names, *there]
    if offer.source != "store":
        names += [theirs for pattern, _ in asked for theirs in their_names(pattern, store.scheme.topics)]
    return [theirs for theirs in dict.fromkeys(names) if theirs != EVERYTHING]


def _fitting(pattern: str, topics: Mapping[str, str]) -> list[str]:
    """Our pattern against our topics; somebody may also write the store's own name."""
    return [theirs for theirs, topic in topics.items() if matches(pattern, topic) or pattern == theirs]


def _apply_subscribe(subscribe: Sequence[str], topics: Mapping[str, str], chosen: dict[str, str]) -> None:
    for entry in subscribe:
        for theirs in _fitting(entry.removeprefix("-"), topics):
            if entry.startswith("-"):
                chosen.pop(theirs, None)
            else:
                chosen.setdefault(theirs, "for [stores] subscribe")


def _both(first: str, second: str) -> str:
    if not first or second in first.split(", "):
        return first or second
    return f"{first}, {second.removeprefix('for ')}"


# The plan


def plan(wanted: Wanted, actual: Iterable[There], *, gone: Callable[[str], datetime | None] = lambda _: None) -> Plan:
    """The changes that make `actual` what is wanted. `gone` says since when no handler has wanted a topic."""
    actual = list(actual)
    ours = [one for one in actual if one.standing != "foreign"]
    changes = [*_for_wanted(wanted, ours), *_for_unwanted(wanted, ours, gone)]
    foreign = Counter(urlsplit(one.url).hostname or "?" for one in actual if one.standing == "foreign")
    changes.sort(key=lambda change: (ORDER.index(change.action), change.topic, change.theirs))
    listed = frozenset(str(one.id) for one in actual)
    return Plan(wanted.store, tuple(changes), dict(foreign), wanted=wanted, there=tuple(ours), listed=listed)


def _for_wanted(wanted: Wanted, ours: Sequence[There]) -> Iterator[Change]:
    everything = any(_alive(one) for one in ours if one.theirs == EVERYTHING)
    for name in wanted.names:
        found = sorted((one for one in ours if one.theirs == name.theirs), key=_worse)
        if found:
            yield from _mended(name, found[0], wanted.url)
        elif not everything:
            yield Change("create", name.topic, name.theirs, name.why, url=wanted.url)


def _alive(one: There) -> bool:
    return one.enabled and one.standing == "current"


def _worse(one: There) -> tuple[bool, bool]:
    """What needs the least is kept."""
    return one.standing != "current", not one.enabled


def _mended(name: Name, best: There, url: str) -> Iterator[Change]:
    if best.standing == "former":
        host = urlsplit(best.url).hostname
        yield Change("update", name.topic, name.theirs, f"{host} (former url) -> ours", best.id, url)
    elif not best.enabled:
        yield Change("enable", name.topic, name.theirs, "disabled at the store", best.id, url)


def _for_unwanted(wanted: Wanted, ours: Sequence[There], gone: Callable[[str], datetime | None]) -> Iterator[Change]:
    names = {name.theirs: name.topic for name in wanted.names}
    kept: set[str] = set()
    for one in sorted(ours, key=_worse):
        if one.theirs in names:
            if one.theirs in kept:
                yield Change("delete", names[one.theirs], one.theirs, "there is another of the same", one.id)
            kept.add(one.theirs)
        elif wanted.known and not (one.theirs == EVERYTHING and names):
            since = gone(one.topic)
            reason = f"no handler since {since:%d %b}" if since else "no handler wants it"
            yield Change("delete", one.topic, one.theirs, reason, one.id)


def with_gaps(before: Plan, last: Mapping[str, float], now: float) -> Plan:
    """The same plan, with since when nothing has come of what is disabled."""
    changes = [
        replace(change, reason=f"disabled; nothing came for {in_words(now - last[change.theirs])}")
        if change.action == "enable" and change.theirs in last
        else change
        for change in before.changes
    ]
    return replace(before, changes=tuple(changes))


def in_words(seconds: float) -> str:
    """A length of time for people: `12 s`, `2 h 51 min`, `3 d 4 h`."""
    whole = int(max(0.0, seconds))
    days, hours, minutes = whole // 86400, whole % 86400 // 3600, whole % 3600 // 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{whole} s"


def remade(before: Plan) -> Plan:
    """The same plan where a secret was under way when its process ended: what is ours there gets a new one."""
    deleted = {change.id for change in before.changes if change.action == "delete"}
    reason = "its secret was under way when a process ended; a new one"
    anew = [
        Change("update", one.topic, one.theirs, reason, one.id, rotate=True)
        for one in before.there
        if one.standing == "current" and one.id not in deleted
    ]
    return replace(before, changes=(*anew, *before.changes))


# What the store says


def offered(client: Client, fallback: Callable[[], Iterable[str]]) -> Offer:
    """The store's own list of names; where it has none, those of the fallback, and a note that says so."""
    try:
        return Offer(tuple(dict.fromkeys(_name_in(record) for record in client.webhooks.list_topics())))
    except ApiError as error:
        note = f"the store does not list its topics ({error.reason.splitlines()[0]}); taken from those seen and config"
        return Offer(tuple(dict.fromkeys(fallback())), "seen", note)


def _name_in(record: Record) -> str:
    names = [record.get(key) for key in (record.field_name("topic"), "topic", "name", "id")]
    return next((str(name) for name in names if name), "?")


def actual(client: Client, ours: Ours, topics: Mapping[str, str] | None = None) -> list[There]:
    """Every subscription the API lists, ours and others'; `topics` is the scheme's map of names."""
    return [_there(one, ours, topics or {}) for one in client.webhooks.list()]


def _there(one: Subscription, ours: Ours, topics: Mapping[str, str]) -> There:
    return There(one.id, one.topic, one.url, one.enabled, ours.standing(one.url), translate(one.topic, topics))


def ours_of(config: Config, store: str) -> Ours:
    """The callbacks of a store that are ours, by config."""
    base, given = config.receiver.public_url.rstrip("/"), config.stores[store].url
    former = [f"{url.rstrip('/')}/webhooks{end}" for url in config.receiver.former_urls for end in (f"/{store}", "")]
    former += [f"{base}/webhooks/{store}"] if given else []
    return Ours(config.public_url_of(store), (f"{base}/webhooks",), tuple(former))


def _same_form(url: str) -> str:
    """One callback, however it is written: the case of the host, a port that goes without saying, a last slash."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return url
    default = {"https": 443, "http": 80}.get(parts.scheme.lower())
    host = (parts.hostname or "") + (f":{port}" if port and port != default else "")
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme.lower()}://{host}{parts.path.rstrip('/')}{query}"
