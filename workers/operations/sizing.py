"""Sizing: the memory, disk and processes that a number of events needs, from measured constants. Pure.

The constants were measured on two cores with Valkey 9.1, SQLite 3.40 and PostgreSQL 15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from receiver.config import Config
from receiver.inbox.history_moves import MARK_BYTES

DAY = 86400.0
EVENT_BYTES, RUN_BYTES = 1150, 100
"""Of a settled event in Redis, without its body, and of each of its runs."""
STORED_BYTES = {"sqlite": (820, 206, 0.2), "postgresql": (2600, 214, 1.1)}
"""Of a past event: its record and headers, each of its runs, and the part of its body's size that is left when it is
compressed. PostgreSQL also has the payload as jsonb, with an index."""
USABLE = 0.7
"""Part of maxmemory to plan with. Above it events are moved without yielding; above 0.85 deliveries go to the spool."""
DISK_FACTOR = 3
"""Disk of the Redis server for each byte of its data: its append-only file, and a second one while it is rewritten."""
WEB_RATE, WORKER_RATE, MOVE_RATE = 1500.0, 3000.0, 1500.0
"""Deliveries and short runs that one process takes in a second, and events that the housekeeper moves: half of what was
measured at full load."""
CHILD_LOAD = 0.7
"""Part of the time that child processes are to be busy with handlers."""


@dataclass(frozen=True)
class PlannedLoad:
    events_per_day: float
    body: int
    handlers: int
    seconds: float
    """How long a handler takes."""
    peak: float
    """The rate of the busiest minutes, as a multiple of the average."""

    @property
    def rate(self) -> float:
        """Events in a second, on average."""
        return self.events_per_day / DAY

    @property
    def peak_rate(self) -> float:
        return self.rate * self.peak


@dataclass(frozen=True)
class Needs:
    history: str
    """sqlite, postgresql or off."""
    memory: float
    """Bytes of data in Redis."""
    maxmemory: float
    redis_disk: float
    history_disk: float
    web: int
    """Processes of `storehooks web`."""
    workers: int
    child_processes: int
    """In all workers together."""
    moves_in_time: bool
    """Whether the housekeeper moves as many events as arrive in a day, if it works half of the time."""


def needs_of(config: Config, load: PlannedLoad) -> Needs:
    url = config.history_url
    history = url if url in ("off", "sqlite") else "postgresql"
    memory = memory_of(config, load, history)
    children = max(1, math.ceil(load.peak_rate * load.handlers * load.seconds / CHILD_LOAD))
    return Needs(
        history=history,
        memory=memory,
        maxmemory=memory / USABLE,
        redis_disk=memory * DISK_FACTOR,
        history_disk=disk_of(config, load, history),
        web=max(1, math.ceil(load.peak_rate / WEB_RATE)),
        workers=max(1, math.ceil(load.peak_rate * load.handlers / WORKER_RATE)),
        child_processes=children,
        moves_in_time=history == "off" or load.rate <= MOVE_RATE / 2,
    )


def memory_of(config: Config, load: PlannedLoad, history: str) -> float:
    """Bytes in Redis once as many events leave it as arrive. Open events and failures come on top."""
    rate, retention, window = load.rate, config.retention, config.receiver.dedupe_retention
    record = EVENT_BYTES + load.handlers * RUN_BYTES
    if history == "off":
        return rate * (max(retention.records, window) * record + retention.bodies * load.body)
    return rate * (config.history.after * (record + load.body) + window * MARK_BYTES)


def disk_of(config: Config, load: PlannedLoad, history: str) -> float:
    if history == "off":
        return 0.0
    event, run, body = STORED_BYTES[history]
    rate, retention = load.rate, config.retention
    return rate * (retention.records * (event + load.handlers * run) + retention.bodies * load.body * body)
