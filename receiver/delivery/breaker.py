"""Breaker: whether the inbox should be asked to accept deliveries now. The drain's thread updates it."""

from __future__ import annotations

import time

from redis import Redis

from receiver.inbox.redis.data_format import format_fault
from receiver.inbox.redis.server_faults import fault_of_mode
from receiver.inbox.redis.server_state import is_nearly_full

OPEN_SECONDS = 1.0


class Breaker:
    """Open for a moment after the inbox has failed, so that not every delivery waits for a timeout."""

    def __init__(self) -> None:
        self._open_until = 0.0
        self.memory_pressure = False
        self.server_fault = ""
        """Why this version cannot use the server or the data in it, and how to correct that; empty if it can."""

    @property
    def forbids_inbox(self) -> bool:
        """Whether no delivery may go to the inbox, even if there is no spool."""
        return self.memory_pressure or bool(self.server_fault)

    @property
    def is_open(self) -> bool:
        return time.monotonic() < self._open_until

    def trip(self) -> None:
        self._open_until = time.monotonic() + OPEN_SECONDS

    def close(self) -> None:
        self._open_until = 0.0

    def examine(self, client: Redis) -> None:
        """Measure the server's memory pressure, and check its mode and the format of its data.

        If it does not answer, nothing changes. Raises RedisError.
        """
        info = client.info("server", "memory")
        # It may have been away at the start, or another server may have taken its place.
        fault = fault_of_mode(info, client) or format_fault(client, write=True)
        self.server_fault = str(fault.error) if fault else ""
        self.memory_pressure = is_nearly_full(int(info["used_memory"]), int(info.get("maxmemory", 0)))
