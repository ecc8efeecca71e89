"""Check of the server's memory, with a forecast. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from receiver.inbox.redis.server_state import HIGH_MEMORY, is_nearly_full
from workers.formatting import counted, size, span
from workers.operations.doctor.facts import Facts
from workers.operations.doctor.findings import Finding, fail, ok, warn

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
    footprint = facts.inbox.footprint
    events_per_day = sum(footprint.lately.values()) / footprint.seconds * DAY
    each = footprint.record + footprint.body + footprint.once
    rate = f"{counted(round(events_per_day), 'event')} a day of {size(each)}"
    final = final_size(facts)
    if final <= HIGH_MEMORY * limit:
        return ok("memory", f"{usage}; {rate} will need {size(final)}")
    full_in = max(0.0, HIGH_MEMORY * limit - facts.server.used_memory) / (events_per_day * each) * DAY
    text = f"{usage}; {rate} will fill it in {span(full_in)} and need {size(final)} in the end"
    effect = "then new deliveries go to the spool" if facts.server.maxmemory else "then the machine is out of memory"
    level = fail if full_in < SOON else warn
    return level("memory", text, effect, fix=_less_memory(facts))


def final_size(facts: Facts) -> float:
    """Bytes that events need once retention removes as many as arrive.

    No record is removed inside the duplicate window, not even above `events_per_store`; failures are not counted.
    """
    assert facts.inbox is not None
    footprint, retention, window = facts.inbox.footprint, facts.config.retention, facts.config.receiver.dedupe_retention
    total = 0.0
    for events in footprint.lately.values():
        rate = events / footprint.seconds
        records = max(rate * window, min(rate * retention.records, retention.events_per_store))
        bodies, marks = min(rate * retention.bodies, records), min(rate * retention.once, records)
        total += records * footprint.record + bodies * footprint.body + marks * footprint.once
    return total


def _less_memory(facts: Facts) -> str:
    receiver = facts.config.receiver
    keys = "[receiver] dedupe_window" + (" plus spool_age" if receiver.spool == "on" else "")
    kept = f"no record is removed before {span(receiver.dedupe_retention)}, which is {keys}"
    more = "raise maxmemory" if facts.server.maxmemory else "give the machine more memory"
    return f"{more}, or shorten [retention] bodies or records; {kept}"
