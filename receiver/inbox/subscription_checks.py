"""Subscription checks: which store is checked next, the results of the last checks, and the repairs.

It stores what is needed from one check to the next, so that any worker can run the next check.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from receiver.contract.errors import StorehooksError
from receiver.inbox import keys
from receiver.inbox.model import to_number
from receiver.inbox.queries.damage import as_text, read_numbers
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser, server_ms

MAX_REPAIRS_KEPT = 100
LOCK_MS = 180_000
LOCK_POLL_SECONDS = 0.1
BUSY_MS = 30_000
"""Time until the next check of a store whose subscriptions another process is changing."""


class StoreLocked(StorehooksError):
    """Another process is changing the store's subscriptions."""


@dataclass(frozen=True)
class Trouble:
    """A subscription that the store disabled or deleted: how often it was repaired lately, and when it may be next."""

    repairs: int
    first_at: float
    next_at: float
    note: str = ""
    """Why it was not repaired this time."""


@dataclass(frozen=True)
class CheckResult:
    """The result of the last check of a store."""

    store: str
    at: float
    by: str = "check"
    wanted: int = 0
    existing: tuple[str, ...] = ()
    """Our subscriptions at the store after the check, by the store's names."""
    pending: tuple[dict[str, str], ...] = ()
    """Changes that were not made: action, topic, why."""
    foreign: int = 0
    unknown: str = ""
    note: str = ""
    trouble: Mapping[str, Trouble] = field(default_factory=dict)
    """By the store's name of the topic."""
    urls: tuple[str, ...] = ()
    """Our callback URL, and those of earlier checks that the store still has subscriptions for."""
    held_back: str = ""
    """Why nothing is created for some topics, and on the next line the fix."""

    @property
    def missing(self) -> int:
        """The number of changes without which events do not arrive."""
        return sum(change.get("action") != "delete" for change in self.pending)

    @property
    def is_faulty(self) -> bool:
        """Whether the store's events may not arrive until a person does something."""
        return bool(self.unknown or self.held_back or self.missing)


@dataclass(frozen=True)
class Repair:
    """A subscription that was missing or disabled and was repaired. The gap is the time since the last delivery."""

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


class SubscriptionChecks(ServerUser):
    # Which store is next

    def due(self, stores: Sequence[str], *, every: float, most: int) -> list[str]:
        """The stores to check now, each assigned to one caller. First checks of new stores are spread over `every`."""
        removed = self.removed()
        stores = [store for store in stores if store not in removed]
        due = script_runner.run_one(self.client, "checks", int(every * 1000), LOCK_MS, most, *stores)
        return [name.decode() for name in due]

    def check_again_in(self, store: str, seconds: float, *, or_earlier: bool = False) -> None:
        """Set when the store is checked next. With `or_earlier`, an earlier check stays."""
        due = int(server_ms(self.client)) + seconds * 1000
        self.client.zadd(keys.CHECK, {store: due}, xx=True, lt=or_earlier)

    @contextmanager
    def lock(self, store: str, *, within: float = 0.0) -> Iterator[Callable[[], None]]:
        """Lock a store's subscriptions for this process. Raises StoreLocked if that fails for `within` seconds.

        Yields a function to call before each change: it extends the lock, or raises StoreLocked if it was lost.
        """
        name, token, until = keys.CHECK_LOCK + store, secrets.token_hex(8), time.monotonic() + within
        while not self.client.set(name, token, nx=True, px=LOCK_MS):
            left_ms = int(self.client.pttl(name))
            if left_ms > LOCK_MS:  # the clock was set back, and its owner may be dead
                self.client.pexpire(name, LOCK_MS)
            if time.monotonic() >= until:
                left = max(1, math.ceil(min(left_ms, LOCK_MS) / 1000))
                again = f"try again when it has ended, or if it was killed, in {left} s"
                raise StoreLocked(f"{store}: another process is changing its subscriptions; {again}")
            time.sleep(LOCK_POLL_SECONDS)
        try:
            yield lambda: self._extend_lock(store, token)
        finally:
            script_runner.run_one(self.client, "relock", store, token, 0)

    def _extend_lock(self, store: str, token: str) -> None:
        held = script_runner.run_one(self.client, "relock", store, token, LOCK_MS)
        if not held:
            raise StoreLocked(f"{store}: this took too long, and the lock on its subscriptions has expired; try again")

    # Results

    def store_result(self, result: CheckResult) -> None:
        self.client.set(keys.CHECKED + result.store, orjson.dumps(asdict(result)))

    def last_results(self, stores: Sequence[str]) -> dict[str, CheckResult]:
        """The last result of each store that was checked. A damaged one is left out; the next check writes it again."""
        texts: Any = self.client.mget([keys.CHECKED + store for store in stores]) if stores else []
        found = {}
        for store, text in zip(stores, texts, strict=True):
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                found[store] = _result(text or b"")
        return found

    # Repairs

    def record_repair(self, repair: Repair) -> None:
        """Store a repair and count it."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.lpush(keys.REPAIRS + repair.store, orjson.dumps(asdict(repair)))
        pipeline.ltrim(keys.REPAIRS + repair.store, 0, MAX_REPAIRS_KEPT - 1)
        pipeline.hincrby(keys.COUNTERS, f"repairs|{repair.store}", 1)
        pipeline.execute()

    def repairs(self, store: str, limit: int = MAX_REPAIRS_KEPT) -> list[Repair]:
        """The newest first. A damaged one is left out."""
        texts: Any = self.client.lrange(keys.REPAIRS + store, 0, limit - 1)
        found = []
        for text in texts:
            with suppress(ValueError, TypeError):
                found.append(Repair(**orjson.loads(text)))
        return found

    def repair_count(self, store: str) -> int:
        """The number of repairs of a store so far."""
        return to_number(self.client.hget(keys.COUNTERS, f"repairs|{store}"))

    def last_deliveries(self, store: str) -> dict[str, float]:
        """When each of the store's event names was last delivered, in seconds since 1970."""
        fields: Any = self.client.hgetall(keys.EVENT_NAMES + store)
        numbers = read_numbers(self.client, keys.EVENT_NAMES + store, fields)
        return {name[2:]: at / 1000 for name, at in numbers.items() if name.startswith("l:")}

    # Public URLs that `dev` has replaced

    def replace_public_url(self, url: str) -> None:
        """From now on, subscriptions under this former public URL are ours, too."""
        self.client.sadd(keys.REPLACED_URLS, url)

    def replaced_public_urls(self) -> list[str]:
        urls: Any = self.client.smembers(keys.REPLACED_URLS)
        return sorted(map(as_text, urls))

    # Removed stores

    def removed(self) -> set[str]:
        stores: Any = self.client.smembers(keys.REMOVED)
        return set(map(as_text, stores))

    def remove(self, store: str) -> None:
        """Stop checks and repairs of the store, even by a worker that still has it in its config."""
        pipeline = self.client.pipeline(transaction=True)
        pipeline.sadd(keys.REMOVED, store)
        pipeline.zrem(keys.CHECK, store)
        pipeline.execute()

    def restore(self, store: str) -> None:
        """Allow checks of a store that was removed before."""
        self.client.srem(keys.REMOVED, store)

    def forget(self, store: str) -> None:
        """Delete the results and repairs of a removed store."""
        self.client.delete(keys.CHECKED + store, keys.REPAIRS + store)


def _result(text: bytes) -> CheckResult:
    fields = orjson.loads(text)
    trouble = {name: Trouble(**one) for name, one in fields.pop("trouble").items()}
    lists = {name: tuple(fields[name]) for name in ("existing", "pending", "urls")}
    return CheckResult(**{**fields, **lists}, trouble=trouble)
