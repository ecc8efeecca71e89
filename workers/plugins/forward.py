"""Forward: `[forward.NAME]` of the config as a handler. It sends each event to a URL, for a program in any language.

What an answer means:

    2xx                                   done
    429; 408, 425, 5xx with Retry-After   Busy: all runs of the forward wait, and no attempt is counted
    408, 425, 5xx, no answer              Retry
    any other, such as 410 or a redirect  Fail
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from receiver import __version__
from receiver.config import Config
from receiver.config.settings import ForwardSettings, NetworkSettings
from receiver.contract.errors import PluginError
from receiver.contract.event import REDACTED, Event
from receiver.contract.signing.grammar import Secret
from receiver.contract.signing.signatures import PRESETS, sign
from receiver.contract.signing.sources import header_bytes, with_query
from receiver.contract.stored_headers import ITEM, omitted_headers, sealed_headers
from workers.plugins.context import Context
from workers.plugins.exceptions import Busy, Fail, Retry
from workers.plugins.router import Handler, HandlerFunction, Router

NAME = "forward"
STANDARD = PRESETS["standard-webhooks"]
MARGIN = 0.5
"""A request ends this many seconds before the timeout of its run, so that the run can say that there was no answer."""
SHORTEST_PAUSE = 1.0
LONGEST_PAUSE = 3600.0
"""Bounds of what Retry-After may ask for."""
MAX_RESPONSE = 64 << 10
MAX_EXCERPT = 200
_NOT_SENT = frozenset(
    (
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection", "te"),
        *("trailer", "upgrade", "expect", "accept-encoding", ITEM, REDACTED),
    )
)
"""Headers of the connection that a delivery came by."""


class ForwardRouter(Router):
    """The plugin `forward`: a handler for each `[forward.NAME]`. PluginError names an invalid one."""

    def __init__(self, config: Config) -> None:
        super().__init__(NAME)
        self._own += [_handler(config, name, given) for name, given in config.forward.items()]


def _handler(config: Config, name: str, given: ForwardSettings) -> Handler:
    _refuse_unsafe(config, name, given)
    place = config.place(NAME, name)
    return Handler(
        name=name,
        function=_handler_function(given, config.network),
        topics=given.topics,
        stores=given.stores,
        retries=given.retries,
        timeout=given.timeout,
        limit=given.limit or None,
        echo="run",  # it makes no writes that an event could be the echo of
        place=(place.source, place.line) if place else ("the config", 0),
    )


def digest_of(config: Config) -> str:
    """A digest of all `[forward.NAME]`, without their secrets."""
    return hashlib.sha256(repr(config.forward).encode()).hexdigest()


def _refuse_unsafe(config: Config, name: str, given: ForwardSettings) -> None:
    def refuse(key: str, why: str) -> None:
        where = config.place(NAME, name, key) or config.path or "config"
        raise PluginError(f"{where}: forward.{name}.{key} {why}")

    parts, own = urlsplit(given.url), urlsplit(config.receiver.public_url)
    if "@" in parts.netloc:
        refuse("url", "has a user or a password; leave it out, and verify the signature instead")
    if parts.scheme == "http" and not given.allow_private:
        refuse("url", "is not https; use https, or set allow_private = true if it is on your own network")
    if _is_blocked(parts.hostname or "", given):
        refuse("url", "is a private address; if it is on your own network, set allow_private = true")
    if parts.netloc == own.netloc and parts.path.startswith(f"{own.path.rstrip('/')}/webhooks/"):
        refuse("url", "is this receiver, so each event would come back; set the URL of another program")
    try:
        _secret(given)
    except ValueError as error:
        refuse("secret", f'cannot be used: {error}; write "whsec_" and 24 to 64 random bytes in base64')


def _is_blocked(host: str, given: ForwardSettings) -> bool:
    """Whether the URL has a private address that is not allowed. A host name is checked at each connection."""
    from workers.storeapi.transport.guard import may_connect

    try:
        ip_address(host)
    except ValueError:
        return False
    return not may_connect(host, given.allow_private)


def _secret(given: ForwardSettings) -> Secret | None:
    text = given.secret.get_secret_value()
    return Secret(STANDARD.key_of(text)) if text else None


def _handler_function(given: ForwardSettings, network: NetworkSettings) -> HandlerFunction:
    secret = _secret(given)

    def forward(event: Event, ctx: Context[Any]) -> str:
        url, headers = with_query(given.url, headers_for(event, secret, now=time.time()))
        seconds = min(ctx.remaining(), given.timeout) - MARGIN
        return _send(given, network, url, headers, event.body, until=time.monotonic() + seconds)

    return forward


def headers_for(event: Event, secret: Secret | None, *, now: float) -> dict[str, str]:
    """The headers that an event is sent with: signed anew, or those that it came with, as far as they are stored."""
    if secret:
        kind = event.headers.get("content-type", "application/json")
        sent = {"content-type": kind, "user-agent": f"storehooks/{__version__}", "webhook-id": event.id}
        sent |= sign(STANDARD, secret=secret, headers=sent, body=event.body, now=now).headers
    elif event.redacted:
        raise Fail(
            f"[redact] paths removed {', '.join(event.redacted)} from the body, so the store's signature does not "
            "match it: set a secret in this [forward.NAME], with which it is signed anew"
        )
    else:
        left_out = {*_NOT_SENT, *omitted_headers(event.headers), *sealed_headers(event.headers)}
        sent = {name: value for name, value in event.headers.items() if name not in left_out}
    about = {"storehooks-event": event.id, "storehooks-store": event.store, "storehooks-topic": event.topic}
    return {**sent, **about}


def _send(
    given: ForwardSettings,
    network: NetworkSettings,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    until: float,
) -> str:
    from workers.storeapi.errors import Blocked, Redirected, ResponseTooLarge, Unreachable, UnsafeAddress
    from workers.storeapi.transport.http import HttpSession, host_of

    host = host_of(url)  # the path may have a token
    session = HttpSession(given.allow_private, MAX_RESPONSE, network)
    encoded = {name: header_bytes(value) for name, value in headers.items()}
    try:
        response = session.send("POST", url, headers=encoded, content=body, until=until)
    except Unreachable as error:
        raise Retry(f"no answer from {host}: {error.reason}") from None
    except ResponseTooLarge as error:
        return _ended(host, error.status, error.headers, b"")
    except Redirected as error:
        raise Fail(
            f"{host} answered {error.status}, a redirect to {error.target}; redirects are not followed: set the new url"
        ) from None
    except UnsafeAddress as error:
        raise Fail(str(error)) from None
    except Blocked as error:
        raise Fail(f"{host}: {error.reason}") from None
    return _ended(host, response.status, response.headers, response.content)


def _ended(host: str, status: int, headers: Mapping[str, str], content: bytes) -> str:
    """What an answer means for the run."""
    from workers.storeapi.transport.retry import retry_after

    if 200 <= status < 300:
        return f"answered {status}"
    words = " ".join(content.decode("utf-8", "replace").split())[:MAX_EXCERPT]
    why = f"{host} answered {status}{f': {words}' if words else ''}"
    if status not in (408, 425, 429) and status < 500:
        raise Fail(why)
    pause = retry_after(headers.get("retry-after"))
    if pause is None and status != 429:
        raise Retry(why)
    raise Busy(why, after=None if pause is None else min(max(pause, SHORTEST_PAUSE), LONGEST_PAUSE))
