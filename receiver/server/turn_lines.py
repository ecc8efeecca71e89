"""Turn lines: what waits for its turn, by store and then by sender. Stores take turns, and so do the senders of each.

By sender too, because anyone may send a delivery again that was captured: many would hold up the store's own.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sized
from typing import Any, Generic, TypeVar

from receiver import logs
from receiver.delivery.answers import unavailable

MOST_GONE = 50
"""From this number in a line on, those whose senders are gone leave it: nothing else would bound it, as they have no
connection any more. They were not answered, so they are sent again."""
MOST_BYTES = 64 << 20
"""Of the requests that wait. A store may send them faster than they are stored, and 900 connections have 900 MB."""

Item = TypeVar("Item", bound=tuple[Any, Any])
"""A connection, and what waits to be done for it."""
Line = TypeVar("Line", bound=Sized)
Taken = TypeVar("Taken")


class TurnLines(Generic[Item]):
    def __init__(self, most: int = 0, what: str = "") -> None:
        """With `most`, only so many of one store wait. More would not be answered in time, and their connections would
        keep other senders out: they may not end meanwhile."""
        self._stores: OrderedDict[str, OrderedDict[str, deque[Item]]] = OrderedDict()
        self._most, self._what, self._bytes = most, what, 0
        self._counted = logs.CountedLog(logs.get("receiver"))

    def __bool__(self) -> bool:
        return bool(self._stores)

    def add(self, store: str, sender: str, item: Item) -> None:
        """If too many of the store wait then, the newest of the sender that has most is refused; what is of no store
        has no such limit. If too many bytes wait, the newest of the store and sender that have most of them is."""
        line = self._stores.setdefault(store, OrderedDict()).setdefault(sender, deque())
        while len(line) >= MOST_GONE and is_gone(line[0]):
            self._bytes -= bytes_in([line.popleft()])
        line.append(item)
        self._bytes += bytes_in([item])
        if self._most and store and self.count(store) > self._most:
            self._refuse_newest(store, len, f"{self._what} of this store")
        while self._bytes > MOST_BYTES:
            most = max(self._stores, key=lambda one: sum(map(bytes_in, self._stores[one].values())))
            self._refuse_newest(most, bytes_in, "large requests")

    def _refuse_newest(self, store: str, measure: Callable[[deque[Item]], int], what: str) -> None:
        senders = self._stores[store]
        most = max(reversed(senders), key=lambda one: measure(senders[one]))
        connection, _ = refused = senders[most].pop()
        self._bytes -= bytes_in([refused])
        if not senders[most]:
            del senders[most]
        if not senders:
            del self._stores[store]
        kind = "deliveries" if store else "requests"
        self._counted.add(f"{kind} answered 503", store=store, reason=f"too many {what} wait")
        connection.answer(unavailable(f"Too many {what} wait. Retry later."))

    def take(self) -> Item:
        """The next one. There must be one."""
        return self.take_some(lambda line: [line.popleft()])[0]

    def take_some(self, take: Callable[[deque[Item]], list[Item]]) -> list[Item]:
        """What `take` takes from the line of the sender whose turn it is."""
        taken = _in_turn(self._stores, lambda senders: _in_turn(senders, take))
        self._bytes -= bytes_in(taken)
        return taken

    def count(self, store: str) -> int:
        return sum(map(len, self._stores[store].values())) if store in self._stores else 0


def bytes_in(items: Iterable[tuple[Any, Any]]) -> int:
    return sum(connection.request_bytes for connection, _ in items)


def is_gone(item: tuple[Any, Any]) -> bool:
    """Whether its sender is."""
    return bool(item[0].state == "closing")


def _in_turn(lines: OrderedDict[str, Line], take: Callable[[Line], Taken]) -> Taken:
    """Take from the line whose turn it is. The others come before its next one."""
    name, line = lines.popitem(last=False)
    taken = take(line)
    if line:
        lines[name] = line
    return taken
