"""Checks of the stores: credentials, clock, secrets, subscriptions, refused deliveries, open events, schemes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from receiver.contract.diagnosis.explain import caveats
from receiver.contract.diagnosis.formatting import clock, counted, some, span
from receiver.contract.signing.sources import Part
from receiver.contract.stores import UNKNOWN_STORE
from receiver.inbox.subscription_checks import CheckResult
from receiver.spool import StoreRefusals
from workers.operations.doctor.facts import ApiFacts, Facts, InboxFacts
from workers.operations.doctor.findings import Finding, fail, ok, warn
from workers.subscriptions.managed_store import is_managed, url_has_changed

MAX_STORE_SKEW_SECONDS = 30.0
AHEAD_SECONDS = 300.0
"""Most schemes allow as much: a clock that is less wrong has not refused a delivery."""
EXPIRES_SOON = 24 * 3600.0
MISSED_CHECKS = 3
"""After this many check intervals without a check there is a warning."""
SEVERAL_REFUSALS, REFUSING_SECONDS = 3, 60.0
"""Fewer refusals, or all within a shorter time, are no failure: any sender can cause them with wrong signatures."""
NEARLY_FULL = 0.8
"""The part of `max_stored` from which the number of open events is a warning."""
NO_ANSWER = ApiFacts("late")
ANSWERS = ("fine", "answered", "denied")
"""The states of an API that answers. While it is down, no call can confirm an operation."""
LOAD = "send HUP to `storehooks web` and `storehooks worker` on each host, unless they have loaded this config"
"""The first step where running processes may not know a store, or a secret, that is in the config."""
FOLD = 20
"""More stores than this with the same finding share one line."""
MANY_REUSED = 10
"""From one event in so many whose delivery id an earlier one has, the id is probably not that of a delivery."""


def check_stores(facts: Facts) -> Iterator[Finding]:
    healthy, findings = [], []
    for name in sorted(facts.config.stores):
        problems = list(_problems(facts, name))
        findings += problems
        if not any(problem.level == "fail" for problem in problems):
            healthy.append(name)
    yield from _fold(findings)
    if len(healthy) > FOLD:
        yield ok("stores", f"{len(healthy):,} without failures: {some(healthy)}")
    else:
        yield from (ok(name, _summary(facts, name)) for name in healthy)
    yield from _apis_not_requested(facts)
    yield from _unknown_stores(facts)
    yield from _shared_domains(facts)
    yield from _scheme_limits(facts)


def _fold(findings: list[Finding]) -> Iterator[Finding]:
    """Merge the same finding of many stores into one."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.level, finding.text), []).append(finding)
    for same in alike.values():
        if len(same) <= FOLD:
            yield from same
        else:
            first, names = same[0], [finding.name for finding in same]
            text = f"{len(same):,} stores: {first.text} ({some(names)})"
            yield replace(first, name="stores", text=text, fix=first.fix.replace(first.name, "NAME"))


def _apis_not_requested(facts: Facts) -> Iterator[Finding]:
    if count := sum(api.state == "unasked" for api in facts.apis.values()):
        text = f"{counted(count, 'API was', 'APIs were')} not checked: out of time, or rate-limited"
        yield warn("stores", text, fix="run with a longer timeout: --timeout 1m")


def _problems(facts: Facts, name: str) -> Iterator[Finding]:
    api = facts.apis.get(name, NO_ANSWER)
    yield from _secrets(facts, name)
    yield from _credentials(facts, name, api)
    yield from _clock_skew(facts, name, api)
    yield from _subscriptions(facts, name)
    yield from _refused(facts, name)
    yield from _open_events(facts, name)
    yield from _reused_ids(facts, name)
    if api.state in ANSWERS:
        yield from _unconfirmed_operations(facts, name)


def _summary(facts: Facts, name: str) -> str:
    """The state of a store without failures."""
    api, parts = facts.apis.get(name, NO_ANSWER), []
    if api.state == "none":
        parts.append("no base_url, so its API is not used")
    elif api.state == "fine":
        parts.append("token configured" if api.token_seconds_left is None else f"token {span(api.token_seconds_left)}")
    if checked := facts.inbox.checked.get(name) if facts.inbox else None:
        age = span(facts.now.timestamp() - checked.at)
        parts.append(f"{checked.wanted - checked.missing} of {checked.wanted} wanted subscriptions ({age} ago)")
    last = facts.inbox.last_events.get(name) if facts.inbox else None
    if last:
        parts.append(f"last event {span((facts.now - last).total_seconds())} ago")
    elif facts.inbox:
        parts.append("no event yet")
    return ", ".join(parts) or "configured"


def _secrets(facts: Facts, name: str) -> Iterator[Finding]:
    """Without a valid secret, every delivery of the store is refused."""
    ends = [secret.not_after for secret in facts.config.known_stores[name].secrets]
    learned = facts.inbox.learned.get(name, 0) if facts.inbox else 1
    if not ends and not learned:
        text = "no signing secret: none in the config, and none learned from the store yet"
        more = "the store issues one when its subscriptions are created, or get a new one"
        yield fail(name, text, more, fix=f"storehooks subscriptions apply --store {name}")
    if not ends or None in ends or learned:
        return
    last = max(end for end in ends if end is not None)
    where = facts.config.place("stores", name, "signing_secrets")
    left = (last - facts.now).total_seconds()
    if left <= 0:
        text = f"the last signing secret expired {clock(last, facts.now)}: every delivery is refused"
        yield fail(name, text, fix=f"set a valid secret, or a later not_after, in {where}; then send HUP")
    elif left < EXPIRES_SOON:
        text = f"the last signing secret expires in {span(left)}, and none follows"
        yield warn(name, text, fix=f"add the next secret in {where}; then send HUP")


def _credentials(facts: Facts, name: str, api: ApiFacts) -> Iterator[Finding]:
    base, auth = (facts.config.place("stores", name, key) for key in ("base_url", "auth"))
    match api.state:
        case "token":
            yield fail(name, f"no token: {api.reason}", fix=f"check url, client_id and client_secret of auth ({auth})")
        case "no-token":
            fix = f"check base_url ({base}) and url of auth ({auth}), or wait: the store may be down"
            yield fail(name, f"no token: {api.reason}", fix=fix)
        case "config":
            yield fail(name, api.reason, fix=f"correct {auth or base}")
        case "denied":
            fix = f"check the app's permissions in the store's portal, or auth ({auth})"
            yield fail(name, f"API access denied: {api.reason}", fix=fix)
        case "unreachable":
            fix = f"check base_url ({base}), or wait: the store may be down"
            yield fail(name, f"API unreachable: {api.reason}", fix=fix)
        case "answered":
            fix = f"check base_url ({base}), or storehooks api probe --store {name}"
            yield fail(name, f"API error: {api.reason}", fix=fix)
        case "redis":
            yield fail(name, f"its API was not called: {api.reason}", fix=api.fix)
        case "late":
            fix = f"check base_url ({base}), or wait: the store may be down; --timeout waits longer"
            yield fail(name, "API did not answer in time", fix=fix)


def _clock_skew(facts: Facts, name: str, api: ApiFacts) -> Iterator[Finding]:
    """If the scheme signs a timestamp, deliveries are refused when the clocks differ by more than the tolerance."""
    if api.clock_ahead is None or abs(api.clock_ahead) < MAX_STORE_SKEW_SECONDS:
        return
    scheme = facts.config.known_stores[name].scheme
    way = "ahead of" if api.clock_ahead > 0 else "behind"
    text = f"the store's clock is {span(abs(api.clock_ahead))} {way} this machine's"
    fix = "run NTP on this machine (`timedatectl`); if its clock is right, contact the store"
    if scheme.timestamp and scheme.tolerance and abs(api.clock_ahead) >= scheme.tolerance:
        yield fail(name, f"{text}, and {scheme.name} allows {scheme.tolerance} s: every delivery is refused", fix=fix)
    else:
        yield warn(name, text, fix=fix)


# Subscriptions, as of the last check


def _subscriptions(facts: Facts, name: str) -> Iterator[Finding]:
    given, every = facts.config.stores[name], facts.config.subscriptions.check
    if facts.inbox is None or not _shows_subscriptions(facts, facts.inbox, name):
        return
    checked = facts.inbox.checked.get(name)
    age = facts.now.timestamp() - checked.at if checked else 0.0
    since = f"checked {span(age)} ago"  # not in the text, by which the same finding of many stores is one line
    plan = f"storehooks subscriptions plan --store {name}"
    if name in facts.inbox.removed:
        text = "removed by `stores remove`, but still in the config; subscriptions are not repaired"
        yield fail(name, text, fix=f"storehooks subscriptions apply --store {name}, or delete it from the config")
    elif checked is None:
        wait = f"workers that have loaded it check every {span(every)}" if every else "[subscriptions] check is off"
        yield warn(name, f"subscriptions of this store were not checked yet; {wait}", fix=f"{LOAD}; then {plan}")
    elif checked.unknown:
        first, *more = checked.unknown.splitlines()
        text = f"subscriptions could not be checked: {first}"
        yield fail(name, text, *more, fix=f"{plan}; base_url is {given.base_url}")
    elif url_has_changed(facts.config, checked):
        yield warn(name, "subscriptions were checked before its URL changed", fix=plan)
    elif checked.held_back:
        text, fix = checked.held_back.splitlines()
        yield fail(name, text, fix=fix)
    elif checked.missing:
        troubles = [f"{theirs}: {trouble.note}" for theirs, trouble in checked.trouble.items() if trouble.note]
        yield fail(name, _drift(checked), since, *troubles[:3], fix=f"storehooks subscriptions apply --store {name}")
    elif checked.pending:
        whys = [f"{change.get('topic')}: {change.get('why')}" for change in checked.pending]
        prune = f"the check deletes what no handler has wanted for {span(facts.config.subscriptions.prune_after)}"
        wait = f"; or wait: {prune}" if any("deleted in " in why for why in whys) else ""
        yield warn(name, _drift(checked), since, *whys[:3], fix=f"{plan}, then apply{wait}")
    elif every and age > MISSED_CHECKS * every:
        text = f"subscriptions were last checked {span(age)} ago"
        yield warn(name, text, fix="check that workers are running; the cause is in the worker's log")


def _shows_subscriptions(facts: Facts, inbox: InboxFacts, name: str) -> bool:
    """The API was asked or, with a result of the last check, was not. Its other states are failures themselves."""
    state = facts.apis.get(name, NO_ANSWER).state
    return is_managed(facts.config, name) and (state == "fine" or (state == "unasked" and name in inbox.checked))


def _drift(checked: CheckResult) -> str:
    changes = [f"{change.get('action')} {change.get('topic')}" for change in checked.pending]
    numbers = f"{counted(checked.wanted, 'subscription')} wanted, {len(checked.existing):,} at the store"
    return f"at the last check: {numbers}; pending changes: {some(changes)}"


def _open_events(facts: Facts, name: str) -> Iterator[Finding]:
    """At `max_stored`, the receiver stores no more of the store's deliveries."""
    most = facts.config.stores[name].max_stored
    number = facts.inbox.counters.stores.get(name, {}).get("open", 0) if facts.inbox else 0
    if most and number >= NEARLY_FULL * most:
        where = facts.config.place("stores", name, "max_stored")
        fix = f"see what they wait for: storehooks events --store {name} --status open; or raise max_stored ({where})"
        if number >= most:
            yield fail(
                name, f"{number:,} open events, and max_stored is {most:,}: its deliveries are answered 503", fix=fix
            )
        else:
            yield warn(
                name, f"{number:,} open events; at max_stored ({most:,}) its deliveries are answered 503", fix=fix
            )


# Refused deliveries


def _refused(facts: Facts, name: str) -> Iterator[Finding]:
    of = next((one for one in facts.host.refused if one.store == name), None)
    if of is None:
        return
    verified, valid = facts.host.now_valid.get(name, (0, 0))
    text = f"{of.total:,} refused since {clock(of.first, facts.now)}, {_stored(of)}"
    if valid:
        part = "all" if valid == of.total else f"{valid} of the last {verified}"
        fix = f"{LOAD}; then storehooks refused release --store {name}"  # no release stops new refusals
        yield fail(name, f"{text}; {part} valid under the current config", fix=fix)
        return
    reasons = ", ".join(f"{reason} {many:,}" for reason, many in of.reasons.items())
    fix = f"storehooks verify --store {name} --refused last" if of.with_body else f"storehooks refused --store {name}"
    if "secret-expired" in of.reasons:  # only the store can cause it
        yield fail(name, text, f"{reasons}; the store has signed with an expired secret", fix=fix)
        return
    many, seconds = facts.host.refused_after.get(name, (0, 0.0))
    goes_on = many >= SEVERAL_REFUSALS and seconds >= REFUSING_SECONDS and not _is_ahead(facts, of)
    level = fail if facts.inbox and goes_on else warn
    yield level(name, text, f"{reasons}; {_accepted_since(facts, of, many)}", fix=fix)


def _is_ahead(facts: Facts, of: StoreRefusals) -> bool:
    """Whether it was refused at a time that has not come yet, by our own clock."""
    return of.last > facts.now.timestamp() + AHEAD_SECONDS


def _accepted_since(facts: Facts, of: StoreRefusals, refused_after: int) -> str:
    if _is_ahead(facts, of):
        return "at times in the future: a clock of ours was wrong, so it is unknown whether others were accepted since"
    if facts.inbox is None:
        return "it is unknown whether other deliveries were accepted since"
    if of.store not in facts.inbox.last_events:
        failed = facts.inbox.counters.stores.get(of.store, {}).get(
            "failed", 0
        )  # an unreadable one is no event of a name
        others = counted(failed, "other delivery was", "other deliveries were")
        return f"{others} accepted and failed: see `storehooks failures`" if failed else "no delivery was ever accepted"
    if refused_after == of.total:
        return "no delivery was accepted since"
    if refused_after:
        return f"{refused_after:,} of them after the last accepted delivery"
    return "other deliveries were accepted since"


def _stored(of: StoreRefusals) -> str:
    return "all stored" if of.with_body == of.total else f"{of.with_body:,} of them with a body"


def _unknown_stores(facts: Facts) -> Iterator[Finding]:
    """Deliveries for stores that are not configured: the operator forgot a store, or an attacker tries names."""
    of = [one for one in facts.host.refused if one.store not in facts.config.stores]
    named = [one.store for one in of if one.store != UNKNOWN_STORE]
    if of:
        number = sum(one.total for one in of)
        text = f"{counted(number, 'delivery', 'deliveries')} refused for which no configured store was found"
        text += f": {some(named)}" if named else ""
        fix = "storehooks stores add NAME, if a store is yours; then storehooks refused release"
        yield warn("stores", text, fix=fix)


def _shared_domains(facts: Facts) -> Iterator[Finding]:
    """A name that a delivery to `POST /webhooks` may have, and that several stores have: it finds the first of them."""
    named: dict[tuple[Part, str], list[str]] = {}
    for name, store in facts.config.known_stores.items():
        for part in store.scheme.event.parts["store"] if store.normalised_domain else ():
            named.setdefault((part, store.normalised_domain), []).append(name)
    shared = {tuple(names): domain for (_, domain), names in named.items() if len(names) > 1}
    if shared:
        found = some([f"{domain} ({', '.join(names)})" for names, domain in shared.items()])
        text = f"stores have the same domain, and POST /webhooks finds only the first of them: {found}"
        other = next(iter(shared))[1]
        fix = f"have the others send to their own URLs, such as /webhooks/{other}, and remove `domain` of each"
        yield warn("stores", text, fix=fix)


def _reused_ids(facts: Facts, name: str) -> Iterator[Finding]:
    """An id that is equal in every delivery tells none apart. A few other bodies are redeliveries that changed."""
    counts = facts.inbox.counters.stores.get(name) if facts.inbox else None
    if not counts:
        return
    scheme, table = facts.config.known_stores[name].scheme, facts.config.scheme_table(name)
    fix = f"check that {' or '.join(scheme.event.id)} differs in each delivery, and correct id"
    reused, accepted, altered = counts["conflicts"], counts["accepted"], counts["altered"]
    if reused and reused * MANY_REUSED >= accepted:
        text = f"{reused:,} of {accepted:,} events have the delivery id of an earlier one and another body"
        yield warn(name, text, "no event is lost: they are separate events", fix=f"{fix} in {table}")
    if altered:
        yield (fail if altered >= accepted else warn)(
            name,
            f"{counted(altered, 'delivery', 'deliveries')} had the delivery id, topic, resource and time of an "
            "earlier one, but another body, and were dropped as duplicates",
            'with dedupe = "id" this is how a store sends again what it has changed since',
            fix=f'{fix}, or set dedupe = "id+body", in {table}',
        )


# Assumed operations, and limits of the schemes


def _unconfirmed_operations(facts: Facts, name: str) -> Iterator[Finding]:
    for operation in facts.inbox.unconfirmed.get(name, []) if facts.inbox else []:
        text = f"{operation} is in use; its method and path are assumed and were never confirmed"
        yield warn(name, text, fix=f"set the store's method and path in [stores.{name}.catalogue.{operation}]")


def _scheme_limits(facts: Facts) -> Iterator[Finding]:
    users: dict[str, list[str]] = {}
    for name, store in sorted(facts.config.known_stores.items()):
        if caveats(store.scheme):
            users.setdefault(store.scheme.name, []).append(name)
    for scheme, names in users.items():
        limits = caveats(facts.config.known_stores[names[0]].scheme)
        yield warn("scheme", f"{scheme} ({some(names)}): {limits[0]}", *limits[1:], fix=_SCHEME_FIX)


_SCHEME_FIX = "none: this is how the store signs. A handler that must be sure reads the record through ctx.api"
