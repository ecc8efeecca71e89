"""Chores: what must be done now and then, in slices short enough that ticks stay on time."""

from __future__ import annotations

from receiver import logs
from receiver.config import Config
from receiver.inbox import EventQueries, Housekeeping

SLICES_AT_ONCE = 20

log = logs.get("chores")


def retention(housekeeping: Housekeeping, config: Config) -> None:
    """Forget what is old, and what one store has too much of."""
    window = config.receiver.dedupe_retention
    records = max(config.retention.records, window)
    failures = max(config.retention.failures, window) if config.retention.failures else 0
    gone = [0, 0, 0]
    for _ in range(SLICES_AT_ONCE):
        removed = housekeeping.trim(bodies=config.retention.bodies, records=records, failures=failures)
        gone = [total + now for total, now in zip(gone, removed, strict=True)]
        if not any(removed):
            break
    over = sum(
        _keep_the_newest(housekeeping, store, keep=config.retention.events_per_store, window=window)
        for store in EventQueries(housekeeping.client).counters().stores
    )
    if any(gone) or over:
        log.info("retention", bodies=gone[0], records=gone[1], failures=gone[2], over_the_number=over)


def _keep_the_newest(housekeeping: Housekeeping, store: str, *, keep: int, window: float) -> int:
    """Trim one store by number. What must stay is passed over, so that it cannot stand in the way."""
    total = stays = 0
    for _ in range(SLICES_AT_ONCE):
        looked, removed = housekeeping.trim_store(store, keep=keep, window=window, skip=stays)
        total, stays = total + removed, stays + looked - removed
        if not looked:
            break
    return total


def orphans(housekeeping: Housekeeping, config: Config) -> None:  # noqa: ARG001  every chore is called alike
    """End the runs of handlers that no worker has any more, visibly."""
    if ended := housekeeping.end_orphans():
        log.warning("runs of handlers that no worker has became failures", runs=ended)
