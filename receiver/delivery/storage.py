"""Storage: decides where a delivery is stored, and stores it there: in the inbox, or else in the spool.

`spooling_stores` is the only rule. The event loop applies it with `batch_for_inbox`, which never blocks; every other
caller with `store_all`. The spool belongs to this host; `receiver.delivery.drain` moves its rows to the inbox.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from redis.exceptions import RedisError

from receiver import logs
from receiver.contract.intake import Delivery
from receiver.delivery.bounded_spool import BoundedSpool
from receiver.delivery.breaker import Breaker
from receiver.delivery.inbox_access import InboxAccess
from receiver.inbox import AcceptResult
from receiver.inbox.accept_batch import AcceptBatch
from receiver.inbox.redis.polled_connection import PolledConnection
from receiver.inbox.redis.server_faults import reason_of
from receiver.spool import BUSY_SECONDS, SpoolResult

READY_SECONDS = 1.0
"""How long the answer to "can a delivery be stored now" counts."""
WAIT_SECONDS = 0.25
"""How much longer than the inbox' timeout one who asks waits for the try of another, if the last result is too old."""
MAX_WAIT_SECONDS = 1.0

NEVER = float("-inf")

StoredIn = Literal["redis", "spool"]

log = logs.get("storage")


@dataclass(frozen=True)
class NotStored:
    """Neither the inbox nor the spool can take a delivery; the sender must send it again."""

    reason: str


class Stored(NamedTuple):
    status: Literal["accepted", "duplicate", "full"]
    id: str
    where: StoredIn = "redis"
    items: Sequence[AcceptResult | SpoolResult] = ()
    """The results for each event of a batch, in order."""


StoreResults = list[Stored | NotStored]
"""One for each delivery of a group, in order."""


def stored_in_inbox(reply: AcceptResult | RedisError) -> Stored | None:
    return Stored(reply.status, reply.id, "redis", reply.items) if isinstance(reply, AcceptResult) else None


def _is_spooled(result: Stored | NotStored) -> bool:
    """Whether the spool has it: False also for one whose store is over its share."""
    return isinstance(result, Stored) and result.status != "full"


class Readiness(NamedTuple):
    """Where a delivery would be stored now, and what waits in the spool."""

    stores_in: StoredIn
    spooled: int | None
    """None where the spool cannot be read."""
    waiting_since: str | None
    """When the oldest delivery in the spool arrived."""


def spooling_stores(
    stores: Set[str], breaker: Breaker, *, spool_enabled: bool, has_rows: Callable[[str], bool]
) -> Set[str]:
    """The stores whose deliveries must not go to the inbox now; those of all other stores do.

    Under memory pressure all stores are returned, even without a spool: the sender gets 503, workers can still write.
    The same if the data in the server has a format that this version does not know.
    An open breaker does not count without a spool, because the inbox is then the only place.
    A store that has rows in the spool adds to them, which keeps its deliveries in order, while the spool takes more.
    """
    if breaker.forbids_inbox:
        return stores
    if not spool_enabled:
        return set()
    if breaker.is_open:
        return stores
    return {store for store in stores if has_rows(store)}


class DeliveryStorage:
    def __init__(self, inbox: InboxAccess, spool: BoundedSpool, breaker: Breaker) -> None:
        self._inbox = inbox
        self._spool = spool
        self._breaker = breaker
        self._problems = logs.ThrottledLog(log)
        self._trying = threading.Lock()
        self._stores_in: StoredIn | None = None
        self._tried_at = self._try_began = NEVER

    # For the event loop, which must not block

    def batch_for_inbox(self, deliveries: Sequence[Delivery]) -> AcceptBatch | None:
        """What to send to the inbox; None where `store_all` must store the group, which may block. Never blocks."""
        if self._spooling_stores(deliveries, self._spool.may_have_rows):
            return None
        try:
            return self._inbox.batch(deliveries)
        except Exception:  # noqa: BLE001  `store_all` finds the delivery that cannot be stored
            return None

    @property
    def disk_hangs(self) -> bool:
        """Whether a thread that stores a group may wait for the disk for ever."""
        return self._spool.hangs

    def inbox_failed(self, error: Exception) -> None:
        """Open the breaker: the inbox is not asked again for a moment."""
        self._inbox.outage.failed(why=reason_of(error), spool="on" if self._spool.enabled else "off")
        self._breaker.trip()

    def inbox_worked(self) -> None:
        """Report that the inbox has accepted deliveries."""
        self._inbox.outage.worked()

    def open_connection(self) -> PolledConnection | None:
        """A connection to the inbox that never blocks, for batches; None if there is none now. Opening it may block."""
        return self._inbox.open_connection()

    # For threads, which may block

    def store_all(self, deliveries: Sequence[Delivery]) -> StoreResults:
        """Store a group durably: one round trip to the inbox, or one transaction of the spool."""
        return self._isolate_errors(self._store_group, deliveries)

    def spool_all(self, deliveries: Sequence[Delivery]) -> StoreResults:
        """Store deliveries in the spool that the inbox refused while it accepted others."""
        return self._isolate_errors(self._spool_group, deliveries)

    def readiness(self) -> Readiness | None:
        """Where a delivery would be stored now; None if nowhere. Tried once a second, for all callers together."""
        # While one caller tries, others get the last result: each one that waits holds a thread. A result that is older
        # than the longest try may be from before a fault: then they wait as long as a hanging inbox takes. If the try
        # has taken longer than it can, the disk hangs.
        longest_try = self._inbox.timeout + BUSY_SECONDS
        is_old = time.monotonic() - self._tried_at >= READY_SECONDS + longest_try
        trying = self._trying
        if trying.acquire(timeout=min(self._inbox.timeout + WAIT_SECONDS, MAX_WAIT_SECONDS) if is_old else 0):
            try:
                if time.monotonic() - self._tried_at >= READY_SECONDS:
                    self._try_began = time.monotonic()
                    stores_in = self._try_to_store()
                    if trying is self._trying:  # else it hung, and others have tried since
                        self._stores_in, self._tried_at = stores_in, time.monotonic()
            finally:
                trying.release()
        elif is_old and time.monotonic() - self._try_began >= longest_try:
            if self._spool.hangs:  # the next one tries without the disk
                self._trying = threading.Lock()
            return None
        stores_in = self._stores_in
        if stores_in is None:
            return None
        count, oldest = self._spool.summary()
        since = datetime.fromtimestamp(oldest, UTC).isoformat(timespec="seconds") if count else None
        return Readiness(stores_in, count, since)

    def _try_to_store(self) -> StoredIn | None:
        """Do what a delivery of a store without spooled rows would need, up to the commit."""
        spools = spooling_stores({""}, self._breaker, spool_enabled=self._uses_spool, has_rows=lambda _: False)
        if not spools and self._inbox_accepts():
            return "redis"
        return "spool" if self._spool.can_commit() else None

    def _inbox_accepts(self) -> bool:
        try:
            self._inbox.check_accept()
        except RedisError:
            return False
        return True

    def _spooling_stores(self, deliveries: Sequence[Delivery], has_rows: Callable[[str], bool]) -> Set[str]:
        stores = {one.event.store for one in deliveries}
        return spooling_stores(stores, self._breaker, spool_enabled=self._uses_spool, has_rows=has_rows)

    @property
    def _uses_spool(self) -> bool:
        return self._spool.enabled and not self._spool.hangs

    def _isolate_errors(
        self, store: Callable[[Sequence[Delivery]], StoreResults], deliveries: Sequence[Delivery]
    ) -> StoreResults:
        """If storing the group raises, store each delivery alone: an error affects only the delivery that caused it."""
        try:
            return store(deliveries)
        except Exception as error:  # noqa: BLE001  every delivery gets an answer
            if len(deliveries) > 1:
                return [self._isolate_errors(store, [one])[0] for one in deliveries]
            self._problems.error("a delivery cannot be stored", why=reason_of(error))
            return [NotStored("it cannot be stored")]

    def _store_group(self, deliveries: Sequence[Delivery]) -> StoreResults:
        spooling = self._spooling_stores(deliveries, self._spool.has_rows)
        direct = [at for at, one in enumerate(deliveries) if one.event.store not in spooling]
        stored: dict[int, Stored | NotStored] = self._accept_at(direct, deliveries)
        left = [at for at in range(len(deliveries)) if at not in stored]
        if left:
            stored |= zip(left, self._spool_group([deliveries[at] for at in left]), strict=True)
        if not self._breaker.forbids_inbox and not self._breaker.is_open:
            # Their stores have older rows, but the spool takes no more: an answer is worth more than the order.
            untried = [at for at in left if at not in direct and not _is_spooled(stored[at])]
            stored |= self._accept_at(untried, deliveries)
        return [stored[at] for at in range(len(deliveries))]

    def _accept_at(self, places: Sequence[int], deliveries: Sequence[Delivery]) -> dict[int, Stored | NotStored]:
        """The results, by place, for those deliveries that the inbox took."""
        accepted = self._accept([deliveries[at] for at in places]) if places else []
        return {at: one for at, one in zip(places, accepted, strict=True) if one}

    def _accept(self, deliveries: Sequence[Delivery]) -> list[Stored | None]:
        """The inbox's result for each delivery; None for one that it did not take."""
        try:
            replies = self._inbox.accept_each(deliveries)
        except RedisError as error:
            self.inbox_failed(error)
            return [None] * len(deliveries)
        errors = [reply for reply in replies if isinstance(reply, RedisError)]
        if errors and len(errors) == len(replies):  # if it accepted any, the server works
            self.inbox_failed(errors[0])
        else:
            self.inbox_worked()
        return [stored_in_inbox(reply) for reply in replies]

    def _spool_group(self, deliveries: Sequence[Delivery]) -> StoreResults:
        obstacle = self._spool.obstacle()
        if not obstacle:
            try:
                added = self._spool.add(deliveries)
                self._spool.outage.worked()
                return [Stored(one.status, one.id, "spool", one.items) for one in added]
            except sqlite3.Error as error:
                self._spool.reopen(error)
                self._spool.outage.failed(why=str(error))
                obstacle = "the spool cannot be written"
        elif self._spool.enabled:
            self._spool.outage.failed(why=obstacle)
        return [NotStored(f"the inbox cannot take it, and {obstacle}")] * len(deliveries)
