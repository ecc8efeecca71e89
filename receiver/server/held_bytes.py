"""Held bytes: whose requests are refused first when those that arrive hold too many bytes.

What one request shows is not enough: one address with many connections can send as evenly as any sender does. Nor are
the bytes of each address: a busy sender holds more than each of several attackers. But no outsider can sign a new
delivery, and who can has to sign as many bytes as it breaks off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

PAUSE_SECONDS = 1.0
"""A request whose bytes have waited for longer is refused first, also if its sender is known."""
PACKET_SECONDS = 0.1
"""Shorter times make no difference: they depend on the size of a sender's packets."""
KNOWN_SENDERS = 10_000
KNOWN_BYTES = 32 << 20
"""What a sender holds beyond these counts as any other's: a store's owner can sign, and must not crowd out new senders.
Half of what a process holds."""
SPARE_BYTES = 16 << 20
"""What a known sender may hold beyond its accepted bytes, and lose: its deliveries so far may have been small."""

Request = TypeVar("Request")


class Held(NamedTuple):
    """What a request holds."""

    sender: str
    size: int
    waited: float
    """Seconds in which its bytes have waited for the sender."""


class BodyContent(NamedTuple):
    """By what a body is known, without keeping it."""

    size: int
    hash: int


def content_of(body: bytes) -> BodyContent:
    return BodyContent(len(body), hash(body))


class KnownSenders:
    """The latest KNOWN_SENDERS of accepted deliveries to this process, each with a balance: the bytes of these, less
    those of its other requests."""

    def __init__(self) -> None:
        self._balances: dict[str, int] = {}
        self._contents: dict[BodyContent, None] = {}
        """The latest that counted for a sender."""

    def balance(self, sender: str) -> int:
        return self._balances.get(sender, -SPARE_BYTES)

    def trust(self, sender: str, size: int) -> int:
        """In a sender that holds so many bytes: 2 within its balance, 1 within what it has to spare, else 0."""
        balance = self.balance(sender)
        return (size <= balance) + (size <= min(balance + SPARE_BYTES, KNOWN_BYTES))

    def add_accepted(self, sender: str, content: BodyContent) -> None:
        """Each content counts once, for the first who sends it: where no id is signed, anyone can have a captured body
        accepted again."""
        if content in self._contents:
            return
        self._contents[content] = None
        self._balances[sender] = min(KNOWN_BYTES, self._balances.pop(sender, 0) + content.size)
        if len(self._contents) > KNOWN_SENDERS:
            del self._contents[next(iter(self._contents))]
        if len(self._balances) > KNOWN_SENDERS:
            del self._balances[next(iter(self._balances))]

    def add_other(self, sender: str, size: int) -> None:
        """Also if it ended before it was complete: else an attacker would end each."""
        if sender in self._balances:
            self._balances[sender] = max(-SPARE_BYTES, self._balances[sender] - size)


def order_of_refusal(requests: Mapping[Request, Held], known: KnownSenders) -> list[Request]:
    """First those that wait for their sender, then by the trust in it. Among equals, the sender is next whose bytes
    have waited most, in bytes times seconds, at that point; of its own requests, the one that has waited for longest.
    """
    burden: defaultdict[str, float] = defaultdict(float)
    size: defaultdict[str, int] = defaultdict(int)
    rank: dict[Request, tuple[bool, int, float]] = {}
    for request, held in sorted(requests.items(), key=lambda item: item[1].waited):
        size[held.sender] += held.size
        burden[held.sender] += held.size * max(held.waited, PACKET_SECONDS)
        trust = known.trust(held.sender, size[held.sender])
        waits = held.waited > PAUSE_SECONDS
        rank[request] = (False, 0, -held.waited) if waits else (True, trust, -burden[held.sender])
    return sorted(requests, key=rank.__getitem__)
