"""System state: a line for each store and each handler, the worst first, for lists of commands and of the console."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from redis import Redis

from receiver.config import Config
from receiver.contract.stores import UNKNOWN_STORE
from receiver.inbox import Administration, Declaration, EventQueries, FailureQueries, keys
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.queries.health import HealthQueries

FIGURES = ("accepted", "open", "failed", "refused")
"""The counters that are shown for each store."""


@dataclass(frozen=True)
class StoreRow:
    name: str
    scheme: str
    """Empty for a store that is no longer in the config."""
    is_paused: bool
    counts: dict[str, int]
    last_event: datetime | None

    @property
    def state(self) -> str:
        return "paused" if self.is_paused else "on" if self.scheme else "not in the config"


@dataclass(frozen=True)
class HandlerRow:
    name: str
    declaration: Declaration | None
    """What a worker last declared about it; None for one that is gone and still has runs."""
    versions: list[str]
    """Those that workers have now."""
    is_paused: bool
    ready: int
    retrying: int
    failed: int

    @property
    def state(self) -> str:
        return "paused" if self.is_paused else "on" if self.versions else "no worker has it"


def store_rows(config: Config, client: Redis, *, removed: bool = False, only: str = "") -> list[StoreRow]:
    """Every store or `only` one, those with most failures first. With `removed`, also those that only have events."""
    counters, paused = EventQueries(client).counters().stores, Administration(client).paused()
    names = sorted({*config.stores, *(counters if removed else ())} - {UNKNOWN_STORE})
    names = [only] if only in names else [] if only else names
    last = HealthQueries(client).last_events(names)
    rows = [
        StoreRow(
            name,
            config.stores[name].scheme if name in config.stores else "",
            f"store:{name}" in paused,
            {figure: counters.get(name, {}).get(figure, 0) for figure in FIGURES},
            last.get(name),
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: (-row.counts["failed"], -row.counts["open"], row.name))


def handler_rows(client: Redis) -> list[HandlerRow]:
    """Every handler that workers have or that has runs, those with most failures first."""
    declared: dict[str, Declaration] = {}
    for one, _ in EventQueries(client).declared():  # the newest first
        declared.setdefault(one.handler, one)
    running, paused = HandlerQueries(client).running_versions(), Administration(client).paused()
    retrying, failed = Counter[str](), Counter[str]()
    for group in FailureQueries(client).every_group():
        retrying[group.handler] += group.retrying
        failed[group.handler] += group.failed
    names = sorted({*declared, *running, *retrying} - {"", keys.INTAKE})
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.zcard(keys.READY + name)
    rows = [
        HandlerRow(
            name,
            declared.get(name),
            sorted(running.get(name, ())),
            f"handler:{name}" in paused,
            ready,
            retrying[name],
            failed[name],
        )
        for name, ready in zip(names, pipeline.execute(), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.failed, -row.retrying, bool(row.versions), -row.ready, row.name))
