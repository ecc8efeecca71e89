"""Explaining: for one event and each handler, why the handler was or was not called. Pure: it is handed the facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from receiver.contract.event import UNREADABLE
from receiver.contract.topics import PROBE, matches
from receiver.inbox import Declaration
from receiver.inbox.outcomes import EventStatus, RunStatus
from receiver.inbox.queries.events import EventRecord, RunRecord
from receiver.inbox.queries.handlers import AbsentHandler


@dataclass(frozen=True)
class RoutingFacts:
    """What is known at one moment."""

    event: EventRecord
    declared: Mapping[str, Declaration]
    """What workers have said in the last 15 minutes."""
    loaded: Mapping[str, Declaration]
    """What this config loads here."""
    paused: frozenset[str] = frozenset()
    """ "handler:NAME", "store:NAME" """
    shut: Mapping[str, datetime] = field(default_factory=dict)
    """Limits, or h:HANDLER, that are Busy, and until when."""
    full: frozenset[str] = frozenset()
    """Limits of which every slot is taken."""
    absent: Mapping[str, AbsentHandler] = field(default_factory=dict)
    """Handlers that no worker has now, though some were declared in those 15 minutes."""


@dataclass(frozen=True)
class Verdict:
    handler: str
    called: bool
    reason: str
    """One of: called, running, skipped, dropped, retrying, failed, delayed, paused, limit, absent, waiting,
    unreadable, probe, not-routed, not-loaded, topic, store, added-later."""
    why: str
    fix: str = ""


def explain(facts: RoutingFacts) -> list[Verdict]:
    """A verdict for every handler that has a run, was declared, or is loaded here."""
    runs = {run.handler: run for run in facts.event.runs}
    names = sorted({*runs, *facts.declared, *facts.loaded})
    return [_of_a_run(facts, runs[name]) if name in runs else _without_a_run(facts, name) for name in names]


def _of_a_run(facts: RoutingFacts, run: RunRecord) -> Verdict:
    tries = f"attempt {run.attempts}"
    told = "" if run.result is None else f': "{run.result}"'
    match run.status:
        case RunStatus.DONE:
            return Verdict(run.handler, True, "called", f"done, {tries}{told}")
        case RunStatus.RUNNING:
            return Verdict(run.handler, True, RunStatus.RUNNING, f"under way, {tries[:-1]}{run.attempts + 1}")
        case RunStatus.DROPPED if run.reason == "skipped":
            return Verdict(run.handler, False, "skipped", f"when: {str(run.result).removeprefix('skipped: ')}")
        case RunStatus.DROPPED:
            return Verdict(run.handler, True, RunStatus.DROPPED, f"dropped{told}")
        case RunStatus.FAILED:
            again = f"storehooks failures replay --event {facts.event.summary.id}"
            called = run.reason not in ("no-such-handler", "lost-worker")
            return Verdict(run.handler, called, RunStatus.FAILED, f"failed, {tries}: {run.error}", again)
        case RunStatus.WAITING:
            return _waiting(facts, run)


def _waiting(facts: RoutingFacts, run: RunRecord) -> Verdict:
    if run.handler in facts.absent:
        return _absent(facts, run.handler)
    if run.due_at is not None:
        when = f"{run.due_at:%Y-%m-%d %H:%M:%S} UTC"
        if run.attempts:
            why = f"attempt {run.attempts} failed: {run.error}; the next is due {when}"
            return Verdict(run.handler, True, "retrying", why)
        if run.error:  # it was called, and burned no attempt
            return Verdict(run.handler, True, RunStatus.WAITING, f"{run.error}; it is called again {when}")
        sooner = f"to try it before: storehooks handlers run {run.handler} --event {_id(facts)}"
        return Verdict(run.handler, False, "delayed", f"delay=, it is due {when}", sooner)
    return _held(facts, run.handler) or _kept_back(facts, run.handler)


def _held(facts: RoutingFacts, name: str) -> Verdict | None:
    """Somebody paused it, or nobody has it."""
    store = facts.event.summary.store
    if f"handler:{name}" in facts.paused:
        return Verdict(name, False, "paused", "the handler is paused", f"storehooks handlers resume {name}")
    if f"store:{store}" in facts.paused:
        return Verdict(name, False, "paused", f"the store {store} is paused", f"storehooks stores resume {store}")
    return None if name in facts.declared else _absent(facts, name)


def _absent(facts: RoutingFacts, name: str) -> Verdict:
    """It was taken out of the plugins, or the workers that have it are down: nobody but a person knows."""
    since = facts.absent[name].since if name in facts.absent else None
    why = "no worker has this handler any more" + (f", since {since:%H:%M:%S} UTC" if since else "")
    fix = "HUP or start a worker with this config" if name in facts.loaded else f"storehooks handlers retire {name}"
    return Verdict(name, False, "absent", why, fix)


def _kept_back(facts: RoutingFacts, name: str) -> Verdict:
    """Its limit keeps it back, or every worker has enough to do."""
    limit = facts.declared[name].details.get("limit")
    if until := facts.shut.get(limit or f"h:{name}"):
        return Verdict(name, False, "limit", f"{limit or 'the handler'} is Busy until {until:%H:%M:%S} UTC")
    if limit in facts.full:
        return Verdict(name, False, "limit", f"every slot of [limits.{limit}] is taken")
    return Verdict(name, False, RunStatus.WAITING, "ready; it waits for a worker", "storehooks stats")


def _without_a_run(facts: RoutingFacts, name: str) -> Verdict:
    one = facts.declared.get(name) or facts.loaded[name]
    about = facts.event.summary
    if about.topic == UNREADABLE:
        return Verdict(name, False, "unreadable", "the event's body could not be read; no handler is called for it")
    if about.topic == PROBE:
        return Verdict(
            name, False, "probe", "an event of our own, to see that our URL takes deliveries; for no handler"
        )
    if not any(matches(pattern, about.topic) for pattern in one.topics):
        return Verdict(name, False, "topic", f"it wants {', '.join(one.topics)}, not {about.topic}", _place(one))
    if not any(matches(pattern, about.store) for pattern in one.stores):
        fix = f"[plugins.{one.details.get('plugin')}] stores, or {_place(one)}"
        return Verdict(name, False, "store", f"it is for {', '.join(one.stores) or 'no store'}, not {about.store}", fix)
    return _missed(facts, name)


def _missed(facts: RoutingFacts, name: str) -> Verdict:
    """It wants such events, and has no run of this one."""
    about = facts.event.summary
    if name in facts.absent and name not in facts.loaded:
        return _absent(facts, name)
    if name not in facts.declared:
        return Verdict(
            name,
            False,
            "not-loaded",
            "this config loads it, and no worker does",
            "start or HUP a worker with this config",
        )
    if not facts.event.runs and about.status == EventStatus.OPEN:
        if f"store:{about.store}" in facts.paused:
            return Verdict(
                name, False, "paused", f"the store {about.store} is paused", f"storehooks stores resume {about.store}"
            )
        return Verdict(name, False, "not-routed", "the event waits to be routed", "storehooks stats")
    again = f"storehooks events replay {_id(facts)} --handler {name}"
    return Verdict(name, False, "added-later", "it was not there when the event was routed", again)


def _id(facts: RoutingFacts) -> str:
    return facts.event.summary.id


def _place(one: Declaration) -> str:
    details: Mapping[str, Any] = one.details
    return f"{details.get('file', '?')}:{details.get('line', '?')}"
