"""Sender address: who sends, by the address of a connection, also through proxies of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

MAX_PROXIES = 10
"""How many entries of X-Forwarded-For are read: a sender may write any number of them."""
SENDER_BITS = 48
"""Of an IPv6 address, where it must not be easy to be many senders. Who rents a server often has a /56, which is 256
times a /64, and seldom more than a /48."""
_HEADER = "x-forwarded-for"


class TrustedProxies:
    """The networks of `[receiver] trusted_proxies`. No other peer decides which address is taken for its own."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = tuple(map(ip_network, networks))

    def sender(self, peer: str, headers: Mapping[str, str]) -> str:
        """The last address on the way to us that is none of our proxies; of a direct connection, its peer.

        Each proxy appends the address of its own peer, so what the sender wrote itself is at the left and never counts.
        """
        if not self.has(peer):
            return peer
        known = peer
        for entry in reversed(headers.get(_HEADER, "").rsplit(",", MAX_PROXIES)[-MAX_PROXIES:]):
            found = address_in(entry)
            if found is None:
                break
            known = str(found)
            if not self._has(found):
                break
        return known

    def has(self, peer: str) -> bool:
        return bool(self._networks) and self._has(address_in(peer))

    def _has(self, address: IPv4Address | IPv6Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def address_in(text: str) -> IPv4Address | IPv6Address | None:
    """The address in an entry, which may have a port: `192.0.2.1:4711`, `[2001:db8::1]:4711`."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def sender_at(address: str, *, bits: int = 64) -> str:
    """Who sends from this address. One sender usually has the last 64 bits of IPv6 to itself, and some have more:
    only the first `bits` count. A socket that is bound to `[::]` shows IPv4 addresses as IPv6."""
    found = address_in(address) if ":" in address else None
    if isinstance(found, IPv6Address):
        return str(IPv6Network((int(found), bits), strict=False))
    return str(found or address)  # the path of a socket is none
