"""Explains for one event and each handler why the handler was or was not called. Pure: the caller reads the facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from receiver.contract.event import UNREADABLE
from receiver.contract.topics import PROBE, matches
from receiver.inbox import Declaration, keys
from receiver.inbox.outcomes import EventStatus, RunStatus
from receiver.inbox.queries.events import EventRecord, RunRecord
from receiver.inbox.queries.handlers import AbsentHandler

START_OR_RELOAD = "start or reload (HUP) a worker with this config"


@dataclass(frozen=True)
class RoutingFacts:
    """What is known about an event and the handlers at one moment."""

    event: EventRecord
    declared: Mapping[str, Declaration]
    """Handlers that workers declared in the last 15 minutes."""
    loaded: Mapping[str, Declaration]
    """Handlers that this config loads on this machine."""
    paused: frozenset[str] = frozenset()
    """ "handler:NAME", "store:NAME" """
    busy: Mapping[str, datetime] = field(default_factory=dict)
    """Limits, or h:HANDLER, that are closed by Busy, and until when."""
    full: frozenset[str] = frozenset()
    """Limits that have no free slot."""
    paced: frozenset[str] = frozenset()
    """Limits that have a rate."""
    absent: Mapping[str, AbsentHandler] = field(default_factory=dict)
    """Handlers that no worker has now, although some were declared in the last 15 minutes."""
    plugin_faults: frozenset[tuple[str, str]] = frozenset()
    """Plugins that workers cannot load any more, and why."""


@dataclass(frozen=True)
class HandlerExplanation:
    handler: str
    called: bool
    reason: str
    """One of: called, running, skipped, echo, stale, merged, dropped, retrying, failed, delayed, loop, gap, paused,
    limit, absent, queued, waiting, unreadable, probe, not-routed, not-loaded, topic, store, added-later."""
    why: str
    fix: str = ""


def explain(facts: RoutingFacts) -> list[HandlerExplanation]:
    """An explanation for every handler that has a run, was declared, or is loaded here."""
    runs = {run.handler: run for run in facts.event.runs}
    unreadable = [_unreadable(facts, keys.INTAKE, run.error) for run in facts.event.runs if run.handler == keys.INTAKE]
    names = sorted({*runs, *facts.declared, *facts.loaded} - {keys.INTAKE})
    return unreadable + [_with_run(facts, runs[name]) if name in runs else _without_run(facts, name) for name in names]


def _with_run(facts: RoutingFacts, run: RunRecord) -> HandlerExplanation:
    attempt = f"attempt {run.attempts}"
    result = "" if run.result is None else f': "{run.result}"'
    match run.status:
        case RunStatus.DONE:
            return HandlerExplanation(run.handler, True, "called", f"done, {attempt}{result}")
        case RunStatus.RUNNING:
            return HandlerExplanation(run.handler, True, RunStatus.RUNNING, f"running, attempt {run.attempts + 1}")
        case RunStatus.DROPPED:
            return _dropped(run, result)
        case RunStatus.FAILED:
            again = f"storehooks failures replay --event {facts.event.summary.id}"
            called = run.reason not in _FAILED_WITHOUT_CALL
            return HandlerExplanation(run.handler, called, RunStatus.FAILED, f"failed, {attempt}: {run.error}", again)
        case RunStatus.WAITING:
            return _waiting(facts, run)


def _dropped(run: RunRecord, result: str) -> HandlerExplanation:
    if run.reason == "skipped":
        why = f"when: {str(run.result).removeprefix('skipped: ')}"
        return HandlerExplanation(run.handler, False, "skipped", why)
    if run.reason == "echo":
        return HandlerExplanation(run.handler, False, "echo", f'{run.result}; with echo="run" it is called')
    if run.reason == "merged":
        return HandlerExplanation(run.handler, False, "merged", f"coalesce: {run.result}")
    if run.reason == "stale":
        return HandlerExplanation(run.handler, False, "stale", f'{run.result}; with stale="run" it is called')
    return HandlerExplanation(run.handler, bool(run.attempts), RunStatus.DROPPED, f"dropped{result}")


_FAILED_WITHOUT_CALL = ("no-such-handler", "lost-worker", "no-body")
_NOT_CALLED = {
    "loop": ("loop", "storehooks doctor"),
    "own-write": (RunStatus.WAITING, ""),
    "gap": ("gap", ""),
    "stale": (RunStatus.WAITING, ""),
}
"""Why a run waits without a call -> the reason that is shown, and the fix."""


def _waiting(facts: RoutingFacts, run: RunRecord) -> HandlerExplanation:
    if run.handler in facts.absent:
        return _absent(facts, run.handler)
    if run.due_at is not None:
        return _due_later(facts, run, f"{run.due_at:%Y-%m-%d %H:%M:%S} UTC")
    found = _held(facts, run.handler) or _queued(run) or _limited(facts, run.handler)
    if run.error and run.reason not in (*_NOT_CALLED, *_FAILED_WITHOUT_CALL):  # it was busy, or begins again at once
        return replace(found, called=True, why=f"{run.error}; {found.why}")
    return found


def _due_later(facts: RoutingFacts, run: RunRecord, when: str) -> HandlerExplanation:
    if run.attempts:
        why = f"attempt {run.attempts} failed: {run.error}; the next is due {when}"
        return HandlerExplanation(run.handler, True, "retrying", why)
    if run.reason in _NOT_CALLED:
        reason, fix = _NOT_CALLED[run.reason]
        return HandlerExplanation(run.handler, False, reason, f"{run.error}; due {when}", fix)
    if run.error:  # it was called, and no attempt was counted
        return HandlerExplanation(run.handler, True, RunStatus.WAITING, f"{run.error}; the next call is due {when}")
    run_here = f"to try it now: storehooks handlers run {run.handler} --event {_id(facts)}"
    sooner = run_here if run.handler in facts.loaded else ""
    return HandlerExplanation(run.handler, False, "delayed", f"delayed by delay= or coalesce=; due {when}", sooner)


def _queued(run: RunRecord) -> HandlerExplanation | None:
    if not run.order or not run.order.place:
        return None
    first = f"storehooks events show {run.order.waits_for}" if run.order.waits_for else ""
    if run.order.is_stopped:
        again = f"storehooks events replay {run.order.waits_for} --handler {run.handler}"
        first = f"correct the cause ({first}), then: {again}"
    return HandlerExplanation(run.handler, False, "queued", f"order_by: {run.order.text}", first)


def _held(facts: RoutingFacts, name: str) -> HandlerExplanation | None:
    """The handler or the store is paused, or no worker has the handler."""
    if f"handler:{name}" in facts.paused:
        return HandlerExplanation(name, False, "paused", "the handler is paused", f"storehooks handlers resume {name}")
    return _store_paused(facts, name) or (None if name in facts.declared else _absent(facts, name))


def _store_paused(facts: RoutingFacts, name: str) -> HandlerExplanation | None:
    store = facts.event.summary.store
    fix = f"storehooks stores resume {store}"
    is_paused = f"store:{store}" in facts.paused
    return HandlerExplanation(name, False, "paused", f"the store {store} is paused", fix) if is_paused else None


def _absent(facts: RoutingFacts, name: str) -> HandlerExplanation:
    """It was removed from the plugins, or its workers are stopped. Only a person can know which."""
    since = facts.absent[name].since if name in facts.absent else None
    why = "no worker has this handler any more" + (f", since {since:%H:%M:%S} UTC" if since else "")
    removed = f"start a worker that has its plugin; if it was removed for good: storehooks handlers retire {name}"
    fix = START_OR_RELOAD if name in facts.loaded else removed
    return HandlerExplanation(name, False, "absent", why, fix)


def _limited(facts: RoutingFacts, name: str) -> HandlerExplanation:
    """Its limit is closed or full, its plugin is broken on disk, or every worker is busy."""
    limit = facts.declared[name].details.get("limit", "")
    if until := facts.busy.get(keys.busy_field(name, limit)):
        why = f"{limit or 'the handler'} is busy until {until:%H:%M:%S} UTC"
        return HandlerExplanation(name, False, "limit", why, f"storehooks handlers resume {name}, to begin before")
    if limit in facts.full:
        return HandlerExplanation(name, False, "limit", f"[limits.{limit}] has no free slot")
    if fault := _fault_of_plugin(facts, name):
        return HandlerExplanation(name, False, RunStatus.WAITING, f"ready; {fault}", "storehooks doctor")
    why = f"ready; waiting for a worker, or for the rate of [limits.{limit}]" if limit in facts.paced else ""
    return HandlerExplanation(name, False, RunStatus.WAITING, why or "ready; waiting for a worker", "storehooks stats")


def _fault_of_plugin(facts: RoutingFacts, name: str) -> str:
    plugin = str(facts.declared[name].details.get("plugin"))
    faults = sorted(fault for one, fault in facts.plugin_faults if one == plugin)
    return f"a worker cannot load the plugin {plugin} any more: {'; '.join(faults)}" if faults else ""


def _without_run(facts: RoutingFacts, name: str) -> HandlerExplanation:
    one = facts.declared.get(name) or facts.loaded[name]
    about = facts.event.summary
    if about.topic == UNREADABLE:
        return _unreadable(facts, name)
    if about.topic == PROBE:
        return HandlerExplanation(name, False, "probe", "a probe of our own URL; it goes to no handler")
    if not any(matches(pattern, about.topic) for pattern in one.topics):
        why = f"it listens to {', '.join(one.topics)}, not {about.topic}"
        return HandlerExplanation(name, False, "topic", why, _place(one))
    if not any(matches(pattern, about.store) for pattern in one.stores):
        limits = one.details.get("store_limits")
        why = f"it is for {', '.join(one.stores) or 'no store'}, not {about.store}{f' ({limits})' if limits else ''}"
        fix = f"[plugins.{one.details.get('plugin')}] stores, or {_place(one)}"
        return HandlerExplanation(name, False, "store", why, fix)
    return _missed(facts, name)


def _missed(facts: RoutingFacts, name: str) -> HandlerExplanation:
    """It listens to the event's topic, but has no run for the event."""
    about = facts.event.summary
    if name in facts.absent and name not in facts.loaded:
        return _absent(facts, name)
    if name not in facts.declared:
        why = "this config loads it, but no worker has loaded it"
        return HandlerExplanation(name, False, "not-loaded", why, START_OR_RELOAD)
    if not facts.event.runs and about.status == EventStatus.OPEN:
        fault = _fault_of_plugin(facts, name)
        why, look = "; ".join(filter(None, ("the event is not routed yet", fault))), "doctor" if fault else "stats"
        return _store_paused(facts, name) or HandlerExplanation(name, False, "not-routed", why, f"storehooks {look}")
    again = f"storehooks events replay {_id(facts)} --handler {name}"
    return HandlerExplanation(name, False, "added-later", "it did not exist when the event was routed", again)


def _unreadable(facts: RoutingFacts, name: str, error: str | None = None) -> HandlerExplanation:
    why = error or "the delivery could not be read"
    return HandlerExplanation(name, False, "unreadable", why, f"storehooks events reread {_id(facts)}")


def _id(facts: RoutingFacts) -> str:
    return facts.event.summary.id


def _place(one: Declaration) -> str:
    details: Mapping[str, Any] = one.details
    return f"{details.get('file', '?')}:{details.get('line', '?')}"
