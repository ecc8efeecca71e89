"""Drain: moves the spool's rows to the inbox, each store in its turn, and publishes how many are left.

One process of the host at a time moves rows. A row is deleted only after the inbox has acknowledged it. Accepting is
idempotent, so a process that dies in between loses nothing and adds no event. Nothing is sent to a server that would
not acknowledge it.

On a full or read-only disk rows are moved all the same, and deleted when that is possible. Until then each process
remembers which ones it has moved; another process moves them again. At the end of a pass it forgets those that are
gone, because a delivery that is spooled again must be moved again.

Every process publishes, so that a host that stops doing so is noticed: it may have spooled deliveries just before. A
receiver that is stopped signs off.

The drain's thread also updates the breaker of its process, even where the spool is off. Only this thread measures the
server's memory pressure, and only it closes the breaker before its time is over.
"""

from __future__ import annotations

import fcntl
import math
import os
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as NoAnswer

from receiver import logs
from receiver.config import Config
from receiver.contract.intake import Delivery
from receiver.delivery.bounded_spool import BoundedSpool
from receiver.delivery.breaker import Breaker
from receiver.delivery.inbox_access import InboxAccess
from receiver.inbox import AcceptResult, Inbox, connect_to
from receiver.inbox.accept_batch import GROUP_SIZE
from receiver.inbox.counter_buffer import CounterBuffer
from receiver.inbox.keys import host_of
from receiver.inbox.known_data import KnownData
from receiver.inbox.redis.script_runner import NotReplicatedError
from receiver.inbox.redis.server_faults import reason_of
from receiver.spool import DamagedEvents, RowKey, SpooledEvents, SpooledRow, keep, open_damaged

RUN_EVERY = 0.5
PUBLISH_EVERY = 1.0
CHECK_AGE_EVERY = 60.0
PASS_SECONDS = 10.0
"""So long after its first row has moved, a pass ends: a store or a disk that was full is tried once in a pass."""
QUIET_SECONDS = 10.0
"""A server that answers may still refuse deliveries. After this time without a failure, it is taken to accept them."""

log = logs.get("drain")


@dataclass
class DrainPass:
    """One pass over the rows of a file."""

    events: SpooledEvents | DamagedEvents
    in_inbox: Set[RowKey]
    """The rows that the last pass has moved and could not delete."""
    moved: int = 0
    left: int = 0
    """The inbox does not take them now."""
    unreadable: int = 0
    undeleted: set[RowKey] = field(default_factory=set)
    """They are in the inbox and in the file."""
    blocked: set[str] = field(default_factory=set)
    """Stores of which the inbox takes nothing now."""
    tried: set[RowKey] = field(default_factory=set)
    """The rows that were tried and are still in the file."""
    last_of: dict[str, int] = field(default_factory=dict)
    """The number of the last row of each store that was tried."""
    until: float = math.inf
    """When it ends, once it has moved a row. Reading again what the last pass has moved may take longer."""


class SpoolDrain:
    def __init__(self, config: Config, inbox: InboxAccess, spool: BoundedSpool, breaker: Breaker) -> None:
        self._inbox = inbox
        self._spool = spool
        self._breaker = breaker
        self._counters = CounterBuffer(inbox.client)
        self._max_age = config.receiver.spool_age
        self._data_dir = config.data_dir
        self._undeleted: dict[Path, set[RowKey]] = defaultdict(set)
        """Rows of each file that are in the inbox, and were not deleted in the last pass."""
        self._host = host_of(config.data_dir)
        self._known_data = KnownData(config.data_dir, log, ack=config.redis.ack)
        self._check_age_at = self._publish_at = 0.0
        self._problems = logs.ThrottledLog(log)
        self._outage = logs.OutageLog(
            log, begins="the spool cannot be drained now", ends="the spool can be drained again"
        )
        self._memory = logs.OutageLog(
            log, begins="Redis is near its maxmemory, and no delivery goes to it", ends="Redis has memory again"
        )

    def start(self) -> None:
        """Run in a thread until the process ends."""
        threading.Thread(target=self._run_forever, name="spool", daemon=True).start()

    def _run_forever(self) -> None:
        pause = threading.Event()
        while True:
            try:
                self.run_once()
                self._outage.worked()
            except Exception as error:  # noqa: BLE001  rows stay in the spool until the next run
                is_of_file = isinstance(error, (sqlite3.Error, OSError))  # its message says which disk or file
                self._outage.failed(why=str(error) if is_of_file else reason_of(error))
                if isinstance(error, sqlite3.Error):
                    self._spool.reopen(error)
            with suppress(Exception):
                if self._spool.outage.lasts:  # the next delivery for the spool may be weeks away
                    self._spool.can_commit()
                self._spool.checkpoint()
            with suppress(Exception):
                self._report_overdue_rows()
            pause.wait(RUN_EVERY)

    def run_once(self) -> None:
        """Update the breaker, publish how many rows there are, and drain unless another process of this host does."""
        accepts = self._update_breaker()
        if self._breaker.server_fault:
            self._problems.error("no delivery goes to the inbox", why=self._breaker.server_fault)
            return
        self._known_data.compare(self._inbox.client)
        if not self._spool.in_use:
            return
        self._publish()
        if not accepts or not self._spool.exists():
            return
        folder = os.open(self._data_dir, os.O_RDONLY)  # not a file in it: a read-only disk takes no new one
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.drain_damaged_files()
            self.drain()
            if not self._undeleted[self._spool.file]:
                self._spool.events().release_free_pages()
        except BlockingIOError:
            return
        finally:
            os.close(folder)

    def _update_breaker(self) -> bool:
        """Whether the inbox would accept a delivery now. Raises RedisError if the server does not answer."""
        try:
            self._breaker.examine(self._inbox.client)
        except (LostConnection, NoAnswer) as error:
            self._log_outage(error)  # deliveries may not notice it: those of a store with rows go to the spool at once
            raise
        if self._breaker.memory_pressure:
            self._memory.failed(spool="on" if self._spool.enabled else "off")
        self._memory.worked(quiet=QUIET_SECONDS)
        if self._breaker.server_fault:
            return False
        try:
            self._inbox.check_accept()
        except RedisError as error:
            self._breaker.trip()
            self._log_outage(error)
            return False
        self._breaker.close()
        if self._breaker.forbids_inbox:
            return False
        self._inbox.outage.worked(quiet=QUIET_SECONDS)
        return True

    def _log_outage(self, error: RedisError) -> None:
        self._inbox.outage.failed(why=reason_of(error), spool="on" if self._spool.enabled else "off")

    def drain(self) -> int:
        """Move every row that the inbox takes; return how many were moved."""
        events, file = self._spool.events(), self._spool.file
        done = DrainPass(events, self._undeleted[file])
        self._drain(done, file)
        self._undeleted[file] = done.undeleted
        if done.moved:
            left = events.count() - len(done.undeleted)
            log.info("spooled deliveries are in the inbox", events=done.moved, left=left)
        return done.moved

    def _drain(self, done: DrainPass, file: Path) -> None:
        """Move rows, except for those that are in the inbox already, and delete them. However it ends, the rows that
        are in both places are remembered."""
        events, in_inbox, last = done.events, done.in_inbox, 0
        try:
            while rows := events.oldest(GROUP_SIZE, after=last, except_stores=() if in_inbox else done.blocked):
                is_over = isinstance(events, SpooledEvents) and time.monotonic() > done.until
                if is_over or self._breaker.forbids_inbox:
                    done.left += len(rows)
                    done.undeleted.update(key for key in in_inbox if key[0] > last)  # this pass has not met them
                    break
                last = rows[-1].number
                self._drain_rows(done, rows)
                if isinstance(events, SpooledEvents) and not done.undeleted:
                    self._drain_each_store(done, events)
        finally:
            self._undeleted[file] = self._undeleted[file] | done.undeleted

    def _drain_each_store(self, done: DrainPass, events: SpooledEvents) -> None:
        """Give each store its turn. While a store has rows, its new deliveries become rows. So it would wait as long as
        another one gets as many deliveries as can be moved, for example one captured delivery repeatedly."""
        for rows in events.oldest_of_each(GROUP_SIZE, after=done.last_of, except_stores=done.blocked):
            if self._breaker.forbids_inbox:
                return
            self._drain_rows(done, rows)

    def _drain_rows(self, done: DrainPass, rows: list[SpooledRow]) -> None:
        """Move rows that this pass has not met yet."""
        for row in rows:
            done.last_of[row.store] = max(row.number, done.last_of.get(row.store, 0))
        rows = [row for row in rows if row.key not in done.tried]
        new, moved = [row for row in rows if row.key not in done.in_inbox], set[str]()
        try:
            self._move_rows(new, done.blocked, moved)
        finally:
            self._settle(done, rows, moved)
        if moved:
            done.until = min(done.until, time.monotonic() + PASS_SECONDS)

    def _settle(self, done: DrainPass, rows: list[SpooledRow], moved: set[str]) -> None:
        """Delete rows that are in the inbox, and note what became of each row."""
        taken = {row.key: row for row in rows if row.key in done.in_inbox or row.id in moved}
        done.moved += len(moved)
        done.unreadable += sum(row.delivery is None for row in rows)
        done.left += sum(row.delivery is not None for row in rows) - len(taken)
        events = done.events
        if isinstance(events, DamagedEvents) or done.undeleted or not self._delete(events, [*taken.values()]):
            done.undeleted.update(taken)
        done.tried.update(row.key for row in rows if row.key not in taken or row.key in done.undeleted)

    def drain_damaged_files(self) -> None:
        """Move the rows that can be read in damaged files. Once all are moved, the file is kept under another name."""
        for file in self._spool.damaged_files():
            try:
                with open_damaged(file) as events:
                    self._drain_damaged(file, events)
            except (sqlite3.Error, OSError) as error:  # a read-only disk, for one; it must not stop the newest file
                self._problems.error("a damaged file of the spool cannot be drained", file=str(file), why=str(error))

    def _drain_damaged(self, file: Path, events: DamagedEvents) -> None:
        found, before = len(events.numbers), self._undeleted[file]
        first, then = DrainPass(events, before), DrainPass(events, before)
        self._drain(first, file)
        events.lock()
        found += len(events.numbers)
        self._drain(then, file)
        self._undeleted[file] = first.undeleted | then.undeleted
        if first.left + then.left:
            return
        kept = keep(file)
        del self._undeleted[file]
        unreadable = first.unreadable + then.unreadable
        log.error(
            "the rows that can be read in a damaged file of the spool are in the inbox; the file is kept",
            file=str(kept),
            events=found - unreadable,
            unreadable=unreadable,
        )

    def _move_rows(self, rows: Sequence[SpooledRow], blocked: set[str], moved: set[str]) -> None:
        """Send rows to the inbox, except for those of blocked stores, and add the ids that it took to `moved`."""
        for store in dict.fromkeys(row.store for row in rows if row.store not in blocked):
            moved.update(self._move(store, [row for row in rows if row.store == store], blocked))
        if time.monotonic() > self._publish_at:  # a long drain must neither look like a stopped host nor fill Redis
            self._publish()
            self._breaker.examine(self._inbox.client)

    def _delete(self, events: SpooledEvents, rows: list[SpooledRow]) -> bool:
        """Delete rows that are in the inbox. After a failure this run tries no more."""
        try:
            duplicates = events.delete(rows) if rows else {}
        except sqlite3.Error as error:
            self._spool.reopen(error)
            self._problems.error("rows of the spool are in the inbox and cannot be deleted", why=str(error))
            return False
        for store, number in duplicates.items():
            self._counters.add(store, "duplicates", number=number)
        return True

    def _move(self, store: str, rows: Sequence[SpooledRow], blocked: set[str]) -> list[str]:
        """Send one store's rows to the inbox, in order; return the ids of those that it took.

        Rows that it does not take keep their place. The store is added to `blocked` if trying its next rows is useless.
        """
        readable = [(row.number, row.delivery) for row in rows if row.delivery]
        waited = {row.delivery.event.id: row.waited for row in rows if row.delivery}
        if len(readable) < len(rows):
            unreadable = next(row.number for row in rows if not row.delivery)
            self._problems.error("a row of the spool cannot be read and stays there", store=store, number=unreadable)
        if not readable:
            return []
        replies = self._inbox.accept_each([delivery for _, delivery in readable], waited)
        self._remember_ids([delivery for _, delivery in readable], replies)
        taken = [isinstance(reply, AcceptResult) and reply.status != "full" for reply in replies]
        errors = [reply for reply in replies if isinstance(reply, RedisError)]
        if errors:
            text = "the inbox refuses rows of the spool; they stay there"
            self._problems.error(text, store=store, why=reason_of(errors[0]))
        if any(taken):
            self._inbox.outage.worked()
        is_full = len(errors) + sum(taken) < len(taken)
        if is_full or len(errors) == len(replies) > 1:  # one row may be refused for what is in it
            blocked.add(store)
        return [delivery.event.id for (_, delivery), is_taken in zip(readable, taken, strict=True) if is_taken]

    def _remember_ids(self, deliveries: Sequence[Delivery], replies: Sequence[AcceptResult | RedisError]) -> None:
        """Each was answered with an id of its own. If the inbox has it under another, that id leads to it."""
        repeated = {
            one.event.id: reply.id
            for one, reply in zip(deliveries, replies, strict=True)
            if isinstance(reply, AcceptResult) and reply.id != one.event.id
        }
        if repeated:
            self._inbox.remember_ids(repeated)

    def _report_overdue_rows(self) -> None:
        """Log rows older than `spool_age`. They are stored and drained like any other, but an operator must know."""
        if time.monotonic() < self._check_age_at or not self._spool.exists():
            return
        self._check_age_at = time.monotonic() + CHECK_AGE_EVERY
        count, oldest = self._spool.events().summary()
        if count and time.time() - oldest > self._max_age:
            log.error("deliveries wait in the spool for longer than spool_age", waiting=count, since=int(oldest))

    def _publish(self) -> None:
        self._publish_at = time.monotonic() + PUBLISH_EVERY
        count, oldest = self._spool.summary()
        left = count and max(0, count - len(self._undeleted[self._spool.file]))
        self._inbox.publish_spool(self._host, left, oldest if left != 0 else 0.0)


def sign_off(config: Config) -> None:
    """Publish that this host's receiver has stopped, with the number of rows left. For its last process."""
    spool = BoundedSpool(config)
    if not spool.in_use:
        return
    client = connect_to(config.redis, timeout=config.redis.timeout)
    try:
        InboxAccess(config, Inbox(client)).publish_spool(host_of(config.data_dir), *spool.summary(), stopped=True)
    except NotReplicatedError:
        pass
    except RedisError as error:
        log.warning("the server does not know that this receiver has stopped", why=reason_of(error))
    finally:
        client.close()
