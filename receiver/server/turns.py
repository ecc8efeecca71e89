"""Turns: the loop's own work in steps, for a bounded time in each turn of the loop, so that no request holds it.

What is over waits for the next turn, and the loop reads and sends in between. Small requests come first: a large body
takes longer than all small ones that arrive with it. One large step in each turn is certain. A process that has nothing
else to do starts at once, without waiting for what the loop receives at the same time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Protocol

TURN_SECONDS = 0.005
SMALL_BYTES = 16 * 1024


class Step(Protocol):
    def step(self) -> None:
        """Do a part of the work, and add itself again if there is more. Never raises."""


class Turns:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, at_end: Callable[[], None], is_idle: Callable[[], bool]
    ) -> None:
        """`at_end` is called at the end of each turn. `is_idle` says whether a turn may start at once."""
        self._loop, self._at_end, self._is_idle = loop, at_end, is_idle
        self._at_once_until = 0.0
        self._small: deque[Step] = deque()
        self._large: deque[Step] = deque()
        self._scheduled = False

    def add(self, work: Step, size: int) -> None:
        """Have a step done in this turn or a later one. `size` is the number of bytes that it works on."""
        (self._small if size <= SMALL_BYTES else self._large).append(work)
        if not self._scheduled:
            self._scheduled = True
            if size <= SMALL_BYTES and self._is_idle() and self._may_start_at_once():
                self._run()
            else:
                self._loop.call_soon(self._run)

    def _may_start_at_once(self) -> bool:
        """For the time of one turn; then the loop comes first, before it may again."""
        now = monotonic()
        if not self._at_once_until:
            self._at_once_until = now + TURN_SECONDS
        elif now > self._at_once_until:
            self._at_once_until = 0.0
        return self._at_once_until > 0

    def _run(self) -> None:
        until = monotonic() + TURN_SECONDS
        small, large = self._small, self._large
        while small and monotonic() < until:
            small.popleft().step()
        if large:
            large.popleft().step()
        while large and not small and monotonic() < until:
            large.popleft().step()
        self._at_end()
        self._scheduled = bool(small or large)
        if self._scheduled:
            self._loop.call_soon(self._run)
