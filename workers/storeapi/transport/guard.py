"""Guard: which addresses the client may connect to, and the deadline of every read and write.

The guard resolves a host name once, checks the address, and connects to that address. A separate check of the name
before would be another lookup, and DNS could give another address the second time.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from contextvars import ContextVar
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import httpcore2

from receiver.process.name_lookup import look_up
from workers.storeapi.errors import UnsafeAddress

AllowedPrivate = bool | tuple[str, ...]
"""Private addresses a store may have: none, all, or those of some networks."""

deadline: ContextVar[float] = ContextVar("deadline")
"""When the call of this thread must end (monotonic); every network operation obeys it."""

_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_SPECIAL_NETWORKS = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24
    192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 2001::/23 2001:db8::/32 2002::/16 3fff::/20
"""
_SPECIAL = tuple(map(ip_network, _SPECIAL_NETWORKS.split()))
"""From IANA's registries of special-purpose addresses, with the tunnels 6to4 and Teredo. `is_global` of the standard
library lacks some of them, and differs between Python versions."""


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is on the public internet; an IPv6 address that wraps an IPv4 one counts as that one."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        if address.ipv4_mapped:
            return is_public(address.ipv4_mapped)
        if address not in _GLOBAL_UNICAST:
            return False
    return not any(address in network for network in _SPECIAL)


def may_connect(address: str, allow_private: AllowedPrivate) -> bool:
    found = ip_address(address.partition("%")[0])
    if allow_private is True or is_public(found):
        return True
    return any(found in ip_network(network) for network in allow_private or ())


def time_left(limit: float | None, timeout_error: type[Exception]) -> float:
    """Seconds until the deadline of this call, at most `limit`; raises `timeout_error` after the deadline."""
    left = deadline.get() - time.monotonic()
    if left <= 0:
        raise timeout_error("the deadline of the call has passed")
    return left if limit is None else min(left, limit)


class GuardedBackend(httpcore2.NetworkBackend):
    """Connects only to checked addresses, and puts the deadline on every read and write."""

    def __init__(self, allow_private: AllowedPrivate) -> None:
        self._allow_private = allow_private
        self._network = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        failure: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in self._safe_addresses(host, port, time_left(timeout, httpcore2.ConnectTimeout)):
            try:
                left = time_left(timeout, httpcore2.ConnectTimeout)
                stream = self._network.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
                continue
            return _TimedStream(stream)
        raise failure

    def _safe_addresses(self, host: str, port: int, timeout: float) -> list[str]:
        found = resolve(host, port, timeout)
        safe = [address for address in found if may_connect(address, self._allow_private)]
        if found and not safe:
            raise UnsafeAddress(
                f"{host} resolves to the private address {found[0]}, and nothing was sent; if that is correct, set "
                f'allow_private = ["{found[0]}/{128 if ":" in found[0] else 32}"] for it'
            )
        return safe


def resolve(host: str, port: int, timeout: float) -> list[str]:
    """Every address of a host name."""
    try:
        return look_up(host, port, timeout)
    except TimeoutError:
        raise httpcore2.ConnectTimeout(f"the lookup of {host} timed out") from None
    except OSError as error:
        raise httpcore2.ConnectError(f"{host} cannot be resolved: {error.strerror or error}") from None


class _TimedStream(httpcore2.NetworkStream):
    """A connection whose reads and writes end at the deadline: a server that drips bytes cannot extend the call."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, time_left(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, time_left(timeout, httpcore2.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        left = time_left(timeout, httpcore2.ConnectTimeout)
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
