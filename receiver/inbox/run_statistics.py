"""Run statistics: how the runs of each handler end, how long they take and how long they waited, in powers of two."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from redis import Redis

from receiver.inbox import keys
from receiver.inbox.model import to_number
from receiver.inbox.outcomes import Outcome, OutcomeKind
from receiver.inbox.queries.damage import as_text, read_each
from receiver.inbox.redis import script_runner

KEPT_DAYS = 8
RECENT = timedelta(minutes=5)
_COUNTED_SECONDS = 86400
"""How long the last number of a worker is kept: longer than an outage in which counts wait."""
_COUNTED = frozenset(OutcomeKind) - {OutcomeKind.RELEASE}
_RECEIVED = 4
"""The place of `received` in EVENT_FIELDS."""
_DURATION, _WAITED = "d", "w"
_ALL = "all"


class _Ended(NamedTuple):
    handler: str
    kind: str
    duration: int
    """Below two to the power of this, in us; -1 if it is not known."""
    waited: int


@dataclass(frozen=True)
class HandlerRuns:
    """The runs of a handler that ended in some days."""

    outcomes: Mapping[str, int]
    """By OutcomeKind: attempts that ended like this."""
    durations: Mapping[int, int]
    """How many attempts took less than two to the power of a number, in us, and not less than half of that."""
    waiting: Mapping[int, int]
    """The same for the time from the arrival of an event to the begin of its first attempt."""
    duration_us: int = 0
    """The sum of all durations."""
    waiting_us: int = 0

    @staticmethod
    def percentile(buckets: Mapping[int, int], share: float) -> float | None:
        """Milliseconds that this share of them did not exceed, up to the next power of two. None without any."""
        left = share * sum(buckets.values())
        for bucket, number in sorted(buckets.items()):
            left -= number
            if left <= 0:
                return float(2**bucket) / 1000
        return None


class RunStatistics:
    """Counts in the process of a worker, which writes the counts every few seconds. Those of a killed one are lost."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._counts: Counter[_Ended] = Counter()
        self._sums: Counter[tuple[str, str]] = Counter()
        """By handler and field, in us."""
        self._worker, self._number = secrets.token_hex(8), 0
        self._unsent: list[str | int] = []
        """What the server has not confirmed. It may have it, so this is sent again with the same number."""

    def add(self, outcome: Outcome, now: float) -> None:
        """`now` is the time in ms."""
        run, ms = outcome.run, outcome.detail.get("ms")
        if outcome.kind not in _COUNTED or not run.handler:
            return
        duration = waited = -1
        if ms is not None:
            duration = self._measured(run.handler, _DURATION, ms)
        has_attempt = outcome.kind not in (OutcomeKind.BUSY, OutcomeKind.WAIT)
        if has_attempt and not (run.attempts or run.losses or run.replays):
            waited = self._measured(run.handler, _WAITED, now - (ms or 0.0) - to_number(run.stored.values[_RECEIVED]))
        self._counts[_Ended(run.handler, outcome.kind, duration, waited)] += 1

    def _measured(self, handler: str, what: str, ms: float) -> int:
        """Add a time to its sum. Returns its power of two."""
        us = max(0, int(ms * 1000))
        self._sums[handler, f"{what}s"] += us
        return us.bit_length()

    def flush(self) -> None:
        """Write the counts. If the server does not answer, they stay for the next time."""
        while self._unsent or self._counts:
            if not self._unsent:
                self._number += 1
                self._unsent = [self._worker, self._number, _COUNTED_SECONDS, *self._take()]
            script_runner.run_one(self._client, "count_runs", *self._unsent)
            self._unsent = []

    def _take(self) -> Iterator[str | int]:
        """The counts so far, as `count_runs` takes them. They begin at 0 again."""
        counts, self._counts = self._counts, Counter()
        fields, self._sums = self._sums, Counter()
        for one, number in counts.items():
            fields[one.handler, one.kind] += number
            for name, bucket in ((_DURATION, one.duration), (_WAITED, one.waited)):
                if bucket >= 0:
                    fields[one.handler, f"{name}{bucket}"] += number
        now, days = datetime.now(UTC), timedelta(days=KEPT_DAYS + 1)
        periods = {_day(now): days, _ALL: days, _slot(now): 3 * RECENT}
        for (handler, field), number in fields.items():
            for period in periods if field in _COUNTED else (_day(now), _ALL):
                yield from (f"{period}:{handler}", int(periods[period].total_seconds()), field, number)


def runs_of(client: Redis, handlers: Sequence[str], *, days: int = 1) -> dict[str, HandlerRuns]:
    """The runs of each handler that ended today and on some days before, in UTC."""
    now = datetime.now(UTC)
    return _read(client, handlers, [_day(now - timedelta(days=before)) for before in range(days)])


def all_runs_of(client: Redis, handlers: Sequence[str]) -> dict[str, HandlerRuns]:
    """All runs of each handler that have ended, as long as one did within KEPT_DAYS: these numbers only grow."""
    return _read(client, handlers, [_ALL])


def recent_runs_of(client: Redis, handlers: Sequence[str]) -> dict[str, HandlerRuns]:
    """The runs of each handler that ended in the last five to ten minutes, by outcome only."""
    now = datetime.now(UTC)
    return _read(client, handlers, [_slot(now), _slot(now - RECENT)])


def _read(client: Redis, handlers: Sequence[str], periods: Sequence[str]) -> dict[str, HandlerRuns]:
    pipeline = client.pipeline(transaction=False)
    for handler in handlers:
        for period in periods:
            pipeline.hgetall(_key(period, handler))
    found, many = read_each(pipeline), len(periods)
    return {name: _sum(found[place * many : (place + 1) * many]) for place, name in enumerate(handlers)}


def _sum(periods: Iterable[Mapping[bytes, bytes] | None]) -> HandlerRuns:
    outcomes: Counter[str] = Counter()
    buckets: dict[str, Counter[int]] = {_DURATION: Counter(), _WAITED: Counter()}
    sums: Counter[str] = Counter()
    for fields in periods:
        for name, value in (fields or {}).items():
            text = as_text(name)
            if text in _COUNTED:
                outcomes[text] += to_number(value)
            elif text[:1] in buckets and text[1:].isdecimal():
                buckets[text[0]][int(text[1:])] += to_number(value)
            else:
                sums[text] += to_number(value)
    duration, waited = (dict(buckets[name]) for name in (_DURATION, _WAITED))
    return HandlerRuns(dict(outcomes), duration, waited, sums[f"{_DURATION}s"], sums[f"{_WAITED}s"])


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"


def _slot(moment: datetime) -> str:
    return f"recent-{int(moment.timestamp() // RECENT.total_seconds())}"


def _key(period: str, handler: str) -> str:
    return f"{keys.RUNS}{period}:{handler}"
