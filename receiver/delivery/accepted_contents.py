"""Accepted contents: how much of one body was accepted under ids that do not name it alone.

Where a store signs only the body, who has captured one delivery can have it accepted any number of times, each time
under another id. At 10 MB/s that would fill Redis in minutes, and then no event of any store is handled. No store sends
as many equal bodies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic

from receiver.contract.intake import Delivery

MAX_BYTES, PERIOD_SECONDS = 64 << 20, 600.0
"""Of one body that this process accepts in a period, with what is stored beside it."""
EVENT_COST = 1024
"""Bytes that an event takes in addition to its body and headers."""
KNOWN_CONTENTS = 10_000

Content = tuple[str, int]


class AcceptedContents:
    """Counts the KNOWN_CONTENTS that came last. Any thread may call it."""

    def __init__(self) -> None:
        self._accepted: dict[Content, tuple[float, int]] = {}
        """When the period of each content began, and its bytes since."""
        self._lock = threading.Lock()

    def is_exceeded(self, delivery: Delivery) -> bool:
        """Whether so much of this body was accepted that more of it must wait."""
        if not any(_repeatable(delivery)):
            return False
        key = _content(delivery)
        with self._lock:
            began, size = self._accepted.get(key, (0.0, 0))
            exceeded = size > MAX_BYTES and monotonic() - began < PERIOD_SECONDS
            if exceeded:  # it stays among the last while it is sent
                self._accepted[key] = self._accepted.pop(key)
        return exceeded

    def add(self, delivery: Delivery) -> None:
        """Count one that was accepted."""
        more = sum(_stored_bytes(one) for one in _repeatable(delivery))
        if not more:
            return
        key, now = _content(delivery), monotonic()
        with self._lock:
            began, size = self._accepted.pop(key, (now, 0))
            self._accepted[key] = (began, size + more) if now - began < PERIOD_SECONDS else (now, more)
            if len(self._accepted) > KNOWN_CONTENTS:
                del self._accepted[next(iter(self._accepted))]


def _repeatable(delivery: Delivery) -> Iterator[Delivery]:
    """Its events, but for those that their id names alone: each of these can be accepted only once."""
    return (one for one in (delivery, *delivery.rest) if one.first_id or not one.event.delivery_id)


def _content(delivery: Delivery) -> Content:
    bodies = [one.event.body for one in (delivery, *delivery.rest)]
    return delivery.event.store, hash(bodies[0] if len(bodies) == 1 else tuple(bodies))


def _stored_bytes(delivery: Delivery) -> int:
    event = delivery.event
    return EVENT_COST + len(event.body) + sum(len(name) + len(value) for name, value in event.headers.items())
