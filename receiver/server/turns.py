"""Turns: the loop's own work in steps, for a bounded time in each turn of the loop, so that no request holds it.

What is over waits for the next turn, and the loop receives and sends in between. Small requests come first: a large one
takes longer than all small ones that arrive with it. Large is also what has taken long, whatever its size: the time of
each step is measured. Half of each turn is for large ones, and of these, what has taken least comes first.

Senders take turns, by their address: requests of one that has many connections wait for each other. Behind a proxy all
have one address, and the proxy limits them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sized
from heapq import heappop, heappush
from itertools import count
from time import monotonic, thread_time
from typing import Protocol, TypeVar

TURN_SECONDS = 0.005
SMALL_BYTES = 16 * 1024
SMALL_SECONDS = 0.0005
"""Of the processor, for the steps of a request so far. Reading an ordinary one takes a fifth of this."""
STEP_SECONDS = 0.0004
"""What a step counts at most: it may include a garbage collection, and so does not make a small request large alone."""
DELAY = 1000
"""A large request waits for those that begin up to a second later, for each millisecond that it has taken. None waits
for ever."""


class Stepwise(Protocol):
    """Work that is done in steps."""

    sender: str
    since: float
    """When it began."""
    spent: float
    """Seconds of the processor that its steps have taken."""

    def step(self) -> None:
        """Do a part of it, and add it again if there is more. Never raises."""


class Turns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.at_end: Callable[[], None] = lambda: None
        self._added: deque[tuple[Stepwise, int]] = deque()
        self._small: OrderedDict[str, deque[Stepwise]] = OrderedDict()
        self._large: OrderedDict[str, list[tuple[float, int, Stepwise]]] = OrderedDict()
        self._number = count()
        self._scheduled = False

    def add(self, one: Stepwise, size: int) -> None:
        """Have the next step done in this turn or a later one. `size` is the number of bytes that it works on."""
        self._added.append((one, size))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._place()
        small, large, self._used = self._small, self._large, thread_time()
        until = monotonic() + TURN_SECONDS
        small_until = until - TURN_SECONDS / 2 if large else until
        while small and monotonic() < small_until:
            self._do(next_in_turn(small, deque.popleft))
        if large:
            self._do(next_in_turn(large, heappop)[2])
        while large and monotonic() < until:
            self._do(next_in_turn(large, heappop)[2])
        self._scheduled = bool(small or large)
        if self._scheduled:
            self._loop.call_soon(self._run)
        self.at_end()

    def _do(self, one: Stepwise) -> None:
        one.step()
        before, self._used = self._used, thread_time()
        one.spent += min(self._used - before, STEP_SECONDS)
        if self._added:
            self._place()

    def _place(self) -> None:
        """After a step, when its time is known."""
        while self._added:
            one, size = self._added.popleft()
            if size <= SMALL_BYTES and one.spent < SMALL_SECONDS:
                self._small.setdefault(one.sender, deque()).append(one)
            else:
                line = self._large.setdefault(one.sender, [])
                heappush(line, (one.since + DELAY * one.spent, next(self._number), one))


Line = TypeVar("Line", bound=Sized)
Item = TypeVar("Item")


def next_in_turn(lines: OrderedDict[str, Line], take: Callable[[Line], Item]) -> Item:
    """Take one from the line of the sender whose turn it is. The others come before its next one."""
    sender, line = lines.popitem(last=False)
    item = take(line)
    if line:
        lines[sender] = line
    return item
