"""Traffic: what the time series say about the last hour, day or week, with deploys; and each hour of a store's week."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from statistics import median

from redis import Redis

from receiver.contract.diagnosis.formatting import counted
from receiver.inbox.queries.handlers import HandlerQueries
from receiver.inbox.queries.time_series import (
    DAY,
    HOUR,
    WEEK,
    Sample,
    SeriesChange,
    SeriesQueries,
    changes,
)

SPANS = {"1h": (HOUR, 60, 300), "24h": (DAY, DAY.step, 3600), "7d": (WEEK, WEEK.step, 6 * 3600)}
"""The ring of each range, the seconds of a step in its chart, and those of a row in its table."""
MOST_NAMED = 3
"""Handlers that are named for one deploy."""


@dataclass(frozen=True)
class Deploy:
    """Versions of handlers that were first declared at about the same time."""

    at: datetime
    text: str


@dataclass(frozen=True)
class Traffic:
    samples: Sequence[Sample]
    changes: Sequence[SeriesChange]
    """In the steps of a chart."""
    rows: Sequence[SeriesChange]
    """The same in fewer and longer steps, for a table."""
    deploys: Sequence[Deploy]
    step: int
    """Seconds of a step."""


def read_traffic(client: Redis, span: str, handlers: Collection[str]) -> Traffic:
    ring, step, row = SPANS[span]
    samples = SeriesQueries(client).samples(ring)
    found = changes(samples)
    since = datetime.now(UTC) - timedelta(seconds=ring.step * ring.slots)
    declared = HandlerQueries(client).versions(handlers, since=since)
    return Traffic(samples, grouped(found, step), grouped(found, row), deploys(declared), step)


def grouped(found: Iterable[SeriesChange], seconds: int) -> list[SeriesChange]:
    """Changes summed up to longer ones, which begin at whole multiples of some seconds."""
    groups: dict[int, SeriesChange] = {}
    for one in found:
        begin = int(one.since.timestamp()) // seconds
        if before := groups.get(begin):
            counts = {name: number + before.counts[name] for name, number in one.counts.items()}
            groups[begin] = SeriesChange(before.since, one.until, counts, one.levels)
        else:
            groups[begin] = one
    return list(groups.values())


def deploys(declared: Mapping[str, Mapping[str, datetime]]) -> list[Deploy]:
    """Versions of one minute are one deploy, in each range alike."""
    together: dict[int, list[tuple[datetime, str]]] = {}
    for handler, versions in declared.items():
        for version, at in versions.items():
            together.setdefault(int(at.timestamp()) // 60, []).append((at, f"{handler} {version}"))
    found = []
    for group in together.values():
        names = [name for _, name in sorted(group)]
        more = f" and {counted(len(names) - MOST_NAMED, 'more handler')}" if len(names) > MOST_NAMED else ""
        found.append(Deploy(min(group)[0], ", ".join(names[:MOST_NAMED]) + more))
    return sorted(found, key=lambda one: one.at)


class HourState(StrEnum):
    NORMAL = "normal"
    LOW = "low"
    GAP = "gap"
    REFUSED = "refused"
    REPAIRED = "repaired"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class StoreHour:
    since: datetime
    state: HourState
    accepted: int = 0
    refused: int = 0
    usual: float = 0.0
    """Events of an hour like this."""

    @property
    def until(self) -> datetime:
        return self.since + timedelta(hours=1)


def store_hours(samples: Sequence[Sample], repairs: Iterable[datetime], now: datetime) -> list[StoreHour]:
    """Each hour of the last week, the oldest first. The last one is not over.

    An hour is low with less than a quarter of the usual number of events, and a gap without any, where at least 3 are
    usual. It is refused if more than one delivery in ten was refused.
    """
    last = now.replace(minute=0, second=0, microsecond=0)
    begins = [last - timedelta(hours=number) for number in reversed(range(WEEK.slots))]
    counts = {_hour(one.until): one.counts for one in changes(samples) if one.until - one.since < timedelta(hours=2)}
    repaired = Counter(map(_hour, repairs))
    accepted = {hour: counts[hour]["accepted"] for hour in begins[:-1] if hour in counts}
    found = []
    for hour in begins:
        if hour not in counts:
            found.append(StoreHour(hour, HourState.REPAIRED if repaired[hour] else HourState.UNKNOWN))
            continue
        number, refused = counts[hour]["accepted"], counts[hour]["refused"]
        usual = _usual(accepted, hour)
        state = _state(number, refused, usual if hour < last else 0.0, is_repaired=bool(repaired[hour]))
        found.append(StoreHour(hour, state, number, refused, usual))
    return found


def _state(accepted: int, refused: int, usual: float, *, is_repaired: bool) -> HourState:
    if is_repaired:
        return HourState.REPAIRED
    if refused * 10 > accepted + refused:
        return HourState.REFUSED
    if usual >= 3 and not accepted:
        return HourState.GAP
    return HourState.LOW if usual >= 3 and accepted * 4 < usual else HourState.NORMAL


def _usual(accepted: Mapping[datetime, int], hour: datetime) -> float:
    """The median of the same hour of other days; of all hours, if there are fewer than three such days."""
    same = [number for at, number in accepted.items() if at.hour == hour.hour and at != hour]
    return median(same if len(same) >= 3 else accepted.values() or [0])


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
