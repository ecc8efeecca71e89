"""Run statistics: how the runs of each handler end, how long they take and how long they waited, in powers of two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from redis import Redis
from redis.exceptions import RedisError

from receiver.inbox import keys
from receiver.inbox.model import to_number
from receiver.inbox.outcomes import Outcome, OutcomeKind
from receiver.inbox.queries.damage import as_text, read_each

KEPT_DAYS = 8
_COUNTED = frozenset(OutcomeKind) - {OutcomeKind.RELEASE}
_RECEIVED = 4
"""The place of `received` in EVENT_FIELDS."""


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

    def add(self, outcome: Outcome, now: float) -> None:
        """`now` is the time in ms."""
        run, ms = outcome.run, outcome.detail.get("ms")
        if outcome.kind not in _COUNTED or not run.handler:
            return
        waited = -1
        if not (run.attempts or run.losses or run.replays):
            waited = _bucket(now - (ms or 0.0) - to_number(run.stored.values[_RECEIVED]))
        self._counts[_Ended(run.handler, outcome.kind, -1 if ms is None else _bucket(ms), waited)] += 1

    def flush(self) -> None:
        """Write the counts. If the server does not answer, they stay for the next time."""
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        fields: Counter[tuple[str, str]] = Counter()
        for one, number in counts.items():
            fields[one.handler, one.kind] += number
            for name, bucket in (("d", one.duration), ("w", one.waited)):
                if bucket >= 0:
                    fields[one.handler, f"{name}{bucket}"] += number
        pipeline = self._client.pipeline(transaction=False)
        today = datetime.now(UTC)
        for (handler, field), number in fields.items():
            pipeline.hincrby(_key(today, handler), field, number)
        for handler in {one.handler for one in counts}:
            pipeline.expire(_key(today, handler), timedelta(days=KEPT_DAYS + 1))
        try:
            pipeline.execute(raise_on_error=False)  # a damaged key costs only its own counts
        except RedisError:
            self._counts.update(counts)
            raise


def runs_of(client: Redis, handlers: Sequence[str], *, days: int = 1) -> dict[str, HandlerRuns]:
    """The runs of each handler that ended today and on some days before, in UTC."""
    pipeline = client.pipeline(transaction=False)
    now = datetime.now(UTC)
    for handler in handlers:
        for before in range(days):
            pipeline.hgetall(_key(now - timedelta(days=before), handler))
    found = read_each(pipeline)
    return {name: _read(found[place * days : (place + 1) * days]) for place, name in enumerate(handlers)}


def _read(days: Iterable[Mapping[bytes, bytes] | None]) -> HandlerRuns:
    outcomes: Counter[str] = Counter()
    buckets: dict[str, Counter[int]] = {"d": Counter(), "w": Counter()}
    for fields in days:
        for name, value in (fields or {}).items():
            text = as_text(name)
            if text in _COUNTED:
                outcomes[text] += to_number(value)
            elif text[:1] in buckets and text[1:].isdecimal():
                buckets[text[0]][int(text[1:])] += to_number(value)
    return HandlerRuns(dict(outcomes), dict(buckets["d"]), dict(buckets["w"]))


def _bucket(ms: float) -> int:
    return max(0, int(ms * 1000)).bit_length()


def _key(day: datetime, handler: str) -> str:
    return f"{keys.RUNS}{day:%Y-%m-%d}:{handler}"
