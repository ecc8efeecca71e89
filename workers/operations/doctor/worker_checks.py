"""Checks behind the queue: keys, workers, housekeeper, failures. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from receiver.contract.diagnosis.formatting import clock, counted, some, span, waits
from receiver.contract.diagnosis.terminal_text import harmless
from receiver.inbox import keys
from receiver.inbox.own_writes import MAX_DEPTH, SuspectedLoop
from receiver.inbox.queries.failures import NOTICE, EndingFailures
from receiver.inbox.queries.health import Heartbeat
from workers.operations.doctor.facts import Facts, InboxFacts
from workers.operations.doctor.findings import Finding, fail, ok, warn
from workers.operations.doctor.system_checks import MAX_SERVER_SKEW_SECONDS
from workers.operations.host_spools import Host

SHORT_BUSY = timedelta(minutes=1)
REREAD = "after you have corrected the scheme: storehooks events reread"


# Workers


def check_workers(facts: Facts) -> Iterator[Finding]:
    if facts.inbox is None:
        return
    yield from _other_workers(facts.inbox.other_workers)
    alive, waiting = facts.inbox.workers, facts.inbox.counters.total["open"]
    if not alive and facts.server.refusal:
        text = "it is unknown whether a worker is running: their reports cannot be written"
        yield warn("workers", text, fix="see server above")
        return
    if not alive:
        text = (
            f"no worker is running; {waits(waiting, 'event')}" if waiting else "no worker is running; events will wait"
        )
        yield fail("workers", text, fix="start `storehooks worker`")
        return
    served = {queue for beat in alive for queue in beat.queues}
    newest = {declared.handler: declared for declared in facts.inbox.declared}  # a reload may have changed the queue
    for handler in newest.values():
        if handler.queue not in served and handler.handler not in facts.inbox.absent:
            yield fail(
                "workers",
                f"no worker serves the queue {handler.queue} of {handler.handler}",
                fix="start a `storehooks worker` whose config has that plugin",
            )
    yield from _plugin_faults(alive)
    yield from _start_faults(alive)
    yield from _several_versions(alive, facts.inbox.hosts)
    yield from _clock_skew(alive, facts.server.clock_ahead)
    hosts = {beat.host for beat in alive}
    yield ok("workers", f"{len(alive)} running on {counted(len(hosts), 'host')}")


def _clock_skew(alive: Sequence[Heartbeat], server_ahead: float) -> Iterator[Finding]:
    """Whether a worker is alive does not depend on its clock."""
    by_host = {beat.host: beat.clock_ahead + server_ahead for beat in alive}  # ahead of this machine's
    for host, ahead in sorted(by_host.items()):
        if abs(ahead) > MAX_SERVER_SKEW_SECONDS:
            way = "ahead of" if ahead > 0 else "behind"
            yield warn(
                "clock",
                f"the clock of the worker on {harmless(host)} is {span(abs(ahead))} {way} this machine's",
                "its log has that time, and so have the signatures of what it forwards: a target may refuse them",
                fix="run NTP (chrony, systemd-timesyncd) on both machines",
            )


def _several_versions(alive: Sequence[Heartbeat], receivers: tuple[Host, ...]) -> Iterator[Finding]:
    """During an upgrade that is as it should be; afterwards a host was forgotten."""
    running = {(beat.version, beat.host) for beat in alive}
    running |= {(one.version, one.name) for one in receivers if one.state == "receiving" and one.version}
    if len({version for version, _ in running}) > 1:
        which = some([f"{version} on {host}" for version, host in sorted(running)])
        text = f"several versions of storehooks are running: {which}"
        yield warn("workers", text, fix="upgrade the remaining hosts; see docs/how-to/upgrading.md")


def _other_workers(names: tuple[str, ...]) -> Iterator[Finding]:
    if names:
        listen = f"{counted(len(names), 'RQ worker')} of another program {'listens' if len(names) == 1 else 'listen'}"
        text = f"{listen} on queues of storehooks: {some([harmless(name) for name in names])}"
        more = "such a worker runs no events, and takes wake-ups away, so that runs begin late"
        yield warn("workers", text, more, fix="stop it, or start it for other queues; `rq info` shows which it has")


def _plugin_faults(alive: Sequence[Heartbeat]) -> Iterator[Finding]:
    """Plugins that were validated and that new child processes cannot load any more."""
    hosts: dict[str, set[str]] = {}
    for beat in alive:
        if beat.plugin_fault:
            hosts.setdefault(beat.plugin_fault, set()).add(beat.host)
    for fault, names in hosts.items():
        yield fail(
            "workers",
            f"a plugin cannot be loaded any more on {some(sorted(names))}: {fault}",
            "child processes that loaded it before keep it; without them its runs wait. Other plugins run on",
            fix="correct or reinstall the plugin as the message says; the worker then loads it by itself",
        )


def _start_faults(alive: Sequence[Heartbeat]) -> Iterator[Finding]:
    for beat in alive:
        if beat.start_fault:
            left = counted(beat.child_processes, "child process", "child processes")
            yield (warn if beat.child_processes else fail)(
                "workers",
                f"a worker on {harmless(beat.host)} cannot start child processes: {harmless(beat.start_fault)}",
                f"{left} of it left; without any, its runs wait",
                fix="free memory, or raise the limit: of processes (ulimit -u, TasksMax), of files (ulimit -n)",
            )


def check_housekeeper(facts: Facts) -> Iterator[Finding]:
    if facts.inbox is None:
        return
    if facts.inbox.housekeeper:
        yield ok("housekeeper", f"running on {facts.inbox.housekeeper.rsplit('-', 2)[0]}")
    elif facts.server.refusal:
        text = "it is unknown whether a housekeeper is running: its reports cannot be written"
        yield warn("housekeeper", text, fix="see server above")
    else:
        yield fail(
            "housekeeper",
            "no housekeeper is running: retries do not become due, and runs of dead workers are not resumed",
            fix="start `storehooks worker`, which also runs a housekeeper",
        )


# Damaged keys


def check_keys(facts: Facts) -> Iterator[Finding]:
    for key in facts.inbox.damaged if facts.inbox else ():
        name, field = harmless(key.name), harmless(key.field)
        fix = (
            f"set it to a number: redis-cli HSET {name} '{field}' NUMBER"
            if field
            else f"look at it with redis-cli TYPE {name}; restore it from a backup, or rename it: "
            f"redis-cli RENAME {name} damaged:{name}"
        )
        more = () if field else (key.lost,)
        yield fail("keys", harmless(key.text), *more, fix=f"find the program that wrote it; then {fix}")


# Failures, pauses, quarantine


def check_open_issues(facts: Facts) -> Iterator[Finding]:
    """Things that wait for an operator."""
    if facts.inbox is None:
        return
    yield from _failures(facts, facts.inbox)
    yield from _stopped_keys(facts, facts.inbox)
    yield from _loops(facts, facts.inbox)
    for paused in sorted(facts.inbox.paused):
        kind, _, name = paused.partition(":")
        yield warn("paused", f"{name} is paused; its runs wait", fix=f"storehooks {kind}s resume {name}")
    yield from _closed_limits(facts, facts.inbox)
    if alerts := facts.inbox.alerts:
        named = [harmless(" ".join((one.rule, f"{one.subject}:" if one.subject else "-", one.text))) for one in alerts]
        text = f"{counted(len(alerts), 'alert fires', 'alerts fire')}: {some(named)}"
        yield warn("alerts", text, fix="storehooks alerts")
    number, examples = facts.inbox.quarantined
    if number:
        text = f"{counted(number, 'damaged record')} in Redis, quarantined: what belongs to it is not handled"
        clear = f"redis-cli DEL {keys.QUARANTINED} (runs with sound records are then put back)"
        fix = f"check what else writes to this database; then clear the list: {clear}"
        yield fail("inbox", text, *map(harmless, examples), fix=fix)


def _closed_limits(facts: Facts, inbox: InboxFacts) -> Iterator[Finding]:
    """Limits, or handlers without one, that a handler's Busy has closed for longer than a short while."""
    for name, until in sorted(inbox.busy.items()):
        using = [
            one.handler for one in inbox.declared if name == keys.busy_field(one.handler, one.details.get("limit", ""))
        ]
        if using and until - facts.now > SHORT_BUSY:
            text = f"{some(using)}: Busy until {clock(until, facts.now)}; runs wait"
            yield warn("busy", text, fix=f"to let them begin now: storehooks handlers resume {using[0]}")


def _stopped_keys(facts: Facts, inbox: InboxFacts) -> Iterator[Finding]:
    """Failures behind which all later events of their order key wait."""
    gone = inbox.absent.keys() - {handler.handler for handler in facts.plugins.handlers}
    for one in inbox.stopped:
        stopped = f"{counted(len(one.keys), 'order key')} of {one.handler} stopped at a failure"
        again, drop = (f"storehooks failures {what} --group {one.group}" for what in ("replay", "drop"))
        fix = f"correct the cause, then: {again}; or give up on it: {drop} --reason TEXT"
        if one.handler in gone:  # a replayed run would wait as well
            fix = (
                f"no worker has {one.handler}, so give up on it: {drop} --reason TEXT; or load it again, then: {again}"
            )
        yield fail(
            "order",
            f'{stopped} (on_failure="stop"); {waits(one.waiting, "run")} behind it',
            some([harmless(key) for key in one.keys]),
            fix=fix,
        )


def _loops(facts: Facts, inbox: InboxFacts) -> Iterator[Finding]:
    """Plugins that react to their own writes."""
    found: dict[tuple[str, str], list[SuspectedLoop]] = {}
    for one in inbox.loops:
        found.setdefault((one.plugin, one.store), []).append(one)
    for (plugin, store), loops in found.items():
        names = some([harmless(f"{one.kind} {one.resource_id}") for one in loops])
        yield warn(
            "loops",
            f"{plugin} at {store}: suspected loop with {names}, last {clock(loops[0].last, facts.now)}",
            f"more than {MAX_DEPTH} events in a minute followed its own writes; such runs begin a minute later",
            fix="let the handler write only what differs from event.data; see docs/how-to/echoes.md",
        )


def _failures(facts: Facts, inbox: InboxFacts) -> Iterator[Finding]:
    """A run that failed for good stays undone until a person replays or drops it; one that is retried may recover."""
    failed, retrying = counted(inbox.failed, "run"), waits(inbox.retrying, "run")
    if inbox.failed:
        more = retrying if inbox.retrying else "none waits"
        fixes = ["storehooks failures; then replay or drop each group"] if inbox.failed > inbox.unreadable else []
        unread = [f"{inbox.unreadable:,} of them could not be read"] if inbox.unreadable else []
        fixes += [REREAD] if unread else []
        details = (*unread, *_ending(facts, inbox.ending))
        yield fail("failures", f"{failed} failed for good; {more} for a retry", *details, fix="; ".join(fixes))
    elif inbox.retrying:
        yield warn("failures", f"{retrying} for a retry after a failed attempt", fix="storehooks failures")


def _ending(facts: Facts, ending: EndingFailures) -> Iterator[str]:
    if ending.first is not None:
        some_of_them = f"{ending.count:,} of them {'is' if ending.count == 1 else 'are'}"
        kept = f"failures are kept for {span(facts.config.failures_kept)} ([retention])"
        yield f"{some_of_them} deleted within {span(NOTICE)}, the first at {clock(ending.first, facts.now)}: {kept}"
