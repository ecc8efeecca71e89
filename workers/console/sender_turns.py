"""Sender turns: which request a thread takes next. A sender with many requests does not keep the others waiting."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Request = TypeVar("Request")


class SenderTurns(Generic[Request]):
    def __init__(self, threads: int, of_one: int, beside_others: int) -> None:
        """`of_one`: how many threads a sender may have at a time; `beside_others`: while others have some. Threads
        share one processor, so more of them would make the others' requests slow."""
        self._threads, self._of_one, self._beside_others = threads, of_one, beside_others
        self._lines: OrderedDict[str, deque[Request]] = OrderedDict()
        """What waits, by sender. The sender whose turn is longest ago is first."""
        self._running: dict[Request, str] = {}

    def add(self, sender: str, request: Request) -> None:
        self._lines.setdefault(sender, deque()).append(request)

    def give_up(self, sender: str, request: Request) -> None:
        """It waits no longer."""
        self._lines[sender].remove(request)
        if not self._lines[sender]:
            del self._lines[sender]

    def begin(self) -> Request | None:
        """What a thread takes now; None if no thread is free, or none for a sender that waits."""
        if len(self._running) >= self._threads:
            return None
        for sender, line in self._lines.items():
            if self._may_begin(sender):
                request = line.popleft()
                self._lines.move_to_end(sender)
                if not line:
                    del self._lines[sender]
                self._running[request] = sender
                return request
        return None

    def end(self, request: Request) -> str:
        """Its sender."""
        return self._running.pop(request)

    def _may_begin(self, sender: str) -> bool:
        running = list(self._running.values())
        own = running.count(sender)
        return own < (self._of_one if own == len(running) else self._beside_others)
