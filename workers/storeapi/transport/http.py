"""Transport: one request, one bounded answer. The process's one pool of connections is here.

No redirects, no cookies, no proxies from the environment, no automatic authorisation: nothing is sent that a
caller did not say.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpcore2
import httpx2

from workers.storeapi.errors import Blocked, ForeignOrigin, ResponseTooLarge, Unreachable, UnsafeAddress
from workers.storeapi.transport.guard import Allowed, GuardedBackend, deadline

MAX_CONNECTIONS = 32
CONNECT_SECONDS = 10.0
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

_pools: dict[tuple[int, Allowed], httpx2.Client] = {}
_pools_lock = threading.Lock()


@dataclass(frozen=True)
class HttpResponse:
    """What came back, whole and within bounds."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True)
class HttpSession:
    """How a client talks: which private addresses it may reach, how much it reads."""

    allowed: Allowed = False
    max_answer: int = 32 << 20

    def warm_up(self) -> None:
        """Build the pool if this process has none: that takes a while, and a call with its place should not wait."""
        pool(self.allowed)

    def send(
        self, method: str, url: str, *, headers: Mapping[str, str], content: bytes | None = None, until: float
    ) -> HttpResponse:
        """Send once; give the answer, or one of Blocked and Unreachable."""
        check_url(url, self.allowed)
        token = deadline.set(until)
        try:
            with pool(self.allowed).stream(method, url, headers=dict(headers), content=content) as response:
                _refuse_redirect(response)
                return HttpResponse(response.status_code, response.headers, self._read(response))
        except (httpx2.InvalidURL, UnicodeError) as error:
            raise Blocked(f"this cannot be sent: {error}") from None
        except httpx2.TimeoutException as error:
            raise Unreachable(f"no answer in time ({error})", sent=not isinstance(error, _NEVER_SENT)) from None
        except httpx2.HTTPError as error:
            raise Unreachable(f"no answer: {error}", sent=not isinstance(error, _NEVER_SENT)) from None
        finally:
            deadline.reset(token)

    def _read(self, response: httpx2.Response) -> bytes:
        """The body, given up as soon as it is too large; a length that says so is enough."""
        length = response.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length) > self.max_answer:
            raise ResponseTooLarge(f"the answer is {int(length):,} bytes, and {self.max_answer:,} are read at most")
        parts, size = [], 0
        for part in response.iter_bytes():
            size += len(part)
            if size > self.max_answer:
                raise ResponseTooLarge(f"the answer is more than the {self.max_answer:,} bytes that are read at most")
            parts.append(part)
        return b"".join(parts)


def pool(allowed: Allowed) -> httpx2.Client:
    """The pool of this process. A forked child gets its own, and so does each set of allowed networks."""
    key = (os.getpid(), allowed)
    with _pools_lock:
        if key not in _pools:
            _pools[key] = httpx2.Client(transport=_GuardedTransport(allowed), follow_redirects=False, trust_env=False)
        return _pools[key]


class _GuardedTransport(httpx2.HTTPTransport):
    """httpx2's transport over a pool whose network is guarded."""

    def __init__(self, allowed: Allowed) -> None:
        super().__init__(trust_env=False)
        self._pool.close()
        self._pool = httpcore2.ConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False),
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_CONNECTIONS,
            keepalive_expiry=5.0,
            network_backend=GuardedBackend(allowed),
        )

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        # The guard's deadline is the limit; these only keep a connect from taking all of it.
        request.extensions["timeout"] = {"connect": CONNECT_SECONDS, "pool": CONNECT_SECONDS}
        return super().handle_request(request)


def origin_of(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)


def check_url(url: str, allowed: Allowed) -> None:
    """https, with a host and nothing hidden in it; plain http only where private addresses are allowed."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname or "@" in parts.netloc:
        raise UnsafeAddress("the store's address must look like https://shop.example")
    if parts.scheme == "http" and not allowed:
        raise UnsafeAddress(
            f"http://{parts.hostname} would send the token in the clear; use https, or set allow_private where "
            "the store is on your own network"
        )


def _refuse_redirect(response: httpx2.Response) -> None:
    if response.has_redirect_location:
        target = urlsplit(response.headers["location"]).hostname or "another path"
        raise ForeignOrigin(
            f"answered {response.status_code}, a redirect to {target}; redirects are not followed, and the token "
            "was not sent there. If the API has moved, set base_url or the operation's path"
        )
