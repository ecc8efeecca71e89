"""System state: a line for each store and each handler, the worst first, for lists of commands and of the console."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from redis import Redis

from receiver.config import Config
from receiver.contract.stores import UNKNOWN_STORE
from receiver.inbox import Administration, Declaration, EventQueries, FailureQueries, keys
from receiver.inbox.queries.events import Counters
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


@dataclass(frozen=True)
class StoreRows:
    rows: list[StoreRow]
    total: int
    """How many stores there are; not all may be in `rows`."""


def store_rows(
    config: Config,
    client: Redis,
    *,
    counters: Counters | None = None,
    removed: bool = False,
    only: str = "",
    first: int = 0,
    most: int | None = None,
) -> StoreRows:
    """Every store or `only` one, those with most failures first. With `removed`, also those that only have events."""
    counts = (counters or EventQueries(client).counters()).stores
    names = {*config.stores, *(counts if removed else ())} - {UNKNOWN_STORE}
    names = names & {only} if only else names
    figures = {name: {figure: counts.get(name, {}).get(figure, 0) for figure in FIGURES} for name in names}
    ordered = sorted(names, key=lambda name: (-figures[name]["failed"], -figures[name]["open"], name))
    shown = ordered[first : None if most is None else first + most]
    last, paused = HealthQueries(client).last_events(shown), Administration(client).paused()
    rows = [
        StoreRow(
            name,
            config.stores[name].scheme if name in config.stores else "",
            f"store:{name}" in paused,
            figures[name],
            last.get(name),
        )
        for name in shown
    ]
    return StoreRows(rows, len(names))


def handler_rows(client: Redis) -> list[HandlerRow]:
    """Every handler that workers have or that has runs, those with most failures first."""
    declared: dict[str, Declaration] = {}
    for one, _ in EventQueries(client).declared():  # the newest first
        declared.setdefault(one.handler, one)
    running, paused = HandlerQueries(client).running_versions(), Administration(client).paused()
    failures = FailureQueries(client).totals()
    names = sorted({*declared, *running, *failures} - {"", keys.INTAKE})
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
            *failures.get(name, (0, 0)),
        )
        for name, ready in zip(names, pipeline.execute(), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.failed, -row.retrying, bool(row.versions), -row.ready, row.name))
