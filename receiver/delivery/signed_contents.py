"""Signed contents: how much came of what one signature covers, under ids that do not name it alone.

Who has captured one delivery can send what is signed of it any number of times: under another id where only the body is
signed, and with another body where only some fields are. At 10 MB/s that would fill Redis in minutes, and then no event
of any store is handled. No store sends as much of equal content.
"""

from __future__ import annotations

import threading
from time import monotonic

from receiver.contract.intake import Delivery

MAX_BYTES, OWN_BYTES, PERIOD_SECONDS = 64 << 20, 8 << 20, 600.0
"""How much of one content this process takes in a period, with what is stored beside it. The first OWN_BYTES of each
sender never wait: a store that sends it often is not held up because others do."""
EVENT_COST = 1024
"""Bytes that an event takes in addition to its body and headers."""
KNOWN_CONTENTS = 10_000

_Key = tuple[str, int, str | None]
"""Secret, content and sender, or None for all senders. What is signed is valid for all stores with the same secret."""


class SignedContents:
    """Counts the KNOWN_CONTENTS that came last, each in all and by sender. Any thread may call it."""

    def __init__(self) -> None:
        self._counts: dict[_Key, tuple[float, int]] = {}
        """When the period of each began, and the bytes since."""
        self._lock = threading.Lock()

    def add(self, secret: str, content: bytes, sender: str, size: int) -> bool:
        """Count one that takes this many bytes, by the fingerprint of its secret. Whether so much of its content came
        that it must wait."""
        key = secret, hash(content)
        with self._lock:
            in_all = self._count((*key, None), size)
            own = self._count((*key, sender), size)
        return in_all > MAX_BYTES and own > OWN_BYTES

    def _count(self, key: _Key, size: int) -> int:
        now = monotonic()
        began, before = self._counts.pop(key, (now, 0))
        if now - began >= PERIOD_SECONDS:
            began, before = now, 0
        self._counts[key] = began, before + size
        if len(self._counts) > 2 * KNOWN_CONTENTS:
            del self._counts[next(iter(self._counts))]
        return before + size


def repeatable_bytes(delivery: Delivery) -> int:
    """The bytes that its events take, but for those that their id names alone: each of these is accepted only once."""
    events = (one.event for one in (delivery, *delivery.rest) if one.first_id or not one.event.delivery_id)
    return sum(EVENT_COST + len(one.body) + sum(map(len, (*one.headers, *one.headers.values()))) for one in events)
