"""Accepted contents: how much of one body was accepted under ids that are not signed.

Where a store signs only the body, who has captured one delivery can have it accepted any number of times, each time
under another id. At 10 MB/s that would fill Redis in minutes, and then no event of any store is handled. No store sends
as many equal bodies: those that are sent often only name what has changed, and are small.
"""

from __future__ import annotations

import threading
from time import monotonic

from receiver.contract.intake import Delivery

MAX_BYTES, PERIOD_SECONDS = 32 << 20, 600.0
"""Of one body that this process accepts in a period."""
KNOWN_CONTENTS = 10_000


class AcceptedContents:
    """Counts the latest KNOWN_CONTENTS. Any thread may call it."""

    def __init__(self) -> None:
        self._accepted: dict[tuple[str, int], tuple[float, int]] = {}
        """When the period of each content began, and its bytes since."""
        self._lock = threading.Lock()

    def is_exceeded(self, delivery: Delivery) -> bool:
        """Whether so much of this body was accepted that more of it must wait."""
        began, size = self._accepted.get(_content(delivery), (0.0, 0))
        return size > MAX_BYTES and monotonic() - began < PERIOD_SECONDS

    def add(self, delivery: Delivery) -> None:
        """Count one that was accepted. One with a signed id does not count: it can be accepted only once."""
        if delivery.event.delivery_id and not delivery.first_id:
            return
        key, now = _content(delivery), monotonic()
        more = sum(len(one.event.body) for one in (delivery, *delivery.rest))
        with self._lock:
            began, size = self._accepted.pop(key, (now, 0))
            self._accepted[key] = (began, size + more) if now - began < PERIOD_SECONDS else (now, more)
            if len(self._accepted) > KNOWN_CONTENTS:
                del self._accepted[next(iter(self._accepted))]


def _content(delivery: Delivery) -> tuple[str, int]:
    return delivery.event.store, hash(delivery.event.body)
