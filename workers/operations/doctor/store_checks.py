"""The checks of the stores: credentials, clock, secrets, what was refused, what their schemes cannot promise. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from receiver.contract.diagnosis.explain import caveats
from receiver.inbox.subscription_checks import Checked
from receiver.spool import UNKNOWN, RefusedOf
from workers.formatting import clock, counted, some, span
from workers.operations.doctor.facts import ApiFacts, Facts
from workers.operations.doctor.findings import Finding, fail, ok, warn
from workers.subscriptions.apply import is_managed

SKEW_SECONDS = 30.0
ENDS_SOON = 24 * 3600.0
LATE = 3
"""A store that was not looked at for so many checks was forgotten."""
NO_API = ApiFacts("late")
FOLD = 20
"""With more fine stores than this, they share a line."""


def check_stores(facts: Facts) -> Iterator[Finding]:
    fine, found = [], []
    for name in sorted(facts.config.stores):
        problems = list(_problems(facts, name))
        found += problems
        if not any(one.level == "fail" for one in problems):
            fine.append(name)
    yield from _folded(found)
    if len(fine) > FOLD:
        yield ok("stores", f"{len(fine):,} without a fault: {some(fine)}")
    else:
        yield from (ok(name, _summary(facts, name)) for name in fine)
    yield from _unasked(facts)
    yield from _strangers(facts)
    yield from _schemes(facts)


def _folded(found: list[Finding]) -> Iterator[Finding]:
    """What is true of many stores is said once."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for one in found:
        alike.setdefault((one.level, one.text), []).append(one)
    for same in alike.values():
        if len(same) <= FOLD:
            yield from same
        else:
            first, names = same[0], [one.name for one in same]
            text = f"{len(same):,} alike: {first.text} ({some(names)})"
            yield replace(first, name="stores", text=text, fix=first.fix.replace(first.name, "NAME"))


def _unasked(facts: Facts) -> Iterator[Finding]:
    if many := sum(api.state == "unasked" for api in facts.apis.values()):
        text = f"the APIs of {many:,} were not asked: no time, or a rate limit"
        yield warn("stores", text, fix="--timeout 1m asks more of them")


def _problems(facts: Facts, name: str) -> Iterator[Finding]:
    api = facts.apis.get(name, NO_API)
    yield from _secrets(facts, name)
    yield from _credentials(facts, name, api)
    yield from _clock(facts, name, api)
    yield from _subscriptions(facts, name)
    yield from _refused(facts, name)
    yield from _assumed(facts, name)


def _summary(facts: Facts, name: str) -> str:
    """What is good to know of a store that is fine."""
    api, parts = facts.apis.get(name, NO_API), []
    if api.state == "none":
        parts.append("no base_url, so its API is not used")
    elif api.state == "fine":
        parts.append("token given" if api.token_left is None else f"token {span(api.token_left)}")
    if checked := facts.inbox.checked.get(name) if facts.inbox else None:
        age = span(facts.now.timestamp() - checked.at)
        parts.append(f"{checked.wanted - _missing(checked)} of {checked.wanted} subscriptions ({age} ago)")
    last = facts.inbox.last_events.get(name) if facts.inbox else None
    if last:
        parts.append(f"last event {span((facts.now - last).total_seconds())} ago")
    elif facts.inbox:
        parts.append("nothing came yet")
    return ", ".join(parts) or "configured"


def _secrets(facts: Facts, name: str) -> Iterator[Finding]:
    """A store none of whose secrets is live refuses everything."""
    ends = [secret.not_after for secret in facts.config.known_stores[name].secrets]
    learned = facts.inbox.learned.get(name, 0) if facts.inbox else 1
    if not ends and not learned:
        text = "it has no signing secret: none in config, and none was learned yet"
        yield fail(name, text, fix=f"storehooks subscriptions apply --store {name}: the store shows one then")
    if not ends or None in ends or learned:
        return
    last = max(end for end in ends if end is not None)
    where = facts.config.place("stores", name, "signing_secrets")
    left = (last - facts.now).total_seconds()
    if left <= 0:
        text = f"its last signing secret ended {clock(last, facts.now)}: every delivery is refused"
        yield fail(name, text, fix=f"a live secret, or a later not_after, in {where}; then HUP")
    elif left < ENDS_SOON:
        text = f"its last signing secret ends in {span(left)}, and none follows"
        yield warn(name, text, fix=f"the next secret in {where}; then HUP")


def _credentials(facts: Facts, name: str, api: ApiFacts) -> Iterator[Finding]:
    base, auth = (facts.config.place("stores", name, key) for key in ("base_url", "auth"))
    match api.state:
        case "token":
            yield fail(name, f"no token: {api.reason}", fix=f"client_id and client_secret ({auth})")
        case "config":
            yield fail(name, api.reason, fix=str(auth or base))
        case "denied":
            yield fail(
                name, f"its API {api.reason}", fix=f"the rights of the app in the store's portal, or auth ({auth})"
            )
        case "unreachable":
            yield fail(name, f"its API gives {api.reason}", fix=f"base_url ({base}), or wait: the store may be down")
        case "answered":
            yield fail(name, f"its API: {api.reason}", fix=f"base_url ({base}), or storehooks api probe --store {name}")
        case "late":
            text = "its API did not answer in time"
            yield fail(name, text, fix=f"base_url ({base}), or wait: the store may be down; --timeout looks longer")


def _clock(facts: Facts, name: str, api: ApiFacts) -> Iterator[Finding]:
    """Deliveries that sign a time are refused when the clocks differ by more than the tolerance."""
    if api.ahead is None or abs(api.ahead) < SKEW_SECONDS:
        return
    scheme = facts.config.known_stores[name].scheme
    way = "ahead of" if api.ahead > 0 else "behind"
    text = f"its clock is {span(abs(api.ahead))} {way} ours"
    fix = "run NTP on this machine (`timedatectl`); if ours is right, ask the store"
    if scheme.timestamp and scheme.tolerance and abs(api.ahead) >= scheme.tolerance:
        yield fail(name, f"{text}, and {scheme.name} allows {scheme.tolerance} s: every delivery is refused", fix=fix)
    else:
        yield warn(name, text, fix=fix)


# Subscriptions, as the last look found them


def _subscriptions(facts: Facts, name: str) -> Iterator[Finding]:
    given, every = facts.config.stores[name], facts.config.subscriptions.check
    if facts.inbox is None or not is_managed(facts.config, name) or facts.apis.get(name, NO_API).state != "fine":
        return
    checked = facts.inbox.checked.get(name)
    age = facts.now.timestamp() - checked.at if checked else 0.0
    look = f"storehooks subscriptions plan --store {name}"
    if name in facts.inbox.removed:
        text = "it was removed by `storehooks stores remove` and is in the config; its subscriptions are not mended"
        yield fail(name, text, fix=f"storehooks subscriptions apply --store {name}, or delete it from the config")
    elif checked is None:
        wait = f"workers look every {span(every)}" if every else "[subscriptions] check is off"
        yield warn(name, f"nobody has looked at its subscriptions yet; {wait}", fix=look)
    elif checked.unknown:
        text = f"its subscriptions could not be looked at: {checked.unknown.splitlines()[0]}"
        yield fail(name, text, fix=f"{look}; base_url is {given.base_url}")
    elif _missing(checked):
        yield fail(name, _drift(checked), *_troubles(checked), fix=f"storehooks subscriptions apply --store {name}")
    elif checked.left:
        yield warn(name, _drift(checked), fix=f"{look}, then apply: deleting is left to people")
    elif every and age > LATE * every:
        text = f"its subscriptions were last looked at {span(age)} ago"
        yield warn(name, text, fix="the worker's log says why; are its workers alive?")


def _missing(checked: Checked) -> int:
    """Changes without which events do not come."""
    return sum(one.get("action") != "delete" for one in checked.left)


def _drift(checked: Checked) -> str:
    changes = [f"{one.get('action')} {one.get('topic')}" for one in checked.left]
    return f"{counted(checked.wanted, 'subscription')} wanted; not made: {some(changes)}"


def _troubles(checked: Checked) -> list[str]:
    return [f"{name}: {one.note}" for name, one in checked.trouble.items() if one.note][:3]


# Refused deliveries


def _refused(facts: Facts, name: str) -> Iterator[Finding]:
    of = next((one for one in facts.host.refused if one.store == name), None)
    if of is None:
        return
    looked, fit = facts.host.fitting.get(name, (0, 0))
    text = f"{of.many:,} refused since {clock(of.first, facts.now)}, {_kept(of)}"
    if fit:
        part = "all" if fit == of.many else f"{fit} of the last {looked}"
        yield fail(name, f"{text}; {part} fit today's config", fix=f"storehooks refused release --store {name}")
        return
    reasons = ", ".join(f"{reason} {many:,}" for reason, many in of.reasons.items())
    fix = f"storehooks verify --store {name} --refused last"
    last = facts.inbox.last_events.get(name) if facts.inbox else None
    if last and last.timestamp() > of.last and "secret-expired" not in of.reasons:
        yield warn(name, text, f"{reasons}; others were accepted since", fix=fix)
    else:
        yield fail(name, text, f"{reasons}; nothing was accepted since", fix=fix)


def _kept(of: RefusedOf) -> str:
    return "all kept" if of.kept == of.many else f"{of.kept:,} kept"


def _strangers(facts: Facts) -> Iterator[Finding]:
    """Deliveries for stores that nobody configured: a store that was forgotten, or somebody who tries names."""
    of = [one for one in facts.host.refused if one.store not in facts.config.stores]
    named = [one.store for one in of if one.store != UNKNOWN]
    if of:
        number = sum(one.many for one in of)
        text = f"{counted(number, 'delivery', 'deliveries')} came for stores nobody configured"
        text += f": {some(named)}" if named else ""
        yield warn(
            "strangers", text, fix="storehooks stores add NAME, if one is yours; then storehooks refused release"
        )


# What a scheme or an assumption cannot promise


def _assumed(facts: Facts, name: str) -> Iterator[Finding]:
    for operation in facts.inbox.unconfirmed.get(name, []) if facts.inbox else []:
        text = f"{operation} is used, assumed, never confirmed"
        yield warn(name, text, fix=f"[stores.{name}.catalogue.{operation}] method and path, as the store has them")


def _schemes(facts: Facts) -> Iterator[Finding]:
    users: dict[str, list[str]] = {}
    for name, store in sorted(facts.config.known_stores.items()):
        if caveats(store.scheme):
            users.setdefault(store.scheme.name, []).append(name)
    for scheme, names in users.items():
        told = caveats(facts.config.known_stores[names[0]].scheme)
        yield warn("scheme", f"{scheme} ({some(names)}): {told[0]}", *told[1:], fix=_SCHEME_FIX)


_SCHEME_FIX = "none here: the store signs so. A handler that must be sure asks ctx.api for the record"
