"""Keeper: writes refused deliveries down, off the request path. It never blocks an answer and never fails one.

What is refused gathers in memory and is written by a thread of its own, in one transaction, at most twice a
second. What may gather is bounded, so the rate at which bytes reach the disk is bounded too; where there
is too much, the store with the most gives up its oldest body, and its line stays.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import defaultdict, deque
from dataclasses import replace
from pathlib import Path

from receiver import logs
from receiver.config.values import Bounds
from receiver.spool import FILE, Refusal, Refusals, open_refusals

WRITE_EVERY = 0.5
TRIM_EVERY = 600.0
MAX_BYTES = 4 << 20
MAX_LINES = 4_000
COMPLAIN_EVERY = 60.0


class RefusalBuffer:
    """What was refused since the last writing, within bounds, each store by itself."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES) -> None:
        self._max_bytes, self._max_lines = max_bytes, max_lines
        self._waiting: dict[str, deque[Refusal]] = defaultdict(deque)
        self._bytes: dict[str, int] = defaultdict(int)
        self._total = 0
        self.lines: list[Refusal] = []
        """Those that gave up their body."""
        self.count = 0

    def add(self, refusal: Refusal) -> None:
        if self.count >= self._max_lines and not self._make_room(refusal.store):
            return
        self.count += 1
        self._waiting[refusal.store].append(refusal)
        self._weigh(refusal.store, refusal.cost)
        while self._total > self._max_bytes:
            self._strip_the_largest()

    def everything(self) -> list[Refusal]:
        """In the order of arrival."""
        every = [*self.lines, *(one for waiting in self._waiting.values() for one in waiting)]
        return sorted(every, key=lambda one: one.at)

    def _make_room(self, store: str) -> bool:
        """At the limit the store with the most loses its oldest; False where that is the newcomer's own."""
        largest = max(self._waiting, key=lambda name: len(self._waiting[name]))
        if self.lines:
            self.lines.pop(0)
        elif len(self._waiting[largest]) > len(self._waiting[store]) + 1:
            self._weigh(largest, -self._waiting[largest].popleft().cost)
        else:
            return False
        self.count -= 1
        return True

    def _strip_the_largest(self) -> None:
        largest = max(self._bytes, key=lambda name: self._bytes[name])
        oldest = self._waiting[largest].popleft()
        self._weigh(largest, -oldest.cost)
        self.lines.append(replace(oldest, body=None, headers={}))

    def _weigh(self, store: str, cost: int) -> None:
        self._bytes[store] += cost
        self._total += cost


class RefusalLog:
    """Takes refusals from the threads that answer, and writes them by a thread of its own."""

    def __init__(self, data_dir: Path, bounds: Bounds) -> None:
        self._data_dir, self._bounds = data_dir, bounds
        self._gathered = RefusalBuffer()
        self._lock = threading.Lock()
        self._something = threading.Event()
        self._refusals: Refusals | None = None
        self._writing = threading.Lock()
        self._quiet_until = 0.0
        self._closed = False
        if bounds:
            threading.Thread(target=self._write_for_ever, name="refused", daemon=True).start()
            atexit.register(self.close)

    def keep(self, refusal: Refusal) -> None:
        """Note a refusal; costs a few microseconds."""
        if not self._bounds:
            return
        with self._lock:
            self._gathered.add(refusal)
        self._something.set()

    def flush(self) -> None:
        """Write what has gathered. What cannot be written is given up: no answer ever depended on it."""
        with self._lock:
            gathered, self._gathered = self._gathered, RefusalBuffer()
        with self._writing:
            if self._closed or not (gathered.count or (self._data_dir / FILE).exists()):
                return  # no file before there is something to write
            try:
                if self._refusals is None:
                    self._refusals = open_refusals(self._data_dir)
                self._refusals.add(gathered.everything(), bounds=self._bounds, now=time.time())
            except Exception as error:  # noqa: BLE001  the disk, the file, whatever it is: the thread goes on
                self._refusals = None
                self._complain(error, gathered.count)

    def close(self) -> None:
        """Write the rest and leave the file tidy, at the end of the process."""
        self.flush()
        with self._writing:
            self._closed = True
            if self._refusals is not None:
                self._refusals.close()

    def _write_for_ever(self) -> None:
        while True:
            self._something.clear()
            self.flush()
            time.sleep(WRITE_EVERY)
            self._something.wait(TRIM_EVERY)

    def _complain(self, error: Exception, lost: int) -> None:
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + COMPLAIN_EVERY
            logs.get("receiver").error("refused deliveries cannot be written down", why=str(error), lost=lost)
