"""Alert rules: what is wrong now, by the rules of `[alerts.rules]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from redis import Redis

from receiver.config import Config
from receiver.contract.diagnosis.formatting import counted, exact_span, span
from receiver.contract.stores import UNKNOWN_STORE
from receiver.inbox import EventQueries, FailureQueries
from receiver.inbox.alert_store import AlertStore
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries.event_pages import oldest_open_age
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.queries.health import HealthQueries
from receiver.inbox.run_statistics import recent_runs_of
from receiver.inbox.subscription_checks import SubscriptionChecks

FEWEST_ATTEMPTS = 10
"""A handler with fewer attempts in five to ten minutes does not begin to alert."""
FAILING = (OutcomeKind.FAILED, OutcomeKind.RETRY)
JUDGED = (OutcomeKind.DONE, OutcomeKind.DROPPED, *FAILING)

Found = Iterator[tuple[str, str]]
"""Subjects and texts."""


def broken_rules(config: Config, client: Redis) -> dict[str, str]:
    """The text of each alert that fires now, by "rule|subject"."""
    return {f"{rule}|{subject}": text for rule, find in RULES.items() for subject, text in find(config, client)}


def threshold(config: Config, rule: str) -> str:
    """What a rule alerts at, for people; "off" if it is off."""
    value = getattr(config.alerts.rules, rule)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {exact_span(seconds)}" for name, seconds in value.items()) or "off"
    if not value:
        return "off"
    if isinstance(value, bool):
        return "on"
    if isinstance(value, int):
        return str(value)
    return f"{value:.0%}" if rule in ("failing", "memory") else exact_span(value)


def _failing(config: Config, client: Redis) -> Found:
    """A handler that fires goes on until attempts succeed, even if there are few, or until no worker has it. Without
    attempts it goes on while any of its runs is failed or waits for a retry."""
    share = config.alerts.rules.failing
    declared = {one.handler for one, _ in EventQueries(client).declared()} if share else set()
    present = sorted(declared - HandlerQueries(client).absent().keys()) if declared else []
    firing = {one.subject: one.text for one in AlertStore(client).firing() if one.rule == "failing"}
    unsettled = FailureQueries(client).totals() if firing else {}
    for handler, runs in recent_runs_of(client, present).items():
        attempts = sum(runs.outcomes.get(kind, 0) for kind in JUDGED)
        failed = sum(runs.outcomes.get(kind, 0) for kind in FAILING)
        fewest = 1 if handler in firing else FEWEST_ATTEMPTS
        # More than the share: failures that were all replayed with success are exactly one half.
        if attempts >= fewest and (failed > share * attempts or failed == attempts):
            yield handler, f"{failed / attempts:.0%} of the last {counted(attempts, 'attempt')} failed"
        elif handler in firing and not attempts and any(unsettled.get(handler, ())):
            yield handler, firing[handler]


def _oldest_open(config: Config, client: Redis) -> Found:
    longest = config.alerts.rules.oldest_open
    if longest and (age := oldest_open_age(client)) > longest:
        yield "", f"the oldest open event has waited for {span(age)}"


def _refused_in_a_row(config: Config, client: Redis) -> Found:
    most = config.alerts.rules.refused_in_a_row
    counters = EventQueries(client).counters().stores if most else {}
    for store, number in AlertStore(client).refused_in_a_row(counters).items():
        if number >= most and store != UNKNOWN_STORE:
            yield store, f"{counted(number, 'delivery', 'deliveries')} in a row were refused"


def _silent(config: Config, client: Redis) -> Found:
    """A store that has never sent an event is not silent."""
    longest, now = config.alerts.rules.silent, datetime.now(UTC)
    stores = [name for name in config.stores if name in longest or "*" in longest]
    for store, last in HealthQueries(client).last_events(stores).items():
        seconds = (now - last).total_seconds()
        if seconds > longest.get(store, longest.get("*", 0.0)):
            yield store, f"no event for {span(seconds)}"


def _spooled(config: Config, client: Redis) -> Found:
    longest, now = config.alerts.rules.spooled, datetime.now(UTC)
    for host, one in EventQueries(client).spools().items() if longest else ():
        since = one.oldest or one.at
        if (one.count or one.state == "silent") and (since is None or (now - since).total_seconds() > longest):
            number = counted(one.count or 0, "delivery", "deliveries")
            yield host, f"silent; its spool had {number}" if one.state == "silent" else f"{number} in its spool"


def _repair_failed(config: Config, client: Redis) -> Found:
    stores = list(config.stores) if config.alerts.rules.repair_failed else []
    for store, result in SubscriptionChecks(client).last_results(stores).items():
        if result.is_faulty:
            changes = f"{counted(result.missing, 'change')} of its subscriptions could not be made"
            yield store, changes if result.missing else "its subscriptions could not be checked or repaired"


def _memory(config: Config, client: Redis) -> Found:
    share, memory = config.alerts.rules.memory, client.info("memory")
    used, most = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))
    if share and most and used >= share * most:
        yield "", f"Redis uses {used / most:.0%} of its memory"


RULES: Mapping[str, Callable[[Config, Redis], Found]] = {
    "failing": _failing,
    "oldest_open": _oldest_open,
    "refused_in_a_row": _refused_in_a_row,
    "silent": _silent,
    "spooled": _spooled,
    "repair_failed": _repair_failed,
    "memory": _memory,
}
"""By the names of `[alerts.rules]`."""
