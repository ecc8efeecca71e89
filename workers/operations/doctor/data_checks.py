"""Checks of the data in the server: its memory, with a forecast, and whether accepted events are missing. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from receiver.contract.diagnosis.formatting import clock, counted, size, some, span
from receiver.inbox.history_moves import MARK_BYTES
from receiver.inbox.known_data import DataChange
from receiver.inbox.queries.health import Footprint
from receiver.inbox.redis.server_state import HIGH_MEMORY, is_nearly_full
from workers.operations.doctor.facts import Facts
from workers.operations.doctor.findings import Finding, fail, ok, warn
from workers.runtime.history_mover import SHORT_OF_MEMORY

DAY = 86400.0
SOON = 3 * DAY
MINIMUM_SPAN, MINIMUM_EVENTS = 600.0, 50
"""With a shorter history or fewer events there is no forecast."""


def check_memory(facts: Facts) -> Iterator[Finding]:
    """Memory in use, and a forecast for the current rate of events and the configured retention."""
    if facts.inbox is None:
        return
    server, footprint = facts.server, facts.inbox.footprint
    limit = server.maxmemory or server.machine_memory
    usage = f"{size(server.used_memory)} of {size(limit)}" if limit else size(server.used_memory)
    usage += "" if server.maxmemory else " (the machine's memory; maxmemory is not set)"
    if is_nearly_full(server.used_memory, server.maxmemory):
        yield fail("memory", f"{usage} used: new deliveries go to the spool", fix=_less_memory(facts))
        return
    if footprint.seconds < MINIMUM_SPAN or sum(footprint.lately.values()) < MINIMUM_EVENTS:
        yield ok("memory", f"{usage}, {counted(footprint.events, 'event')}; too few recent events for a forecast")
        return
    yield _forecast(facts, limit, usage)


def _forecast(facts: Facts, limit: int, usage: str) -> Finding:
    assert facts.inbox is not None
    footprint, used = facts.inbox.footprint, float(facts.server.used_memory)
    events_per_day = sum(footprint.lately.values()) / footprint.seconds * DAY
    each = _each(footprint)
    rate = f"{counted(round(events_per_day), 'event')} a day of {size(each)}, measured over {span(footprint.seconds)},"
    final = final_size(facts)
    if final <= HIGH_MEMORY * limit:
        return ok("memory", f"{usage}; {rate} will need {size(final)}")
    staying = _staying(facts)
    if staying is not None:
        least = staying * each + events_per_day / DAY * facts.config.receiver.dedupe_retention * MARK_BYTES
        if least <= HIGH_MEMORY * limit:
            moved = f"from {SHORT_OF_MEMORY:.0%} on, the history takes events as soon as they have settled, not after "
            moved += f"{span(facts.config.history.after)}; the rest needs {size(least)}"
            return warn("memory", f"{usage}; {rate} would need {size(final)}", moved, fix=_less_memory(facts))
        used -= max(0, footprint.events - staying) * (each - MARK_BYTES)
        final, each = least, MARK_BYTES
    full_in = max(0.0, HIGH_MEMORY * limit - used) / (events_per_day * each) * DAY
    text = f"{usage}; {rate} will fill it in {span(full_in)} and need {size(final)} in the end"
    effect = "then new deliveries go to the spool" if facts.server.maxmemory else "then the machine is out of memory"
    level = fail if full_in < SOON else warn
    return level("memory", text, effect, fix=_less_memory(facts))


def _each(footprint: Footprint) -> float:
    return footprint.record + footprint.body + footprint.once


def _staying(facts: Facts) -> int | None:
    """How many events the history cannot take, while it takes all others early because memory is short. None if it does
    not, or if these are most of what is in memory: then they grow in number.
    """
    assert facts.inbox is not None
    moves, total = facts.inbox.moves, facts.inbox.counters.total
    if facts.config.history_url == "off" or moves is None or moves.fault or not facts.server.maxmemory:
        return None
    staying = total["open"] + total["failed"] + moves.left
    return staying if 2 * staying * _each(facts.inbox.footprint) < facts.server.used_memory else None


def final_size(facts: Facts) -> float:
    """Bytes that events need once retention removes as many as arrive.

    No record is removed inside the duplicate window, not even above `events_per_store`; failures are not counted.
    """
    assert facts.inbox is not None
    footprint, retention, window = facts.inbox.footprint, facts.config.retention, facts.config.receiver.dedupe_retention
    total = 0.0
    for events in footprint.lately.values():
        rate = events / footprint.seconds
        if facts.config.history_url != "off":
            total += rate * (facts.config.history.after * _each(footprint) + window * MARK_BYTES)
            continue
        records = max(rate * window, min(rate * retention.records, retention.events_per_store))
        bodies, marks = min(rate * retention.bodies, records), min(rate * retention.once, records)
        total += records * footprint.record + bodies * footprint.body + marks * footprint.once
    return total


def _less_memory(facts: Facts) -> str:
    receiver = facts.config.receiver
    keys = "[receiver] dedupe_window" + (" plus spool_age" if receiver.spool == "on" else "")
    kept = f"no record is removed before {span(receiver.dedupe_retention)}, which is {keys}"
    more = "raise maxmemory" if facts.server.maxmemory else "give the machine more memory"
    if facts.config.history_url != "off":
        return f"{more}, or shorten [history] after or [receiver] dedupe_window"
    return f"{more}, set [history] url, or shorten [retention] bodies or records; {kept}"


def check_history(facts: Facts) -> Iterator[Finding]:
    """Whether settled events are moved to the history."""
    if facts.inbox is None or facts.config.history_url == "off":
        return
    name = "sqlite" if facts.config.history_url == "sqlite" else "postgresql"
    if facts.host.history_files and name != "sqlite":
        text = f"{facts.host.data_dir}/history has past events of the SQLite history that was used before"
        reach = "they are not found, not erased and not removed by age"
        yield warn(
            "history", text, reach, fix="import them (docs/history.md, From SQLite to PostgreSQL), and delete it"
        )
    moves, unmoved = facts.inbox.moves, counted(facts.inbox.unmoved, "settled event")
    if facts.inbox.history_elsewhere:
        text = "commands on this host show only events in Redis, and its housekeeper moves none"
        yield warn("history", f"{name}: {facts.inbox.history_elsewhere}", text)
    elif moves is None:
        if facts.inbox.unmoved:
            yield warn("history", f"no housekeeper reports that it moves events, and {unmoved} should be moved")
    elif moves.fault:
        late = f" ({facts.inbox.unmoved:,} should have been moved)" if facts.inbox.unmoved else ""
        stay = f"settled events stay in Redis until it can be used{late}; nothing is lost"
        yield warn("history", f"{name}: {moves.fault}", stay, fix="correct that; moving goes on by itself")
    elif moves.left:
        left = f"{counted(moves.left, 'settled event')} cannot be stored in the history, and stay in Redis"
        yield warn("history", left, f"such as {moves.example}")
    else:
        waiting = f"; {unmoved} wait to be moved, because the machine is busy" if facts.inbox.unmoved else ""
        yield ok("history", f"{name}, settled events are moved to it after {span(facts.config.history.after)}{waiting}")


def changed_data(facts: Facts) -> Iterator[Finding]:
    """What hosts have noticed about the data in Redis; see receiver/inbox/known_data.py."""
    notices = facts.inbox.data_notices if facts.inbox else {}
    for change, describe in (
        (DataChange.OTHER, _other_data),
        (DataChange.ELSEWHERE, _elsewhere),
        (DataChange.OLDER, _older_data),
    ):
        noticed = {host: notice.at for host, notice in notices.items() if notice.change == change}
        if noticed:
            yield describe(facts, some(sorted(noticed)), clock(min(noticed.values()), facts.now))


def _other_data(facts: Facts, hosts: str, since: str) -> Finding:
    effects = [
        "it was emptied or replaced: events that were accepted before may be missing from it, and then are not "
        "handled; deliveries in spools are safe"
    ]
    unhandled = facts.inbox.counters.total["open"] if facts.inbox else 0
    if unhandled:
        events = f"{counted(unhandled, 'event')} accepted in this server {'is' if unhandled == 1 else 'are'}"
        effects.append(
            f"{events} not handled yet: if it is the wrong one, or before its data is restored, keep a worker on it "
            "until `storehooks stats` shows 0 open there"
        )
    place = facts.config.place("redis", "url")
    fix = "restore its data, or set the right server; if this is the one to use from now on: storehooks hosts accept"
    return fail(
        "server",
        f"{facts.server.address} has other data than {hosts} had before, noticed at {since}",
        *effects,
        fix=f"{fix} ({place})" if place else fix,
    )


def _elsewhere(facts: Facts, hosts: str, since: str) -> Finding:
    return fail(
        "server",
        f"events were accepted in other data while {hosts} was connected to it, at {since}; {facts.server.address} "
        "does not have them",
        "they are in another server, or this one was restored since, and they are gone",
        fix="if another server has them, run a worker there until `stats` shows 0 open there; if they are gone, "
        "have the stores send them again; then: storehooks hosts accept",
    )


def _older_data(facts: Facts, hosts: str, since: str) -> Finding:
    return fail(
        "server",
        f"{facts.server.address} lacks events that were accepted, as {hosts} noticed at {since}",
        "it has an older copy of its data, or lost its last writes; deliveries in spools are safe",
        fix="restore a newer copy, if there is one, or have the stores send those events again; then: storehooks hosts "
        "accept",
    )
