"""Refusal log: writes refused deliveries to their file, off the request path. It never delays or fails an answer.

Refusals collect in memory, and a thread writes them in one transaction, at most twice a second. The buffer is bounded,
so the rate of bytes written to the disk is bounded too. If there are too many, the store with the most bytes loses its
oldest body; the line about that refusal stays.
"""

from __future__ import annotations

import atexit
import errno
import sqlite3
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from redis.exceptions import RedisError

from receiver import logs
from receiver.config.values import Bounds
from receiver.spool import (
    AMPLE_DISK_BYTES,
    NEEDED_DISK_BYTES,
    REFUSED_FILE,
    Refusal,
    Refusals,
    StoreRefusals,
    free_disk_bytes,
    is_damage,
    open_refusals,
    rename,
)

WRITE_EVERY = 0.5
TRIM_EVERY = 600.0
REPORT_EVERY = 10.0
MAX_BYTES = 4 << 20
MAX_LINES = 4_000

log = logs.get("receiver")


class RefusalBuffer:
    """Refusals since the last write, within bounds, counted for each store."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES) -> None:
        self._max_bytes, self._max_lines = max_bytes, max_lines
        self._waiting: dict[str, deque[Refusal]] = defaultdict(deque)
        self._bytes: dict[str, int] = defaultdict(int)
        self._total = 0
        self.lines: list[Refusal] = []
        """Refusals that lost their body."""
        self.count = 0

    def add(self, refusal: Refusal) -> None:
        if self.count >= self._max_lines and not self._make_space(refusal.store):
            return
        self.count += 1
        self._waiting[refusal.store].append(refusal)
        self._add_bytes(refusal.store, refusal.cost)
        while self._total > self._max_bytes:
            self._drop_a_body()

    def add_lines(self, refusals: list[Refusal]) -> None:
        """Add the latest of these without their bodies, as far as there is space."""
        space = self._max_lines - self.count
        kept = [replace(one, body=None, headers={}) for one in refusals[-space:]] if space > 0 else []
        self.lines += kept
        self.count += len(kept)

    def all(self) -> list[Refusal]:
        """All refusals, in order of arrival."""
        every = [*self.lines, *(one for waiting in self._waiting.values() for one in waiting)]
        return sorted(every, key=lambda one: one.at)

    def _make_space(self, store: str) -> bool:
        """Drop one refusal, so that a new one of this store can be added; False if none was dropped.

        A refusal that lost its body is dropped first, of any store. If there is none, the store with the most refusals
        loses its oldest, but only if it has at least two more than this store.
        """
        if self.lines:
            self.lines.pop(0)
        else:
            largest = max(self._waiting, key=lambda name: len(self._waiting[name]))
            if len(self._waiting[largest]) <= len(self._waiting[store]) + 1:
                return False
            self._add_bytes(largest, -self._waiting[largest].popleft().cost)
        self.count -= 1
        return True

    def _drop_a_body(self) -> None:
        largest = max(self._bytes, key=lambda name: self._bytes[name])
        oldest = self._waiting[largest].popleft()
        self._add_bytes(largest, -oldest.cost)
        self.lines.append(replace(oldest, body=None, headers={}))

    def _add_bytes(self, store: str, cost: int) -> None:
        self._bytes[store] += cost
        self._total += cost


class RefusalLog:
    """Takes refusals from the threads that answer requests; one thread writes them."""

    def __init__(
        self, data_dir: Path, bounds: Bounds, report: Callable[[Iterable[StoreRefusals]], None] | None = None
    ) -> None:
        """`report` publishes what the file has, for other hosts; it may raise RedisError."""
        self._data_dir, self._bounds, self._report = data_dir, bounds, report
        self._unreported, self._report_after = False, 0.0
        self._buffer = RefusalBuffer()
        self._lock = threading.Lock()
        self._wake_up = threading.Event()
        self._refusals: Refusals | None = None
        self._writing = threading.Lock()
        self._problems = logs.ThrottledLog(log)
        self._lost = 0
        """Bodies, since the last line about them."""
        self._closed = False
        if bounds:
            threading.Thread(target=self._write_forever, name="refused", daemon=True).start()
            atexit.register(self.close)

    def add(self, refusal: Refusal) -> None:
        """Buffer a refusal; costs a few microseconds."""
        if not self._bounds:
            return
        with self._lock:
            self._buffer.add(refusal)
        self._wake_up.set()

    def flush(self) -> None:
        """Write the buffered refusals. No answer depends on them: if they cannot be written, their bodies are dropped,
        and the lines about them are written later."""
        with self._lock:
            buffer, self._buffer = self._buffer, RefusalBuffer()
        with self._writing:
            if self._closed:
                return
            refusals = buffer.all()
            try:
                if refusals or (self._data_dir / REFUSED_FILE).exists():  # it is created with the first refusal
                    self._write(refusals)
            except Exception as error:  # noqa: BLE001  the thread must survive any error of disk or file
                self._lost += sum(one.has_body for one in refusals)
                text = "refused deliveries cannot be written"
                if refusals and self._problems.error(text, why=str(error), lost=self._lost):
                    self._lost = 0
                with self._lock:
                    self._buffer.add_lines(refusals)

    def _write(self, refusals: list[Refusal]) -> None:
        """Write to the file. A damaged one is renamed, unless another process has done that, and a new one is used."""
        file = self._data_dir / REFUSED_FILE
        for is_last in (False, False, True):
            is_new = self._refusals is None
            try:
                self._refusals = self._refusals or open_refusals(self._data_dir)
                free = free_disk_bytes(self._data_dir)
                written = refusals if free >= NEEDED_DISK_BYTES else []
                self._refusals.add(written, bounds=self._bounds, now=time.time(), may_grow=free >= AMPLE_DISK_BYTES)
                self._unreported = True
                break
            except Exception as error:
                self._refusals = None
                if is_last or not is_damage(error, file):
                    raise
                if is_new:
                    rename(file, Path(f"{file}-damaged"))
                    self._problems.error(
                        "the file of refused deliveries was damaged; a new one is used", why=str(error)
                    )

        if len(written) < len(refusals):
            raise OSError(errno.ENOSPC, f"less than {NEEDED_DISK_BYTES >> 20} MB are free on the disk")

    def close(self) -> None:
        """Write the rest and close the file, at the end of the process."""
        self.flush()
        with self._writing:
            self._closed = True
            if self._refusals is not None:
                self._refusals.close()

    def _report_if_due(self) -> None:
        """Publish the sum of the file, at most every REPORT_EVERY seconds."""
        if self._report is None or not self._unreported or time.monotonic() < self._report_after:
            return
        self._report_after = time.monotonic() + REPORT_EVERY
        with self._writing:
            try:
                self._report(self._refusals.by_store(named=False) if self._refusals else ())
                self._unreported = False
            except (RedisError, sqlite3.Error):  # it is tried again
                pass
            except Exception as error:  # noqa: BLE001  the thread must survive any error here, too
                self._problems.error("the number of refused deliveries cannot be reported", why=str(error))

    def _write_forever(self) -> None:
        while True:
            self._wake_up.clear()
            self.flush()
            self._report_if_due()
            time.sleep(WRITE_EVERY)
            soon = self._buffer.count or (self._report and self._unreported)
            self._wake_up.wait(REPORT_EVERY if soon else TRIM_EVERY)
