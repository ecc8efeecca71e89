"""Turns: the loop's own work in steps, for a bounded time in each turn of the loop, so that no request holds it.

What is over waits for the next turn, and the loop receives and sends in between. Small requests come first: a large one
takes longer than all small ones that arrive with it. Large is also what has taken long, whatever its size: the time of
each step is measured. Half of each turn is for large ones, and of these, what has taken least comes first.

Senders share the time, by their address: requests of one that has many connections wait for each other, and one whose
steps take long waits until the others have had as much, also while the loop receives more of a large request of theirs.
Behind a proxy that the config names, a request is of the sender that the proxy names, so its head is read first.
Behind any other proxy all have one address.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf
from time import monotonic, thread_time
from typing import Protocol

TURN_SECONDS = 0.005
SMALL_BYTES = 16 * 1024
SMALL_SECONDS = 0.0005
"""Of the processor, for the steps of a request so far. Reading an ordinary one takes a fifth of this."""
STEP_SECONDS = 0.0004
"""What a step counts at most: it may include a garbage collection, and so does not make a small request large alone."""
SHARE = 0.0001
"""Of the processor's time, for a sender in each of its turns. An ordinary step takes as long."""
PATIENCE = 0.05
"""Seconds for which a sender of a large request counts as present after a step: the next part of it is on the way."""
PAUSE = 0.001
"""Seconds until the next turn, if all that wait owe more than this to a present sender."""
DELAY = 1000
"""A large request waits for those that begin up to a second later, for each millisecond that it has taken. None waits
for ever."""


class Stepwise(Protocol):
    """Work that is done in steps."""

    sender: str
    """Empty until a proxy has named it."""
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
        self._unnamed: deque[Stepwise] = deque()
        """Of a proxy, until the head of a request has named its sender."""
        self._small, self._large = SharedTime(), SharedTime(PATIENCE)
        self._scheduled = False

    def add(self, one: Stepwise, size: int) -> None:
        """Have the next step done in this turn or a later one. `size` is the number of bytes that it works on."""
        self._added.append((one, size))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._place()
        small, large = self._small, self._large
        until = monotonic() + TURN_SECONDS
        while self._unnamed and monotonic() < until - TURN_SECONDS / 2:
            self._step(self._unnamed.popleft(), small)
        small_until = (monotonic() + until) / 2 if large.count else until
        while small.count and monotonic() < small_until:
            self._do(small)
        goes_on = bool(large.count) and self._do(large)
        while goes_on and large.count and monotonic() < until:
            goes_on = self._do(large)
        self._scheduled = bool(self._unnamed or small.count or large.count)
        if self._unnamed or small.count or (large.count and goes_on):
            self._loop.call_soon(self._run)
        elif large.count:
            self._loop.call_later(PAUSE, self._run)
        self.at_end()

    def _do(self, lines: SharedTime) -> bool:
        """Do the next step; False if it must wait for a sender whose next part is on the way."""
        one = lines.take()
        if one is not None:
            self._step(one, lines)
        return one is not None

    def _step(self, one: Stepwise, lines: SharedTime) -> None:
        sender, before = one.sender, thread_time()
        one.step()
        used = thread_time() - before
        one.spent += min(used, STEP_SECONDS)
        lines.charge(sender or one.sender, used)
        if self._added:
            self._place()

    def _place(self) -> None:
        """After a step, when its time is known."""
        while self._added:
            one, size = self._added.popleft()
            if not one.sender:
                self._unnamed.append(one)
            elif size <= SMALL_BYTES and one.spent < SMALL_SECONDS:
                self._small.add(one, 0.0)
            else:
                self._large.add(one, one.since + DELAY * one.spent)


class SharedTime:
    """Work of all senders, which share the processor's time. Each has a line, and they take turns. The time of a step
    is a debt of its sender, and each of its turns pays SHARE of it, also if it has nothing to do. Its next step comes
    when all is paid: at once, if no other is present, and in a pause for another, after as long as its debt."""

    def __init__(self, patience: float = 0.0) -> None:
        """`patience`: for how long after a step a sender that has nothing to do counts as present."""
        self.count = 0
        self._lines: OrderedDict[str, _SenderLine] = OrderedDict()
        self._number = count()
        self._patience = patience
        self._steps: dict[str, float] = {}
        """When each present sender had its last step, in this order."""
        self._paused_at = inf

    def add(self, one: Stepwise, rank: float) -> None:
        """In the line of its sender it comes after what has a lower rank."""
        self.count += 1
        heappush(self._line(one.sender).waiting, (rank, next(self._number), one))

    def take(self) -> Stepwise | None:
        """`count` must not be 0. None: those that wait owe more than a present sender whose next step may come."""
        if self._paused_at != inf:
            self._pay_for_pause()
        if len(self._lines) == 1 and not self._steps:  # the usual case: no other is present, so it owes nothing
            (line,) = self._lines.values()
            line.debt = 0.0
            return self._next_of(line)
        while True:
            for _ in range(len(self._lines)):
                sender, line = self._lines.popitem(last=False)
                line.debt = max(0.0, line.debt - SHARE)
                if line.debt or line.waiting:
                    self._lines[sender] = line
                if line.waiting and not line.debt:
                    return self._next_of(line)
            debt = min(line.debt for line in self._lines.values() if line.waiting)
            if self._a_present_one_owes_less_than(debt - PAUSE):
                self._paused_at = monotonic()
                return None
            turns = ceil(debt / SHARE)
            for line in self._lines.values():  # all turns but the last of these at once, since that is faster
                line.debt -= SHARE * (turns - 1)

    def _next_of(self, line: _SenderLine) -> Stepwise:
        self.count -= 1
        return heappop(line.waiting)[2]

    def charge(self, sender: str, seconds: float) -> None:
        if self._patience:
            self._steps.pop(sender, None)
            self._steps[sender] = monotonic()
            self._forget_absent()
        if self.count or len(self._steps) > 1:
            self._line(sender).debt += seconds
        else:  # no other is present, so no sender owes another anything
            self._lines.clear()

    def _pay_for_pause(self) -> None:
        paused, self._paused_at = monotonic() - self._paused_at, inf
        for line in self._lines.values():
            line.debt = max(0.0, line.debt - paused)

    def _a_present_one_owes_less_than(self, debt: float) -> bool:
        self._forget_absent()
        present = [self._lines.get(sender, _SenderLine()) for sender in self._steps]
        return any(line.debt < debt and not line.waiting for line in present)

    def _forget_absent(self) -> None:
        since = monotonic() - self._patience
        while self._steps and next(iter(self._steps.values())) < since:
            del self._steps[next(iter(self._steps))]

    def _line(self, sender: str) -> _SenderLine:
        line = self._lines.get(sender)
        if line is None:
            line = self._lines[sender] = _SenderLine()
        return line


class _SenderLine:
    def __init__(self) -> None:
        self.waiting: list[tuple[float, int, Stepwise]] = []
        self.debt = 0.0
