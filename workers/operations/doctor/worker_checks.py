"""The checks of what is behind the queue: plugins, topics, workers, housekeeper, failures. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator

from receiver.contract.topics import matches
from receiver.inbox import Declaration
from workers.formatting import clock, counted, some, waits
from workers.operations.doctor.facts import Facts, InboxFacts
from workers.operations.doctor.findings import Finding, fail, ok, warn
from workers.operations.topic_names import SentName, Unsent, known_topics, sent_names, unsent

STALE = 20.0
"""Seconds after which a worker that has said nothing counts as dead."""


# Plugins


def check_handlers(facts: Facts) -> Iterator[Finding]:
    plugins = facts.plugins
    if plugins.fault:
        yield fail("handlers", plugins.fault, "workers refuse to start", fix="what it says, then HUP or start them")
        return
    yield from _absent(facts)
    if not plugins.handlers:
        place = facts.config.place("workers", "plugins") or facts.config.path
        yield warn(
            "handlers", "no plugin, no handler: events are kept and nobody acts", fix=f"[workers] plugins ({place})"
        )
        return
    problems = [*_stores_nobody_has(facts), *_never_sent(facts), *_other_versions(facts)]
    if not any(one.level == "fail" for one in problems):
        names = {one.details["plugin"] for one in plugins.handlers}
        yield ok("handlers", f"{counted(len(plugins.handlers), 'handler')} of {some(sorted(names))}, loaded and judged")
    yield from problems


def _absent(facts: Facts) -> Iterator[Finding]:
    """Handlers that were taken out of the plugins. Events are routed to them for a while: a worker may be back."""
    here = {one.handler for one in facts.plugins.handlers}
    for name, one in (facts.inbox.absent if facts.inbox else {}).items():
        if name in here:
            continue
        since = f", since {clock(one.since, facts.now)}" if one.since else ""
        text = f"{name}: no worker has this handler any more{since}"
        fix = f"storehooks handlers retire {name}, or a worker whose plugins have it"
        if one.waiting:
            yield fail("handlers", f"{text}; {waits(one.waiting, 'run of it', 'runs of it')}", fix=fix)
        else:
            yield warn("handlers", text, fix=fix)


def place_of(handler: Declaration) -> str:
    """Where it is written, as short as one can open it from here."""
    file = str(handler.details["file"])
    near = os.path.relpath(file)
    return f"{file if near.startswith('..') else near}:{handler.details['line']}"


def _stores_nobody_has(facts: Facts) -> Iterator[Finding]:
    for handler in facts.plugins.handlers:
        for pattern in handler.stores:
            if facts.config.stores and not any(matches(pattern, store) for store in facts.config.stores):
                yield fail(
                    "handlers",
                    f"{handler.handler} is for the store {pattern}, and there is none",
                    f"there are: {some(sorted(facts.config.stores))}",
                    fix=place_of(handler),
                )


def _never_sent(facts: Facts) -> Iterator[Finding]:
    """A topic that no store knows is a mistake; one that a preset has may just not have happened yet."""
    names = list(_sent(facts))
    if not names:
        return
    known = known_topics(store.scheme for store in facts.config.known_stores.values())
    for one in unsent(facts.plugins.handlers, names):
        text = f"{one.handler.handler} wants {one.topic}, never sent by any store"
        if any(matches(one.topic, topic) for topic in known):
            yield warn("handlers", text, *_nearest(one, names), fix="none, if it may still come; else the subscription")
        else:
            yield fail("handlers", text, *_nearest(one, names), fix=place_of(one.handler))


def _sent(facts: Facts) -> Iterator[SentName]:
    for store, seen in (facts.inbox.names if facts.inbox else {}).items():
        yield from sent_names(store, facts.config.known_stores[store].scheme, seen, facts.plugins.handlers)


def _nearest(one: Unsent, names: list[SentName]) -> Iterator[str]:
    if one.nearest:
        many = sum(name.seen for name in names if name.topic == one.nearest)
        yield f"nearest: {one.nearest} ({many:,} so far)"


def _other_versions(facts: Facts) -> Iterator[Finding]:
    """What the workers run is not what lies here."""
    if facts.inbox is None or not facts.inbox.workers:
        return
    running: dict[str, set[str]] = {}
    for one in facts.inbox.declared:
        running.setdefault(one.handler, set()).add(one.version)
    for one in facts.plugins.handlers:
        if one.handler not in running or one.handler in facts.inbox.absent:
            text = f"{one.handler} is in this config, and no worker has it"
            yield warn("handlers", text, fix="HUP to `storehooks worker`: it reads config and plugins again")
        elif one.version not in running[one.handler]:
            versions = some(sorted(running[one.handler]))
            text = f"{one.handler} is {one.version} here, and workers run {versions}"
            yield warn("handlers", text, fix="HUP to `storehooks worker`: it reads config and plugins again")


# Workers


def check_workers(facts: Facts) -> Iterator[Finding]:
    if facts.inbox is None:
        return
    alive = [beat for beat in facts.inbox.workers if (facts.now - beat.at).total_seconds() < STALE + abs(_skew(facts))]
    waiting = facts.inbox.counters.total["open"]
    if not alive:
        text = f"none is alive; {waits(waiting, 'event')}" if waiting else "none is alive; events will wait"
        yield fail("workers", text, fix="start `storehooks worker`")
        return
    served = {queue for beat in alive for queue in beat.queues}
    for handler in facts.inbox.declared:
        if handler.queue not in served and handler.handler not in facts.inbox.absent:
            yield fail(
                "workers",
                f"nobody serves the queue {handler.queue} of {handler.handler}",
                fix="a `storehooks worker` whose config has that plugin",
            )
    hosts = {beat.name.rsplit("-", 2)[0] for beat in alive}
    yield ok("workers", f"{len(alive)} alive on {counted(len(hosts), 'host')}")


def _skew(facts: Facts) -> float:
    """Their heartbeats are by their clocks, which nobody compared with ours; the server's is the best guess."""
    return facts.server.ahead


def check_housekeeper(facts: Facts) -> Iterator[Finding]:
    if facts.inbox is None:
        return
    if facts.inbox.housekeeper:
        yield ok("housekeeper", f"{facts.inbox.housekeeper.rsplit('-', 2)[0]} leads")
    else:
        yield fail(
            "housekeeper",
            "none is alive: retries do not come due, and work of dead workers is not taken up",
            fix="start `storehooks worker`, which keeps one alive",
        )


# What waits for a person


def check_work(facts: Facts) -> Iterator[Finding]:
    if facts.inbox is None:
        return
    yield from _failures(facts.inbox)
    for name in sorted(facts.inbox.paused):
        kind, _, what = name.partition(":")
        yield warn("paused", f"{what} is paused; its work waits", fix=f"storehooks {kind}s resume {what}")
    if facts.inbox.set_aside:
        text = f"{counted(facts.inbox.set_aside, 'thing')} in Redis, not ours or not readable, set aside"
        yield warn("inbox", text, fix="the worker's log names them; who else writes to this database?")


def _failures(inbox: InboxFacts) -> Iterator[Finding]:
    if inbox.failed or inbox.retrying:
        retried = f"{inbox.retrying:,} {'is' if inbox.retrying == 1 else 'are'} retried"
        yield warn("failures", f"{counted(inbox.failed, 'run')} failed for good, {retried}", fix="storehooks failures")
