"""Sampling: writes the counters of this moment into the rings of `queries/time_series.py`."""

from __future__ import annotations

from collections.abc import Mapping

from redis import Redis

from receiver.inbox.queries.events import EventQueries
from receiver.inbox.queries.time_series import HOUR, OF_STORE, RINGS, WEEK, pack_sample
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import server_ms
from receiver.inbox.redis.raw_connection import Argument

STORES_AT_ONCE = 200


class Sampler:
    """Any number of processes may sample at once."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self._last: Mapping[str, Mapping[str, int]] = {}
        """The counters of each store that were last written, in this hour."""
        self._slot = self._hour = 0

    def sample(self) -> bool:
        """Write a sample if none was written in this slot of the finest ring. Returns whether it did."""
        at = int(server_ms(self.client) / 1000)
        if at // HOUR.step == self._slot:
            return False
        self.write(at)
        self._slot = at // HOUR.step
        return True

    def write(self, at: int) -> None:
        """Write the counters as the sample of a time (s). A store is left out if it has the same as before, once it was
        written in this hour."""
        queries = EventQueries(self.client)
        counters = queries.counters()
        spooled = sum(one.count or 0 for one in queries.spools().values())
        total = pack_sample(at, {**counters.total, "spooled": spooled})
        calls: list[list[Argument]] = [[]]
        for ring in RINGS:
            calls[0] += (ring.name, ring.size, ring.offset(at), total)
        if at // WEEK.step != self._hour:
            self._last, self._hour = {}, at // WEEK.step
        changed = [name for name, counts in counters.stores.items() if self._last.get(name) != counts]
        for first in range(0, len(changed), STORES_AT_ONCE):
            calls.append([])
            for name in changed[first : first + STORES_AT_ONCE]:
                calls[-1] += (OF_STORE + name, WEEK.size, WEEK.offset(at), pack_sample(at, counters.stores[name]))
        for arguments in calls:
            script_runner.run_one(self.client, "record_samples", *arguments)
        self._last = counters.stores
