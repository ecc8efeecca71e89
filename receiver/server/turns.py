"""Turns: the loop's own work in steps, for a bounded time in each turn of the loop, so that no request holds it.

What is over waits for the next turn, and the loop receives and sends in between. Small requests come first: a large one
takes longer than all small ones that arrive with it. Half of each turn is for large ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

TURN_SECONDS = 0.005
SMALL_BYTES = 16 * 1024

Step = Callable[[], None]
"""Does a part of the work, and adds itself again if there is more. Never raises."""


class Turns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.at_end: Step = lambda: None
        self._small: deque[Step] = deque()
        self._large: deque[Step] = deque()
        self._scheduled = False

    def add(self, step: Step, size: int) -> None:
        """Have a step done in this turn or a later one. `size` is the number of bytes that it works on."""
        (self._small if size <= SMALL_BYTES else self._large).append(step)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        small, large = self._small, self._large
        until = monotonic() + TURN_SECONDS
        small_until = until - TURN_SECONDS / 2 if large else until
        while small and monotonic() < small_until:
            small.popleft()()
        if large:
            large.popleft()()
        while large and monotonic() < until:
            large.popleft()()
        self._scheduled = bool(small or large)
        if self._scheduled:
            self._loop.call_soon(self._run)
        self.at_end()
