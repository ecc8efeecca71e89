"""Periodic maintenance of the inbox: retention, orphaned and stranded runs; in slices, so that ticks are on time."""

from __future__ import annotations

from redis.exceptions import ResponseError

from receiver import logs
from receiver.config import Config
from receiver.inbox import EventQueries, Housekeeping
from receiver.inbox.alert_store import AlertStore
from receiver.inbox.housekeeping import OPEN_SLICE
from receiver.inbox.queries.damage import PartialReader, is_wrong_type
from workers.runtime.alerting.alert_rules import broken_rules
from workers.runtime.failure_log import log_failed_runs

SLICES_AT_ONCE = 20
BULK_SECONDS = 0.4
"""How long bulk actions are carried on in one round."""
ALERTS_EVERY = 10.0

log = logs.get("maintenance")


def retention(housekeeping: Housekeeping, config: Config) -> None:
    """Remove what is older than its retention, and what a store has above its maximum number of events."""
    window = config.receiver.dedupe_retention
    records = max(config.retention.records, window)
    total = [0, 0, 0]
    for _ in range(SLICES_AT_ONCE):
        removed = housekeeping.trim(bodies=config.retention.bodies, records=records, failures=config.failures_kept)
        total = [before + now for before, now in zip(total, removed, strict=True)]
        if not any(removed):
            break
    over = sum(
        _trim_to_newest(housekeeping, store, keep=config.retention.events_per_store, window=window)
        for store in EventQueries(housekeeping.client).counters().stores
    )
    audit = housekeeping.trim_audit(config.retention.audit)
    if any(total) or over or audit:
        log.info("retention", bodies=total[0], records=total[1], failures=total[2], over_maximum=over, audit=audit)


def _trim_to_newest(housekeeping: Housekeeping, store: str, *, keep: int, window: float) -> int:
    """Remove the oldest events of a store above the maximum. Events that must stay are skipped."""
    total = stays = 0
    for _ in range(SLICES_AT_ONCE):
        seen, removed = housekeeping.trim_store(store, keep=keep, window=window, skip=stays)
        total, stays = total + removed, stays + seen - removed
        if not seen:
            break
    return total


def sample(housekeeping: Housekeeping, config: Config) -> None:  # noqa: ARG001  all tasks are called alike
    """Write the counters into their time series, at the beginning of each ten seconds."""
    housekeeping.sampler.sample()


def alerts(housekeeping: Housekeeping, config: Config) -> None:
    """Judge the rules of `[alerts]`. The alert thread sends what that leads to."""
    reader, store = PartialReader(housekeeping.client), AlertStore(housekeeping.client)
    stored = AlertStore(reader)
    last = stored.last_judgement()
    marks = last.marks_now(EventQueries(reader).counters().stores)
    broken = broken_rules(config, reader)
    if reader.damaged:  # whether an alert has ended is not known
        broken, marks = {one.name: one.text for one in stored.firing()} | broken, dict(last.marks)
    try:
        fired, recovered = store.judge(broken, config.alerts.targets, last=last, marks=marks)
    except ResponseError as error:
        if is_wrong_type(error):  # `doctor` names the key, and ticks must go on
            return
        raise
    if fired or recovered:
        log.warning("alerts; see `storehooks alerts`", fired=fired, recovered=recovered)


def oldest_open(housekeeping: Housekeeping, config: Config) -> None:  # noqa: ARG001  all tasks are called alike
    """Move the time before which no event is open on."""
    for _ in range(SLICES_AT_ONCE):
        if housekeeping.advance_open() < OPEN_SLICE:
            break


def bulk_actions(housekeeping: Housekeeping, config: Config) -> None:  # noqa: ARG001  all tasks are called alike
    """Carry on replays and drops of many failures."""
    for ended in housekeeping.bulk_work.carry_on(BULK_SECONDS):
        log.info("bulk action ended", id=ended.id, action=ended.action, result=ended.result)


def stranded(housekeeping: Housekeeping, config: Config) -> None:  # noqa: ARG001  all tasks are called alike
    """Put items back that are in no set: a key was damaged, or removed by hand."""
    if many := housekeeping.put_back_stranded():
        log.warning("open runs were in no set, and were put back", runs=many)


def orphans(housekeeping: Housekeeping, config: Config) -> None:  # noqa: ARG001  all tasks are called alike
    """Make failures of the runs whose handler no worker has any more."""
    if ended := housekeeping.end_orphans():
        log.warning("runs failed because no worker has their handler", runs=len(ended))
        log_failed_runs(ended, reason="no-such-handler")
