"""Breaker: whether the inbox should be asked to accept deliveries now. The drain's thread updates it."""

from __future__ import annotations

import time

from redis import Redis

from receiver.inbox.redis.data_format import format_fault

OPEN_SECONDS = 1.0
PRESSURE_BEGINS, PRESSURE_ENDS = 0.85, 0.75
"""Fractions of the server's maxmemory: above the first, no delivery goes to the inbox; below the second, they do again.
Well before maxmemory, because workers must still be able to write how runs ended."""


class Breaker:
    """Open for a moment after the inbox has failed, so that not every delivery waits for a timeout."""

    def __init__(self) -> None:
        self._open_until = 0.0
        self.memory_pressure = False
        self.unknown_format = ""
        """Why this version cannot use the data in the server; empty if it can."""

    @property
    def forbids_inbox(self) -> bool:
        """Whether no delivery may go to the inbox, even if there is no spool."""
        return self.memory_pressure or bool(self.unknown_format)

    @property
    def is_open(self) -> bool:
        return time.monotonic() < self._open_until

    def trip(self) -> None:
        self._open_until = time.monotonic() + OPEN_SECONDS

    def close(self) -> None:
        self._open_until = 0.0

    def examine(self, client: Redis) -> None:
        """Measure the server's memory pressure and check the format of its data.

        If it does not answer, nothing changes. Raises RedisError.
        """
        fault = format_fault(client, write=True)  # another server may have taken its place
        self.unknown_format = str(fault.error) if fault else ""
        memory = client.info("memory")
        maximum = int(memory.get("maxmemory", 0))
        limit = PRESSURE_ENDS if self.memory_pressure else PRESSURE_BEGINS
        self.memory_pressure = bool(maximum) and int(memory["used_memory"]) / maximum > limit
