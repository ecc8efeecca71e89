"""HTTP: one request, one bounded response. The process's connection pools are here.

No redirects, no cookies, no proxies but the one of `[network]`, no automatic authorisation: nothing is sent that the
caller did not ask for.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import httpcore2
import httpx2

from receiver.config.settings import NetworkSettings
from workers.storeapi.errors import Blocked, Redirected, ResponseTooLarge, Unreachable, UnsafeAddress
from workers.storeapi.response_shapes import one_line
from workers.storeapi.transport.guard import AllowedPrivate, GuardedBackend, deadline
from workers.storeapi.transport.network import DIRECT, proxy_for, trusted_certificates

_PoolKey = tuple[int, AllowedPrivate, str, int, str]
"""Of a process, by its limits: allowed networks, the file of certificates and when it was changed, the proxy."""
MAX_CONNECTIONS = 32
CONNECT_SECONDS = 10.0
MAX_ENCODINGS = 3
"""How often a path may have been percent-encoded by proxies on the way."""
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)

_pools: dict[_PoolKey, httpx2.Client] = {}
_pools_lock = threading.Lock()
_careless: set[str] = set()
"""Servers that have sent more than an answer."""


@dataclass(frozen=True)
class HttpResponse:
    """A complete response within the size limit."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    hidden: tuple[str, ...] = field(default=(), repr=False)
    """The secrets of the request, which the response may repeat."""
    resent: bool = False
    """The request was sent before, and the server may have it twice."""


@dataclass(frozen=True)
class HttpSession:
    """The limits of a client: which private addresses it may connect to, and how many bytes it reads."""

    allow_private: AllowedPrivate = False
    max_response: int = 32 << 20
    network: NetworkSettings = DIRECT

    def warm_up(self, url: str, *, until: float) -> None:
        """Build this process's pool if it has none, and look the host up if that decides whether a proxy is used. Both
        are slow, and a call that holds a slot should not wait."""
        with suppress(OSError, httpx2.InvalidURL, UnicodeError):  # the call says why
            proxy = proxy_for(self.network, url, seconds=until - time.monotonic())
            connection_pool(self.allow_private, self.network, proxy)

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str | bytes], content: bytes | None = None, until: float
    ) -> HttpResponse:
        """Send once; return the response. Raises Blocked or Unreachable."""
        check_url(url, self.allow_private)
        token = deadline.set(until)
        try:
            proxy = proxy_for(self.network, url, seconds=until - time.monotonic())
            pool = connection_pool(self.allow_private, self.network, proxy)
            with pool.stream(method, url, headers=dict[Any, Any](headers), content=content) as response:
                _refuse_redirect(response)
                return HttpResponse(response.status_code, response.headers, self._read(response))
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise Blocked(f"the request is invalid: {one_line(error)}") from None
        except httpx2.TimeoutException as error:
            raise Unreachable(f"timed out ({one_line(error)})", sent=not isinstance(error, _NEVER_SENT)) from None
        except httpx2.HTTPError as error:
            raise Unreachable(f"no response: {one_line(error)}", sent=not isinstance(error, _NEVER_SENT)) from None
        except OSError as error:  # no connection's: httpx2 has its own errors for those
            why = f"[network] ca_file {self.network.ca_file} cannot be used: {error.strerror or error}"
            raise Unreachable(why, sent=False) from None
        finally:
            deadline.reset(token)

    def _read(self, response: httpx2.Response) -> bytes:
        """The body. Reading stops as soon as it is too large; a Content-Length above the limit is not read at all."""
        length = response.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length) > self.max_response:
            why = f"the response has {int(length):,} bytes; the limit is {self.max_response:,}"
            raise ResponseTooLarge(why, status=response.status_code, headers=response.headers)
        parts, size = [], 0
        for part in response.iter_bytes():
            size += len(part)
            if size > self.max_response:
                why = f"the response is larger than the limit of {self.max_response:,} bytes"
                raise ResponseTooLarge(why, status=response.status_code, headers=response.headers)
            parts.append(part)
        return b"".join(parts)


def connection_pool(allow_private: AllowedPrivate, network: NetworkSettings, proxy: str) -> httpx2.Client:
    """The pool of this process, for direct calls if `proxy` is empty. A forked child gets its own, and so does each set
    of allowed networks. Raises OSError for a file of certificates that cannot be read."""
    changed = os.stat(network.ca_file).st_mtime_ns if network.ca_file else 0
    key = (os.getpid(), allow_private, network.ca_file, changed, proxy)
    with _pools_lock:
        if key not in _pools:
            transport = _GuardedTransport(allow_private, trusted_certificates(network), proxy)
            _pools[key] = httpx2.Client(transport=transport, follow_redirects=False, trust_env=False)
        return _pools[key]


class _DirectPool(httpcore2.ConnectionPool):
    def create_connection(self, origin: httpcore2.Origin) -> httpcore2.ConnectionInterface:
        return _ending_after_surplus(super().create_connection(origin), str(origin))


class _ProxyPool(httpcore2.HTTPProxy):
    def create_connection(self, origin: httpcore2.Origin) -> httpcore2.ConnectionInterface:
        return _ending_after_surplus(super().create_connection(origin), str(origin))


def _ending_after_surplus(connection: httpcore2.ConnectionInterface, origin: str) -> httpcore2.ConnectionInterface:
    """Not used again if more came behind an answer than it should have: that would be the answer to the next request,
    which may be another handler's. From then on no connection to that server is: next time it may come too late to be
    seen."""
    has_expired = connection.has_expired

    def is_spent() -> bool:
        if origin not in _careless and _has_surplus(connection):
            _careless.add(origin)
        return origin in _careless or has_expired()

    setattr(connection, "has_expired", is_spent)  # noqa: B010  mypy
    return connection


def _has_surplus(connection: Any) -> bool:
    """Whether bytes were read behind the last answer. The connections of httpcore2 contain each other, the last one
    h11's; and TLS within TLS has a buffer of its own."""
    while (inner := getattr(connection, "_connection", None)) is not None:
        connection = inner
    http11 = getattr(connection, "_h11_state", None)  # none while it is being opened
    if http11 is None:
        return False
    encrypted = getattr(getattr(connection._network_stream, "_stream", None), "_incoming", None)
    return bool(http11.trailing_data[0]) or (encrypted is not None and encrypted.pending > 0)


class _GuardedTransport(httpx2.HTTPTransport):
    """httpx2's transport over a pool whose connections go through the guard."""

    def __init__(self, allow_private: AllowedPrivate, trusted: ssl.SSLContext, proxy: str) -> None:
        super().__init__(trust_env=False, verify=trusted)
        self._pool.close()
        limits: dict[str, Any] = {
            "max_connections": MAX_CONNECTIONS,
            "max_keepalive_connections": MAX_CONNECTIONS,
            "keepalive_expiry": 5.0,
        }
        if proxy:  # it has a private address in most networks; the guard's deadline holds all the same
            given = httpx2.Proxy(proxy)
            self._pool = _ProxyPool(
                proxy_url=str(given.url),
                proxy_auth=given.raw_auth,
                proxy_ssl_context=trusted if given.url.scheme == "https" else None,
                ssl_context=trusted,
                network_backend=GuardedBackend(allow_private=True),
                **limits,
            )
        else:
            self._pool = _DirectPool(ssl_context=trusted, network_backend=GuardedBackend(allow_private), **limits)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        # The guard's deadline is the limit; these timeouts only keep a connect from using all of it.
        request.extensions["timeout"] = {"connect": CONNECT_SECONDS, "pool": CONNECT_SECONDS}
        return super().handle_request(request)


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises ValueError for what is not a URL."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)


def has_dot_segments(path: str) -> bool:
    """Whether some server may read the path as one with `..`: also encoded, with backslashes or with parameters."""
    for _ in range(MAX_ENCODINGS):
        path = unquote(path)
    return any(segment.partition(";")[0] in (".", "..") for segment in path.replace("\\", "/").split("/"))


def check_url(url: str, allow_private: AllowedPrivate) -> None:
    """Accept https with a host and without a user; accept plain http only where private addresses are allowed."""
    try:
        scheme, host, _ = origin_of(url)
    except ValueError:
        scheme = host = ""
    if scheme not in ("https", "http") or not host or "@" in urlsplit(url).netloc:
        raise UnsafeAddress("the store's address must look like https://shop.example")
    if scheme == "http" and not allow_private:
        raise UnsafeAddress(
            f"http://{host} would send the token unencrypted; use https, or set allow_private if the store "
            "is on your own network"
        )


def _refuse_redirect(response: httpx2.Response) -> None:
    if response.has_redirect_location:
        target = one_line(host_of(response.headers["location"]), limit=100) or "another path"
        raise Redirected(
            f"answered {response.status_code}, a redirect to {target}; redirects are not followed, and the token "
            "was not sent there. If the API has moved, set base_url or the operation's path",
            status=response.status_code,
            target=target,
        )


def host_of(url: str) -> str:
    """The host in a URL; empty if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
