"""Call limit: how many calls of one process may wait for the history at once, so that some threads stay free for others
while it hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from workers.history.past_events import HistoryError

PATIENCE = 0.5
"""Seconds for which a further call waits after one began or ended. Without a fault, a call takes milliseconds."""


class HistoryLimit:
    def __init__(self, most: int) -> None:
        self._most, self._open, self._changed_at = most, 0, 0.0
        self._changed = threading.Condition()

    @contextmanager
    def place(self) -> Iterator[None]:
        """For the time of one call. Raises HistoryError if there are too many and none of them has ended lately."""
        with self._changed:
            while self._open >= self._most:
                patience = self._changed_at + PATIENCE - time.monotonic()
                if patience <= 0:
                    raise HistoryError(
                        f"the history is busy or does not answer: {self._most} calls are under way; try again later"
                    )
                self._changed.wait(patience)
            self._count(1)
        try:
            yield
        finally:
            with self._changed:
                self._count(-1)
                self._changed.notify()

    def _count(self, change: int) -> None:
        self._open += change
        self._changed_at = time.monotonic()
