"""Time series: the counters every 10 seconds, 5 minutes and hour, in rings of a fixed size. Only reads.

A ring is a string of slots. A slot has the time of its sample (s) and the counters as they were then, 4 bytes each. So
a sample that is written twice changes nothing, and what happened between two samples is the difference of both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from receiver.inbox import keys
from receiver.inbox.queries.damage import read_each
from receiver.inbox.redis.connecting import ServerUser

COUNTERS = ("accepted", "settled", "failed", "refused", "duplicates", "retried")
"""These grow; `settled` and `failed` also become less, when events are replayed or failures dropped."""
LEVELS = ("open", "spooled")
NAMES = (*COUNTERS, *LEVELS)
_SLOT = struct.Struct(f">I{len(NAMES)}I")
_ROUND = 2**32


class Ring(NamedTuple):
    step: int
    """Seconds between two samples."""
    slots: int

    @property
    def size(self) -> int:
        return self.slots * _SLOT.size

    @property
    def name(self) -> str:
        return f"series:{self.step}"

    def offset(self, at: int) -> int:
        """Where the sample of a time (s) is."""
        return at // self.step % self.slots * _SLOT.size


HOUR, DAY, WEEK = Ring(10, 360), Ring(300, 288), Ring(3600, 168)
RINGS = (HOUR, DAY, WEEK)
OF_STORE = "hours:"
"""How the ring of a store begins. It is one of a week."""


class Sample(NamedTuple):
    at: datetime
    values: Mapping[str, int]
    """Each counter, by its name in NAMES."""


@dataclass(frozen=True)
class SeriesChange:
    """What happened between two samples."""

    since: datetime
    until: datetime
    counts: Mapping[str, int]
    """By COUNTERS: how many more there were. Those of `settled` and `failed` may be negative."""
    levels: Mapping[str, int]
    """By LEVELS: how many there were at its end."""


class SeriesQueries(ServerUser):
    def samples(self, ring: Ring) -> list[Sample]:
        """The samples of all stores together, in order of time."""
        return self._read([ring.name], ring)[0]

    def of_stores(self, stores: Sequence[str]) -> dict[str, list[Sample]]:
        """The hourly samples of each store."""
        return dict(zip(stores, self._read([OF_STORE + name for name in stores], WEEK), strict=True))

    def _read(self, names: Iterable[str], ring: Ring) -> list[list[Sample]]:
        pipeline = self.client.pipeline(transaction=False)
        pipeline.time()
        for name in names:
            pipeline.get(keys.PREFIX + name)
        (now, _), *texts = read_each(pipeline)
        return [read_ring(text or b"", ring, now) for text in texts]


def read_ring(text: bytes, ring: Ring, now: int) -> list[Sample]:
    """The samples of a ring, in order of time, without those that are too old by now. A damaged ring has none."""
    if len(text) != ring.size:
        return []
    oldest = (now // ring.step - ring.slots + 1) * ring.step
    slots = sorted(slot for slot in _SLOT.iter_unpack(text) if oldest <= slot[0] <= now)
    return [Sample(datetime.fromtimestamp(at, UTC), dict(zip(NAMES, values, strict=True))) for at, *values in slots]


def pack_sample(at: int, counters: Mapping[str, int]) -> bytes:
    return _SLOT.pack(at, *(counters.get(name, 0) % _ROUND for name in NAMES))


def changes(samples: Sequence[Sample]) -> list[SeriesChange]:
    """What happened between each two samples. If the counters began anew between them, all that was counted since."""
    found = []
    for one, other in pairwise(samples):
        is_new = _difference(one, other, "accepted") < 0
        counts = {name: other.values[name] if is_new else _difference(one, other, name) for name in COUNTERS}
        found.append(SeriesChange(one.at, other.at, counts, {name: other.values[name] for name in LEVELS}))
    return found


def _difference(one: Sample, other: Sample, name: str) -> int:
    half = _ROUND // 2
    return (other.values[name] - one.values[name] + half) % _ROUND - half
