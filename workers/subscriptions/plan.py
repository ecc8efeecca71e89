"""Plan: compares the subscriptions that handlers need with those at the store, and lists the changes to make.

Rule of this module: it is pure, except for `list_subscriptions` and `offered_topics`, which only read the store's API.
Subscriptions of others are never changed. `workers.subscriptions.apply` makes the changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

from receiver.contract.diagnosis.formatting import counted, some, span
from receiver.contract.records import Record, Subscription
from receiver.contract.stores import Store
from receiver.contract.topics import matches, their_names, translate
from receiver.inbox import Declaration
from workers.plugins.router import wanted_by
from workers.storeapi.client import Client
from workers.storeapi.errors import ApiError
from workers.storeapi.transport.http import host_of
from workers.subscriptions.callback_urls import CallbackUrls, Ownership, public_url_in

Action = Literal["create", "enable", "update", "delete"]
ORDER: tuple[Action, ...] = ("create", "enable", "update", "delete")
PRESENT = timedelta(minutes=15)
EVERYTHING = "*"
"""A subscription with this name covers every topic, so no other is needed."""


@dataclass(frozen=True)
class Offer:
    """The event names that a store offers, and where they were read."""

    names: tuple[str, ...]
    source: Literal["store", "seen"] = "store"
    note: str = ""
    """If the store did not list them: why, and what is used instead."""


@dataclass(frozen=True)
class WantedName:
    """One of the store's names to subscribe to, and for which handlers."""

    theirs: str
    topic: str
    why: str
    """`for loyalty.award`, or the line of config."""


@dataclass(frozen=True)
class Unoffered:
    """A topic that a handler or the config asks for and the store does not offer."""

    pattern: str
    why: str


@dataclass(frozen=True)
class Wanted:
    store: str
    names: tuple[WantedName, ...]
    url: str = ""
    unoffered: tuple[Unoffered, ...] = ()
    note: str = ""
    known: bool = True
    """False until a worker has declared its handlers; until then no subscription counts as unwanted."""


@dataclass(frozen=True)
class Existing:
    """A subscription as the store lists it."""

    id: int | str
    theirs: str
    url: str
    enabled: bool
    ownership: Ownership
    topic: str = ""
    """Our topic for `theirs`, the store's name."""

    @property
    def is_ours(self) -> bool:
        return self.ownership in ("current", "former")


@dataclass(frozen=True)
class Change:
    action: Action
    topic: str
    theirs: str
    reason: str
    id: int | str = ""
    """Of the subscription at the store; empty for a new one."""
    url: str = ""
    """The callback URL that it gets."""
    rotate: bool = False
    """Whether it gets a new secret."""


@dataclass(frozen=True)
class Handlers:
    """The declarations of workers, each with the time of the last one."""

    declared: tuple[tuple[Declaration, datetime], ...] = ()

    @property
    def known(self) -> bool:
        return bool(self.declared)

    @cached_property
    def present(self) -> tuple[Declaration, ...]:
        """Declared in the 15 minutes before the newest declaration. So a stop of all workers makes none absent."""
        newest = max((at for _, at in self.declared), default=datetime.min.replace(tzinfo=UTC))
        return tuple(one for one, at in self.declared if newest - at <= PRESENT)

    def gone(self, topic: str, store: str) -> datetime | None:
        """Since when a topic has had no handler: 15 minutes after its last declaration, which counts until then. If a
        handler gives up a topic, declare.lua sets that time back. None if one is present, or there never was one."""
        takers = [(one, at) for one, at in self.declared if wanted_by([one], topic=topic, store=store)]
        if not takers or any(one in self.present for one, _ in takers):
            return None
        return max(at for _, at in takers) + PRESENT


@dataclass(frozen=True)
class Plan:
    """One store: the changes to make, what is left alone, or why the store could not be read."""

    store: str
    changes: tuple[Change, ...] = ()
    foreign: Mapping[str, int] = field(default_factory=dict)
    """Number of subscriptions of others, by host. They are never changed."""
    unknown: str = ""
    """Why the store could not be read; then there are no changes."""
    wanted: Wanted | None = None
    existing: tuple[Existing, ...] = ()
    """Our subscriptions at the store."""
    listed: frozenset[str] = frozenset()
    """The ids of all subscriptions at the store, ours or not."""
    earlier: tuple[Existing, ...] = ()
    """Those with a URL that was ours at an earlier check. Nothing is created for their topics: if they are ours, each
    event would arrive twice."""
    lost: frozenset[str] = frozenset()
    """The ids of the subscriptions whose secret may be lost."""
    notice: str | None = None
    """The mark of the change notice that another process has left."""

    @property
    def summary(self) -> str:
        """How many subscriptions are wanted, exist and are held back; or that there is nothing to do."""
        text = f"{len(self.wanted.names) if self.wanted else 0} wanted, {len(self.existing)} exist"
        if self.earlier:
            return f"{text}, {len(self.earlier)} held back"
        return text if self.changes else f"{text}, nothing to do"

    @property
    def held_back(self) -> str:
        """Why nothing is created for some topics, and on the next line the fix."""
        if not self.earlier:
            return ""
        which, fix = held_back_texts(self.store, self.earlier)
        lost = sum(str(one.id) in self.lost for one in self.earlier)
        more = f", and the secret of {lost} of them may be lost" if lost else ""
        return f"{which}; with a second one, each event would arrive twice, so none is created{more}\n{fix}"

    @property
    def foreign_texts(self) -> list[str]:
        """Whose the other subscriptions are, a text for each host."""
        return [
            f"{number} of {host} {'is not ours and stays' if number == 1 else 'are not ours and stay'}"
            for host, number in sorted(self.foreign.items())
        ]

    @property
    def without_deletions(self) -> tuple[Change, ...]:
        """A deletion cannot be undone: a new subscription may have another secret, and there is a gap."""
        return tuple(change for change in self.changes if change.action != "delete")

    def as_json(self) -> dict[str, Any]:
        """The store's entry in `subscriptions plan --json`."""
        return {
            "store": self.store,
            "wanted": len(self.wanted.names) if self.wanted else None,
            "existing": len(self.existing),
            "foreign": dict(self.foreign),
            "held_back": self.held_back or None,
            "unoffered": [one.pattern for one in self.wanted.unoffered] if self.wanted else [],
            "note": self.wanted.note if self.wanted else "",
            "unknown": self.unknown or None,
        }


def held_back_texts(store: str, earlier: Sequence[Existing]) -> tuple[str, str]:
    """Which subscriptions are held back, and the fix."""
    urls = sorted({one.url for one in earlier})
    bases = [f'"{base}"' for base in dict.fromkeys(public_url_in(url, store) for url in urls) if base]
    setting = f"set [receiver] former_urls = [{', '.join(bases)}] if these were yours, or " if bases else ""
    which = f"{counted(len(earlier), 'subscription')} for {some(urls)}, our URL at an earlier check"
    return which, f"{setting}delete them at the store"


# Wanted


def wanted_topics(
    store: Store,
    declarations: Iterable[Declaration],
    offer: Offer,
    *,
    subscribe: Sequence[str] = (),
    known: bool = True,
    existing: Iterable[str] = (),
) -> Wanted:
    """The store's names that handlers listen to, plus or minus `subscribe`, of which later entries win.

    `existing` are the names of our subscriptions. One that a handler listens to stays wanted, even if the store does
    not offer it.
    """
    asked = [
        (pattern, f"for {one.handler}")
        for one in declarations
        if any(matches(stores, store.name) for stores in one.stores)
        for pattern in one.topics
    ]
    asked += [(pattern, "for [stores] subscribe") for pattern in subscribe if not pattern.startswith("-")]
    topics = {theirs: translate(theirs, store.scheme.topics) for theirs in _names(store, offer, asked, existing)}
    chosen: dict[str, str] = {}
    for pattern, why in asked:
        for theirs in _matching(pattern, topics):
            chosen[theirs] = _joined(chosen.get(theirs, ""), why)
    _apply_subscribe(subscribe, topics, chosen)
    missing = (Unoffered(pattern, why) for pattern, why in dict.fromkeys(asked) if not _matching(pattern, topics))
    return Wanted(
        store.name,
        tuple(
            WantedName(theirs, topics[theirs], chosen[theirs]) for theirs in sorted(chosen, key=lambda one: topics[one])
        ),
        url=store.url,
        unoffered=tuple(missing),
        note=offer.note,
        known=known,
    )


def _names(store: Store, offer: Offer, asked: Iterable[tuple[str, str]], existing: Iterable[str]) -> list[str]:
    """The names that exist or can be subscribed to. If the store lists none, its scheme's topic map is reversed."""
    names = [*offer.names, *existing]
    if offer.source != "store":
        names += [theirs for pattern, _ in asked for theirs in their_names(pattern, store.scheme.topics)]
    return [theirs for theirs in dict.fromkeys(names) if theirs != EVERYTHING]


def _matching(pattern: str, topics: Mapping[str, str]) -> list[str]:
    """The names whose topic matches the pattern. The pattern may also be the store's own name."""
    return [theirs for theirs, topic in topics.items() if matches(pattern, topic) or pattern == theirs]


def _apply_subscribe(subscribe: Sequence[str], topics: Mapping[str, str], chosen: dict[str, str]) -> None:
    for entry in subscribe:
        for theirs in _matching(entry.removeprefix("-"), topics):
            if entry.startswith("-"):
                chosen.pop(theirs, None)
            else:
                chosen.setdefault(theirs, "for [stores] subscribe")


def _joined(first: str, second: str) -> str:
    if not first or second in first.split(", "):
        return first or second
    return f"{first}, {second.removeprefix('for ')}"


# The plan


def make_plan(
    wanted: Wanted, existing: Iterable[Existing], *, gone: Callable[[str], datetime | None] = lambda _: None
) -> Plan:
    """The changes that turn `existing` into what is wanted. `gone` returns since when a topic has had no handler."""
    existing = list(existing)
    ours = [one for one in existing if one.is_ours]
    earlier = tuple(one for one in existing if one.ownership == "earlier")
    changes = [*_for_wanted(wanted, ours, earlier), *_for_unwanted(wanted, ours, gone)]
    foreign = Counter(host_of(one.url) or "?" for one in existing if one.ownership == "foreign")
    changes.sort(key=lambda change: (ORDER.index(change.action), change.topic, change.theirs))
    listed = frozenset(str(one.id) for one in existing)
    return Plan(
        wanted.store, tuple(changes), dict(foreign), wanted=wanted, existing=tuple(ours), listed=listed, earlier=earlier
    )


def _for_wanted(wanted: Wanted, ours: Sequence[Existing], earlier: Sequence[Existing]) -> Iterator[Change]:
    held_back = {one.theirs for one in earlier}
    everything = EVERYTHING in held_back or any(_is_active(one) for one in ours if one.theirs == EVERYTHING)
    for name in wanted.names:
        found = sorted((one for one in ours if one.theirs == name.theirs), key=_repairs_needed)
        if found:
            yield from _repairs(name, found[0], wanted.url)
        elif not everything and name.theirs not in held_back:
            yield Change("create", name.topic, name.theirs, name.why, url=wanted.url)


def _is_active(one: Existing) -> bool:
    return one.enabled and one.ownership == "current"


def _repairs_needed(one: Existing) -> tuple[bool, bool]:
    """To sort by: of several for one topic, the one that needs the fewest changes stays."""
    return one.ownership != "current", not one.enabled


def _repairs(name: WantedName, best: Existing, url: str) -> Iterator[Change]:
    if best.ownership == "former":
        yield Change("update", name.topic, name.theirs, f"{host_of(best.url)} (former url) -> ours", best.id, url)
    elif not best.enabled:
        yield Change("enable", name.topic, name.theirs, "disabled at the store", best.id, url)


def _for_unwanted(wanted: Wanted, ours: Sequence[Existing], gone: Callable[[str], datetime | None]) -> Iterator[Change]:
    names = {name.theirs: name.topic for name in wanted.names}
    seen: set[str] = set()
    for one in sorted(ours, key=_repairs_needed):
        if one.theirs in names:
            if one.theirs in seen:
                yield Change("delete", names[one.theirs], one.theirs, "a duplicate", one.id)
            seen.add(one.theirs)
        elif wanted.known and not (one.theirs == EVERYTHING and names):
            since = gone(one.topic)
            reason = f"no handler since {since:%d %b}" if since else "no handler wants it"
            yield Change("delete", one.topic, one.theirs, reason, one.id)


def with_gaps(before: Plan, last: Mapping[str, float], now: float) -> Plan:
    """The same plan; the reason of each disabled subscription says how long ago its last delivery was."""
    changes = [
        replace(change, reason=f"disabled; no delivery for {span(now - last[change.theirs])}")
        if change.action == "enable" and change.theirs in last
        else change
        for change in before.changes
    ]
    return replace(before, changes=tuple(changes))


def with_new_secrets(before: Plan, why: str) -> Plan:
    """The same plan, and a new secret for each of our subscriptions whose secret may be lost.

    Also for one that is to be deleted: the deletion may be postponed or fail, and until then its deliveries go on.
    """
    rotations = [
        Change("update", one.topic, one.theirs, f"a new secret: {why}", one.id, rotate=True)
        for one in before.existing
        if str(one.id) in before.lost
    ]
    return replace(before, changes=(*before.changes, *rotations))


# What the store lists


def offered_topics(client: Client, fallback: Callable[[], Iterable[str]]) -> Offer:
    """The store's own list of event names; if it has none, those of the fallback, with a note."""
    try:
        return Offer(tuple(dict.fromkeys(_name_in(record) for record in client.webhooks.list_topics())))
    except ApiError as error:
        reason = error.reason.splitlines()[0]
        note = f"the store does not list its topics ({reason}); using those seen in deliveries and in the config"
        return Offer(tuple(dict.fromkeys(fallback())), "seen", note)


def _name_in(record: Record) -> str:
    names = [record.get(key) for key in (record.field_name("topic"), "topic", "name", "id")]
    return next((str(name) for name in names if name), "?")


def list_subscriptions(client: Client, urls: CallbackUrls, topics: Mapping[str, str]) -> list[Existing]:
    """Every subscription that the API lists, ours and others'; `topics` is the scheme's topic map."""
    return [_existing(one, urls, topics) for one in client.webhooks.list()]


def _existing(one: Subscription, urls: CallbackUrls, topics: Mapping[str, str]) -> Existing:
    return Existing(one.id, one.topic, one.url, one.enabled, urls.ownership(one.url), translate(one.topic, topics))
