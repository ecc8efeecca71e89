"""The host's spool file within its bounds: how much of it each store may use, and when it takes no more.

Threads of one web process share it. The file may be missing, replaced or unreadable.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

from receiver import logs
from receiver.config import Config
from receiver.contract.intake import Delivery
from receiver.spool import (
    BUSY_SECONDS,
    RESERVED_DISK_BYTES,
    SpooledEvents,
    SpoolResult,
    events_files,
    free_disk_bytes,
    is_busy,
    is_damage,
    kept_files,
    newest_events_file,
    open_events,
    open_events_read_only,
    set_aside,
)

NO_FILE = (0, 0)
HANGS_AFTER = BUSY_SECONDS + 1
"""Seconds: no write waits longer for others, so one that takes longer waits for the disk."""
IMPATIENT_SECONDS = 0.25
"""A write waits so long for others after one that has waited in vain: another process holds the lock, and hangs."""
NEW_FILE_EVERY = 60.0
"""A disk may damage every file: this is the least time between two new ones."""

log = logs.get("spool")


class BoundedSpool:
    def __init__(self, config: Config) -> None:
        self.enabled = config.receiver.spool == "on"
        self._data_dir = config.data_dir
        self.file = newest_events_file(config.data_dir)
        self._max_bytes = config.receiver.spool_bytes
        self._has_many_stores = len(config.stores) > 1
        self._quotas = {name: store.max_stored for name, store in config.stores.items() if store.max_stored}
        self._repeat_window = config.receiver.dedupe_window_unidentified
        self._local = threading.local()
        self._wait_seconds = BUSY_SECONDS
        self._writes: dict[int, float] = {}
        """When the write of each thread began that is writing now."""
        self._read_only: SpooledEvents | None = None
        self._read_only_inode = NO_FILE
        self._next_file_at = 0.0
        self._problems = logs.ThrottledLog(log)
        self.outage = logs.OutageLog(
            log, level="error", begins="the spool cannot take deliveries", ends="the spool takes deliveries again"
        )

    def exists(self) -> bool:
        self.file = newest_events_file(self._data_dir)  # another process may have found the last one damaged
        return self.file.exists()

    def damaged_files(self) -> list[Path]:
        """Files that take no more deliveries and are not drained, oldest first."""
        return events_files(self._data_dir)[:-1]

    @property
    def in_use(self) -> bool:
        """Whether it can have rows: it is on, or it was on before and its file is still there."""
        return self.enabled or self.exists()

    @property
    def hangs(self) -> bool:
        """Whether the disk does not answer a write. Then nothing else must wait for it."""
        return any(time.monotonic() - began > HANGS_AFTER for began in [*self._writes.values()])

    @contextmanager
    def _write(self) -> Iterator[None]:
        thread = threading.get_ident()
        self._writes[thread] = time.monotonic()
        try:
            yield
            self._wait_seconds = BUSY_SECONDS
        except sqlite3.OperationalError as error:
            if is_busy(error):
                self._wait_seconds = IMPATIENT_SECONDS
            raise
        finally:
            del self._writes[thread]

    def may_have_rows(self, store: str) -> bool:
        """Whether the spool has rows of a store. Never blocks: returns True where the file is locked or unreadable."""
        if self.hangs:
            return False
        try:
            inode = _inode(self.file)
            if inode == NO_FILE:
                return False
            if self._read_only is None or self._read_only_inode != inode:
                self._read_only, self._read_only_inode = open_events_read_only(self.file), inode
            return self._read_only.has_rows(store)
        except (sqlite3.Error, OSError):
            self._read_only = None
            return True

    def has_rows(self, store: str) -> bool:
        """Whether the spool has rows of a store. False for an unreadable file, which must not stop the inbox."""
        try:
            return not self.hangs and self.exists() and self.events().has_rows(store)
        except (sqlite3.Error, OSError) as error:
            self._report_unreadable(error)
            return False

    def summary(self) -> tuple[int | None, float]:
        """The number of rows and when the oldest arrived; None for the number where a file cannot be read."""
        if self.hangs:
            return None, 0.0
        try:
            count, oldest = self.events().summary() if self.exists() else (0, 0.0)
            return (None if self.damaged_files() or kept_files(self._data_dir) else count), oldest
        except (sqlite3.Error, OSError) as error:
            self._report_unreadable(error)
            return None, 0.0

    def obstacle(self) -> str:
        """Why the spool cannot take a delivery now; empty if it can."""
        if not self.enabled:
            return "the spool is off"
        if self.hangs:
            return "the disk of the spool does not answer"
        try:
            if self._free_disk_bytes() <= 0:
                return "the disk is nearly full"
            return "" if self._free_bytes() > 0 else "the spool has reached spool_bytes"
        except (sqlite3.Error, OSError) as error:
            self._report_unreadable(error)
            return "the spool cannot be read"

    def can_commit(self) -> bool:
        """Whether the spool would take a delivery now: writes a row that is not a delivery to the disk."""
        if self.obstacle():
            return False
        try:
            with self._write():
                self.events().try_commit(wait=self._wait_seconds)
        except (sqlite3.Error, OSError) as error:
            self.reopen(error)
            self.outage.failed(why=str(error))
            return False
        self.outage.worked()
        return True

    def add(self, deliveries: Sequence[Delivery]) -> list[SpoolResult]:
        """Write deliveries in one transaction. "full" for one whose store is over its limit."""
        with self._write():
            return self._add(deliveries)

    def _add(self, deliveries: Sequence[Delivery]) -> list[SpoolResult]:
        events = self.events()
        free = self._free_bytes() if self._has_many_stores else inf  # with one store, no space is reserved for others
        fits = events.within_limits(deliveries, free, self._quotas)
        fitting = [one for one, one_fits in zip(deliveries, fits, strict=True) if one_fits]
        added = iter(events.add(fitting, wait=self._wait_seconds))
        if not self._local.inode == _inode(self._local.file) != NO_FILE:  # the rows are in a file that is not drained
            raise sqlite3.OperationalError("the spool file was removed or replaced")
        return [
            next(added) if one_fits else SpoolResult("full", one.event.id)
            for one, one_fits in zip(deliveries, fits, strict=True)
        ]

    def events(self) -> SpooledEvents:
        """This thread's connection, because SQLite connections are not shared; always to the file that exists now."""
        found: SpooledEvents | None = getattr(self._local, "events", None)
        if found is not None and self._local.inode == _inode(self.file):
            return found
        if found is not None:
            if self._local.file == self.file:
                self._problems.error("the spool file was removed or replaced; rows not drained from it are lost")
            found.close()
            self._local.events = None
        self._local.file = self.file = newest_events_file(self._data_dir)
        found = open_events(self._data_dir, repeat_window=self._repeat_window)
        self._local.events, self._local.inode = found, _inode(self._local.file)
        return found

    def checkpoint(self) -> None:
        """Move the write-ahead log to the file. Where the log is damaged, SQLite ignores all that follows."""
        if self.exists():
            self.events().checkpoint()

    def reopen(self, error: Exception) -> None:
        """Forget this thread's connection after an error; the next use opens a new one, and not of a damaged file."""
        self._local.events, damaged = None, getattr(self._local, "file", self.file)
        if is_damage(error, damaged) and time.monotonic() >= self._next_file_at:
            self._problems.error("a file of the spool is damaged; a new one is used", file=str(damaged), why=str(error))
            with suppress(OSError):  # on a full disk, the next error tries it again
                set_aside(damaged)
                self._next_file_at = time.monotonic() + NEW_FILE_EVERY

    def _report_unreadable(self, error: Exception) -> None:
        self.reopen(error)
        self._problems.error("the spool cannot be read", why=str(error))

    def _free_bytes(self) -> int:
        """Bytes that rows may still take: of `spool_bytes`, and of the disk."""
        used = self.events().used_bytes() if self.exists() else 0
        return min(self._free_disk_bytes(), self._max_bytes - used)

    def _free_disk_bytes(self) -> int:
        """Bytes that are free on the disk, except for a reserve."""
        return free_disk_bytes(self._data_dir) - RESERVED_DISK_BYTES


def _inode(file: Path) -> tuple[int, int]:
    """Identifies the file that has this name now."""
    try:
        found = os.stat(file)
        return found.st_dev, found.st_ino
    except FileNotFoundError:
        return NO_FILE
