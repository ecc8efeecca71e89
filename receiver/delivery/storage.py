"""Keeping: where a delivery goes. Into the inbox; into the spool while the inbox cannot take it; nowhere else.

The spool is this host's. While it holds rows of a store, that store's new deliveries join them, so that their order
is kept. One process of the host at a time brings rows to the inbox, oldest first; a row is deleted only after the
inbox has acknowledged it, and accepting is idempotent, so dying in between costs nothing.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from redis.exceptions import RedisError

from receiver import logs
from receiver.config import Config
from receiver.contract.intake import Delivery
from receiver.inbox import Accepted, Inbox
from receiver.inbox.accept_batch import AcceptBatch
from receiver.inbox.redis.polled_connection import PolledConnection
from receiver.spool import FILE, SpooledEvents, SpooledRow, glance_at_events, open_events

BREAK_SECONDS = 1.0
LOOK_EVERY = 0.5
PUBLISH_EVERY = 1.0
COMPLAIN_EVERY = 60.0
GROUP = 128
"""As many as one script accepts."""
LOCK = "spool.lock"
PRESSED, RELIEVED = 0.85, 0.75
"""Parts of the server's maxmemory: above the first, new deliveries go to the spool; below the second, no more."""
FREE_DISK = 32 << 20
NO_FILE = (0, 0)

log = logs.get("keeping")


class NotStored(Exception):
    """Neither the inbox nor the spool can take it; the sender must send again."""


@dataclass(frozen=True)
class Stored:
    status: Literal["accepted", "duplicate", "full"]
    id: str
    where: Literal["redis", "spool"] = "redis"


Keep = Callable[[Sequence[Delivery]], list[Stored | NotStored]]


class DeliveryStorage:
    def __init__(self, config: Config, inbox: Inbox) -> None:
        self._config = config
        self._inbox = inbox
        self._spool_on = config.receiver.spool == "on"
        self._file = config.data_dir / FILE
        self._file_name = str(self._file)
        self._name = f"{socket.gethostname()}:{config.data_dir.resolve()}"
        """A host may have two receivers, each with its own spool."""
        self._shared = len(config.stores) > 1
        """Else nobody has to be left room for."""
        self._quotas = {name: store.max_stored for name, store in config.stores.items()}
        self._local = threading.local()
        self._glance: SpooledEvents | None = None
        self._glance_inode = NO_FILE
        self._broken_until = self._no_line_until = 0.0
        self._complain_at = self._publish_at = 0.0
        self._told: dict[str, float] = {}
        self.pressed = False

    # For a loop, which must not wait

    def accepting(self, deliveries: Sequence[Delivery]) -> AcceptBatch | None:
        """What to send to the inbox so that it takes these; None where they must be kept by `keep_all`, which may wait
        for a disk or a server. Asking never does."""
        if (
            self.broken
            or self.pressed
            or any(self._may_hold(store) for store in {one.event.store for one in deliveries})
        ):
            return None
        try:
            return AcceptBatch(deliveries, self._config.receiver.dedupe_window_unidentified, self._quotas)
        except Exception:  # noqa: BLE001  `keep_all` finds out which of them cannot be kept
            return None

    def open_line(self) -> PolledConnection | None:
        """A line to the inbox, where deliveries may go by one. This does wait."""
        if self._config.redis.ack == "replica":  # what replicas have must be waited for
            return None
        if time.monotonic() < self._no_line_until:
            return None
        try:
            return PolledConnection(self._inbox.client)
        except (RedisError, OSError):  # a group waits while it is tried
            self._no_line_until = time.monotonic() + BREAK_SECONDS
            return None

    def doubt(self, error: Exception) -> None:
        """The inbox does not answer: it is not asked again for a moment."""
        if not self.broken:
            log.warning("the inbox cannot take deliveries", why=type(error).__name__, spool=self._config.receiver.spool)
        self._broken_until = time.monotonic() + BREAK_SECONDS

    def _may_hold(self, store: str) -> bool:
        """Whether rows of the store wait in the spool, or it cannot be said at once."""
        if not self._spool_on:
            return False
        try:
            inode = _inode(self._file_name)
            if inode == NO_FILE:
                return False
            if self._glance is None or self._glance_inode != inode:
                self._glance, self._glance_inode = glance_at_events(self._file), inode
            return self._glance.holds(store)
        except (sqlite3.Error, OSError):
            self._glance = None
            return True

    # Deliveries

    def keep_all(self, deliveries: Sequence[Delivery]) -> list[Stored | NotStored]:
        """Keep deliveries for good before they are answered: one round trip, or one transaction, for all of them."""
        return self._try(self._keep_group, deliveries)

    def spool_all(self, deliveries: Sequence[Delivery]) -> list[Stored | NotStored]:
        """Keep in the spool what the inbox has something against, while it takes others."""
        return self._try(self._spool, deliveries)

    def _try(self, keep: Keep, deliveries: Sequence[Delivery]) -> list[Stored | NotStored]:
        """What is wrong with one of them is not the others' fault: then each is kept by itself."""
        try:
            return keep(deliveries)
        except Exception as error:  # noqa: BLE001  whatever it is, each of them gets an answer
            if len(deliveries) > 1:
                return [self._try(keep, [one])[0] for one in deliveries]
            log.error("a delivery cannot be kept", why=type(error).__name__)
            return [NotStored("it cannot be kept")]

    def _keep_group(self, deliveries: Sequence[Delivery]) -> list[Stored | NotStored]:
        spooling = {store for store in {one.event.store for one in deliveries} if self._goes_to_the_spool(store)}
        kept: dict[int, Stored | NotStored] = {}
        direct = [at for at, one in enumerate(deliveries) if one.event.store not in spooling]
        if direct:
            accepted = self._accept([deliveries[at] for at in direct])
            kept |= {at: one for at, one in zip(direct, accepted, strict=True) if one}
        left = [at for at in range(len(deliveries)) if at not in kept]
        if left:
            kept |= zip(left, self._spool([deliveries[at] for at in left]), strict=True)
        return [kept[at] for at in range(len(deliveries))]

    @property
    def broken(self) -> bool:
        """The inbox did not answer a moment ago; it is not asked again for a moment."""
        return time.monotonic() < self._broken_until

    def ready(self) -> tuple[str, int | None] | None:
        """Where a delivery would be kept now, and how many wait in the spool (None: unknown); None if nowhere."""
        waiting = self._summary()[0]
        try:
            self._inbox.client.ping()
            if not self.pressed:
                return "redis", waiting
        except RedisError:
            pass
        return ("spool", waiting) if not self._what_keeps_the_spool_shut() else None

    def waiting_since(self) -> str | None:
        """When the oldest delivery in the spool arrived; None if none waits."""
        many, oldest = self._summary()
        return datetime.fromtimestamp(oldest, UTC).isoformat(timespec="seconds") if many else None

    def _goes_to_the_spool(self, store: str) -> bool:
        if not self._spool_on:
            return self.pressed  # and is pushed back: well before maxmemory, so that workers can still write
        return self.broken or self.pressed or self._holds(store)

    def _holds(self, store: str) -> bool:
        """Whether rows of the store wait here. A file that cannot be read must not stop what the inbox can take."""
        try:
            return self._file.exists() and self._events().holds(store)
        except (sqlite3.Error, OSError) as error:
            self._cannot_be_read(error)
            return False

    def _summary(self) -> tuple[int | None, float]:
        """How many wait and since when; None where the file cannot be read."""
        try:
            return self._events().summary() if self._file.exists() else (0, 0.0)
        except (sqlite3.Error, OSError) as error:
            self._cannot_be_read(error)
            return None, 0.0

    def _cannot_be_read(self, error: Exception) -> None:
        self._local.events = None
        self._complain("the spool cannot be read", why=str(error))

    def _complain(self, what: str, *, level: Literal["info", "error"] = "error", **about: Any) -> None:
        """Once a minute for each thing: it may be found again with every delivery."""
        now = time.monotonic()
        if now >= self._told.get(what, 0.0):
            self._told[what] = now + COMPLAIN_EVERY
            getattr(log, level)(what, **about)

    def _accept(self, deliveries: Sequence[Delivery]) -> list[Stored | None]:
        """What became of each in the inbox; None where it did not take it."""
        try:
            replies = self._inbox.accept_each(
                deliveries,
                repeat_window=self._config.receiver.dedupe_window_unidentified,
                quotas=self._quotas,
                replicas=int(self._config.redis.ack == "replica"),
            )
        except RedisError as error:
            self.doubt(error)
            return [None] * len(deliveries)
        refused = [reply for reply in replies if isinstance(reply, RedisError)]
        if refused and len(refused) == len(replies):  # where others were taken, it is not the server
            self.doubt(refused[0])
        return [Stored(reply.status, reply.id) if isinstance(reply, Accepted) else None for reply in replies]

    def _spool(self, deliveries: Sequence[Delivery]) -> list[Stored | NotStored]:
        problem = self._what_keeps_the_spool_shut()
        if not problem:
            try:
                return self._add(deliveries)
            except sqlite3.Error as error:
                self._local.events = None
                log.error("the spool cannot take deliveries", why=str(error))
                problem = "neither the inbox nor the spool can take it"
        return [NotStored(problem)] * len(deliveries)

    def _add(self, deliveries: Sequence[Delivery]) -> list[Stored | NotStored]:
        """Into the spool, but for what is more than a store may have waiting."""
        events = self._events()
        fit = self._inside_quotas(events, deliveries)
        if self._shared:
            fit = [*map(all, zip(fit, events.inside_shares(deliveries, self._room()), strict=True))]
        new = iter(events.add([one for one, fits in zip(deliveries, fit, strict=True) if fits]))
        return [
            Stored(
                ("accepted" if next(new) else "duplicate") if fits else "full", one.first_id or one.event.id, "spool"
            )
            for one, fits in zip(deliveries, fit, strict=True)
        ]

    def _inside_quotas(self, events: SpooledEvents, deliveries: Sequence[Delivery]) -> list[bool]:
        """Which of them their stores may still add: `max_stored` counts here as it does in the inbox."""
        stores = {one.event.store for one in deliveries}
        quotas = {store: quota for store in stores if (quota := self._quotas.get(store, 0))}
        room = {store: quota - events.waiting_of(store, quota) for store, quota in quotas.items()}
        fit = []
        for one in deliveries:
            left = room.get(one.event.store, 1)
            fit.append(left > 0)
            if one.event.store in room:
                room[one.event.store] = left - 1
        return fit

    def _what_keeps_the_spool_shut(self) -> str:
        if not self._spool_on:
            return "the inbox cannot take it, and the spool is off"
        try:
            return "" if self._room() > 0 else "the inbox cannot take it, and the spool or its disk is nearly full"
        except (sqlite3.Error, OSError) as error:
            self._cannot_be_read(error)
            return "the inbox cannot take it, and the spool cannot be read"

    def _room(self) -> int:
        """The bytes that rows may still take: of `spool_bytes`, and of the disk but for a little."""
        folder = self._config.data_dir
        disk = os.statvfs(folder if folder.exists() else folder.parent)
        used = self._events().used_bytes() if self._file.exists() else 0
        return min(disk.f_bavail * disk.f_frsize - FREE_DISK, self._config.receiver.spool_bytes - used)

    def _events(self) -> SpooledEvents:
        """This thread's connection: SQLite's are not for sharing. It is to the file that has the name now."""
        found: SpooledEvents | None = getattr(self._local, "events", None)
        if found is not None and self._local.inode == _inode(self._file_name):
            return found
        if found is not None:
            self._complain("the spool's file was removed or replaced; what it held and was not brought home is lost")
            found.close()
            self._local.events = None
        found = open_events(self._config.data_dir)
        self._local.events, self._local.inode = found, _inode(self._file_name)
        return found

    # Bringing rows home

    def start(self) -> None:
        """Look after the spool in a thread of its own, for as long as the process lives."""
        threading.Thread(target=self._look_for_ever, name="spool", daemon=True).start()

    def _look_for_ever(self) -> None:
        pause = threading.Event()
        while True:
            try:
                self.look_round()
            except Exception as error:  # noqa: BLE001  whatever it is, rows wait here for the next look
                self._complain("the spool waits", level="info", why=type(error).__name__)
                if isinstance(error, sqlite3.Error):
                    self._local.events = None
            with suppress(Exception):
                self._complain_if_overdue()
            pause.wait(LOOK_EVERY)

    def _complain_if_overdue(self) -> None:
        """Rows that have waited too long are kept and brought home like any other; but somebody has to know."""
        if time.monotonic() < self._complain_at or not self._file.exists():
            return
        self._complain_at = time.monotonic() + COMPLAIN_EVERY
        many, oldest = self._events().summary()
        if many and time.time() - oldest > self._config.receiver.spool_age:
            log.error("deliveries wait in the spool for longer than spool_age", waiting=many, since=int(oldest))

    def look_round(self) -> None:
        """Judge the server's memory, bring rows to the inbox if nobody else does, and say how many are left."""
        self.pressed = self._is_pressed()
        self._broken_until = 0.0  # it has just answered
        if not self._file.exists():
            return
        with open(self._config.data_dir / LOCK, "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if not self.pressed:
                self.drain()
                self._events().give_back()
            self._publish()

    def drain(self) -> int:
        """Bring every row that can go to the inbox there; give how many went."""
        gone, last, stuck = 0, 0, set[str]()
        events = self._events()
        while rows := events.oldest(GROUP, after=last, but_not_of=stuck):
            last = rows[-1].number
            done = []
            for store in dict.fromkeys(row.store for row in rows):
                done += self._bring(store, [row for row in rows if row.store == store], stuck)
            events.delete(done)
            gone += len(done)
            if time.monotonic() > self._publish_at:  # a long drain must not look like silence
                self._publish()
        if gone:
            log.info("spooled deliveries are in the inbox", events=gone, left=events.count())
        return gone

    def _bring(self, store: str, rows: Sequence[SpooledRow], stuck: set[str]) -> list[int]:
        """One store's rows in order, as far as the inbox takes them; what it does not take keeps its place."""
        readable = [(row.number, row.delivery) for row in rows if row.delivery]
        if len(readable) < len(rows):
            spoilt = next(row.number for row in rows if not row.delivery)
            self._complain("a row of the spool cannot be read; it stays", store=store, number=spoilt)
        if not readable:
            return []
        replies = self._inbox.accept_each(
            [delivery for _, delivery in readable],
            repeat_window=self._config.receiver.dedupe_window_unidentified,
            quotas=self._quotas,
            replicas=int(self._config.redis.ack == "replica"),
        )
        taken = [isinstance(reply, Accepted) and reply.status != "full" for reply in replies]
        refused = [reply for reply in replies if isinstance(reply, RedisError)]
        if refused:
            self._complain("the inbox refuses rows of the spool; they stay", store=store, why=type(refused[0]).__name__)
        if not any(taken) or len(refused) + sum(taken) < len(taken):  # refuses them all, or the store is full
            stuck.add(store)
        return [number for (number, _), is_taken in zip(readable, taken, strict=True) if is_taken]

    def _is_pressed(self) -> bool:
        """Well before maxmemory: workers must still be able to write how runs ended."""
        memory = self._inbox.client.info("memory")
        most = int(memory.get("maxmemory", 0))
        if not most:
            return False
        part = int(memory["used_memory"]) / most
        return part > (RELIEVED if self.pressed else PRESSED)

    def _publish(self) -> None:
        self._publish_at = time.monotonic() + PUBLISH_EVERY
        count, oldest = self._events().summary()
        self._inbox.publish_spool(self._name, count, oldest)


def _inode(file: str) -> tuple[int, int]:
    """Which file has the name now."""
    try:
        found = os.stat(file)
        return found.st_dev, found.st_ino
    except FileNotFoundError:
        return NO_FILE
