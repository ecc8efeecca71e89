"""Checks: which store's subscriptions are looked at next, what the last look found, and what was mended.

It holds what the workers' check needs to remember between two looks, so that any worker may do the next one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from redis import Redis

from receiver.contract.errors import StorehooksError
from receiver.inbox import keys
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.raw_connection import Argument
from receiver.inbox.redis.script_runner import ScriptCall

REPAIRS_STORED = 100
LOCK_MS = 180_000
LOOK_AGAIN = 0.1
BUSY_MS = 30_000
"""A store that somebody else is changing is looked at again after so long."""


class Occupied(StorehooksError):
    """Somebody else changes the store's subscriptions now."""


@dataclass(frozen=True)
class Trouble:
    """A subscription that was disabled: how often it was enabled again lately, and when that may be next."""

    repairs: int
    first_at: float
    next_at: float
    note: str = ""
    """Why it was not enabled this time."""


@dataclass(frozen=True)
class Checked:
    """What the last look at a store found."""

    store: str
    at: float
    by: str = "check"
    wanted: int = 0
    existing: tuple[str, ...] = ()
    """Ours at the store after the look, by the store's names."""
    pending: tuple[dict[str, str], ...] = ()
    """Changes that were not made: action, topic, why."""
    foreign: int = 0
    unknown: str = ""
    note: str = ""
    trouble: Mapping[str, Trouble] = field(default_factory=dict)
    """By the store's name of the topic."""


@dataclass(frozen=True)
class Repair:
    """Something that had gone at the store and was mended; the gap is from the last good delivery to the mending."""

    store: str
    topic: str
    theirs: str
    action: str
    at: float
    last_delivery: float | None = None
    probe_ms: float | None = None

    @property
    def gap(self) -> float | None:
        return None if self.last_delivery is None else max(0.0, self.at - self.last_delivery)


class SubscriptionChecks:
    def __init__(self, client: Redis) -> None:
        self.client = client

    # Whose turn it is

    def due(self, stores: Sequence[str], *, every: float, most: int) -> list[str]:
        """Stores to look at now, each given to one caller; those seen first are spread over the time between looks."""
        gone = self.removed()
        stores = [store for store in stores if store not in gone]
        arguments: list[Argument] = [int(every * 1000), LOCK_MS, most, *stores]
        (found,) = script_runner.run(self.client, [ScriptCall("checks", arguments)])
        return [name.decode() for name in found]

    def next_at(self, store: str, seconds: float) -> None:
        """Look at the store again after so long."""
        now, _ = self.client.time()
        self.client.zadd(keys.CHECK, {store: (now + seconds) * 1000}, xx=True)

    @contextmanager
    def alone(self, store: str, *, within: float = 0.0) -> Iterator[Callable[[], None]]:
        """Only one process at a time changes a store's subscriptions; else Occupied, after waiting so long.

        Gives what is to be called before each change: it keeps the store ours, or raises Occupied if it is no more.
        """
        name, mine, until = keys.CHECK_LOCK + store, secrets.token_hex(8), time.monotonic() + within
        while not self.client.set(name, mine, nx=True, px=LOCK_MS):
            if time.monotonic() >= until:
                raise Occupied(f"{store}: somebody else changes its subscriptions just now; try again in a minute")
            time.sleep(LOOK_AGAIN)
        try:
            yield lambda: self._hold(store, mine)
        finally:
            script_runner.run(self.client, [ScriptCall("unlock", [store, mine])])

    def _hold(self, store: str, mine: str) -> None:
        (held,) = script_runner.run(self.client, [ScriptCall("relock", [store, mine, LOCK_MS])])
        if not held:
            raise Occupied(f"{store}: this took so long that others may change its subscriptions now; try again")

    # What was found

    def found(self, checked: Checked) -> None:
        self.client.set(keys.CHECKED + checked.store, orjson.dumps(asdict(checked)))

    def last(self, stores: Sequence[str]) -> dict[str, Checked]:
        """The last look at each store that had one."""
        texts: Any = self.client.mget([keys.CHECKED + store for store in stores]) if stores else []
        return {store: _checked(text) for store, text in zip(stores, texts, strict=True) if text}

    # What was mended

    def record_repair(self, repair: Repair) -> None:
        """Store a repair, and count it."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.lpush(keys.REPAIRS + repair.store, orjson.dumps(asdict(repair)))
        pipeline.ltrim(keys.REPAIRS + repair.store, 0, REPAIRS_STORED - 1)
        pipeline.hincrby(keys.COUNTERS, "repairs", 1)
        pipeline.hincrby(keys.COUNTERS, f"repairs|{repair.store}", 1)
        pipeline.execute()

    def repairs(self, store: str, many: int = REPAIRS_STORED) -> list[Repair]:
        """The newest first."""
        found: Any = self.client.lrange(keys.REPAIRS + store, 0, many - 1)
        return [Repair(**orjson.loads(text)) for text in found]

    def repair_count(self, store: str = "") -> int:
        """How many there have been, of a store or in all."""
        return int(self.client.hget(keys.COUNTERS, f"repairs|{store}" if store else "repairs") or 0)

    def last_deliveries(self, store: str) -> dict[str, float]:
        """When each of the store's names last came, in seconds since 1970."""
        found: Any = self.client.hgetall(keys.EVENT_NAMES + store)
        return {name[2:].decode(): int(at) / 1000 for name, at in found.items() if name.startswith(b"l:")}

    # Stores that go and come

    def removed(self) -> set[str]:
        found: Any = self.client.smembers(keys.REMOVED)
        return {store.decode() for store in found}

    def remove(self, store: str) -> None:
        """Nothing of the store is looked at or mended any more, also by a worker that still has its config."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.sadd(keys.REMOVED, store)
        pipeline.zrem(keys.CHECK, store)
        pipeline.execute()

    def welcome(self, store: str) -> None:
        """It is here, or here again."""
        self.client.srem(keys.REMOVED, store)

    def forget(self, store: str) -> None:
        """What was found and mended at a store that is gone."""
        self.client.delete(keys.CHECKED + store, keys.REPAIRS + store)


def _checked(text: bytes) -> Checked:
    found = orjson.loads(text)
    trouble = {name: Trouble(**one) for name, one in found.pop("trouble").items()}
    return Checked(
        **{**found, "existing": tuple(found["existing"]), "pending": tuple(found["pending"])}, trouble=trouble
    )
