"""Auth: where a bearer token comes from. OAuth 2.0 client credentials (RFC 6749, section 4.4), or a configured token.

All processes share the token through Redis, where it is sealed. One process fetches it while the others wait. It is
refreshed before it expires, and once after a store has refused it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import quote_plus, urlencode

import orjson
from redis import Redis

from workers.storeapi import keys
from workers.storeapi.errors import TokenRefused, TokenUnreachable, Unreachable
from workers.storeapi.transport.http import HttpResponse, HttpSession
from workers.storeapi.transport.retry import backoff
from workers.storeapi.transport.token_sealing import TokenSealer

FETCH_SECONDS = 10.0
FETCH_ATTEMPTS = 4
ERROR_MS = 1_000
POLL_SECONDS = 0.02
DEFAULT_LIFETIME = 3600.0
"""Seconds a token is used when the token endpoint gives no expires_in; a 401 ends it sooner."""


class TokenSource(Protocol):
    def bearer(self, *, refused: str = "", until: float) -> str:
        """A token that is not the refused one."""


@dataclass(frozen=True)
class StaticToken:
    """A configured token. There is no other one when the store refuses it."""

    value: str = field(repr=False)

    def bearer(self, *, refused: str = "", until: float) -> str:  # noqa: ARG002
        if not self.value:
            raise TokenRefused("no token is configured: set auth = {url, client_id, client_secret}, or auth = {token}")
        return self.value


@dataclass(frozen=True)
class Credentials:
    """The credentials from the developer portal, and how the token endpoint expects them."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    style: Literal["basic", "body"] = "basic"
    scope: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    seal_key: str = field(default="", repr=False)
    """`[secrets] key`, if set: then guessing the client secret is not enough to unseal a token."""

    @property
    def fingerprint(self) -> str:
        """Identifies these credentials in a Redis key without revealing them."""
        return self._derive(b"name").hex()[:16]

    @property
    def sealing_key(self) -> bytes:
        return self._derive(b"seal")

    def _derive(self, purpose: bytes) -> bytes:
        known = (self.url, self.client_id, self.client_secret, self.scope, sorted(self.extra.items()), self.seal_key)
        return hmac.digest(repr(known).encode(), b"storehooks token, sealed: " + purpose, "sha256")

    def request(self) -> tuple[dict[str, str], bytes]:
        """Headers and form of a token request."""
        form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {}), **self.extra}
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        if self.style == "basic":
            pair = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
            headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self.client_id, "client_secret": self.client_secret}
        return headers, urlencode(form).encode()


class Token(NamedTuple):
    value: str
    lifetime: float

    @property
    def fresh_for(self) -> float:
        """Seconds until the refresh: it comes when a tenth of the lifetime is left, at most a minute before the end."""
        return max(self.lifetime - min(60.0, self.lifetime / 10), 0.0)


class ClientCredentials:
    """A TokenSource. Threads of one process ask one at a time; all but the first find the token in memory."""

    def __init__(
        self, credentials: Credentials, http: HttpSession, *, redis: Redis | None = None, store: str = ""
    ) -> None:
        self._credentials = credentials
        self._http = http
        self._redis = redis
        self._keys = keys.token_keys(store, credentials.fingerprint)
        self._sealer = TokenSealer(credentials.sealing_key, self._keys[0]) if redis else None
        self._lock = threading.Lock()
        self._value = ""
        self._fresh_until = 0.0

    def bearer(self, *, refused: str = "", until: float) -> str:
        with self._lock:
            if not self._value or self._value == refused or time.monotonic() >= self._fresh_until:
                value, fresh_for = self._get_shared(refused, until) if self._redis else self._get_own(until)
                self._value, self._fresh_until = value, time.monotonic() + fresh_for
            return self._value

    def _get_shared(self, refused: str, until: float) -> tuple[str, float]:
        """The token that all processes share. Fetches it if no other process is fetching it."""
        assert self._redis is not None
        assert self._sealer is not None
        caller = secrets.token_hex(8)
        lock_ms = int((FETCH_SECONDS + 5) * 1000)
        while True:
            answer, *rest = keys.run_script(
                self._redis, "get_token", self._keys, caller, lock_ms, _fingerprint(refused)
            )
            if answer == b"use":
                if token := self._sealer.unseal(rest[0]):
                    return token, rest[1] / 1000
                self._redis.delete(self._keys[0])  # damaged: the next round finds another token, or fetches one
                continue
            if answer == b"fetch":
                return self._fetch_for_all(caller, until)
            if answer == b"error":
                raise TokenRefused(rest[0].decode())
            if time.monotonic() >= until:
                raise TokenUnreachable("timed out while another process was fetching a token", sent=False)
            time.sleep(POLL_SECONDS)

    def _fetch_for_all(self, caller: str, until: float) -> tuple[str, float]:
        assert self._redis is not None
        assert self._sealer is not None
        try:
            token = self._fetch(until)
        except (TokenRefused, Unreachable) as error:
            keys.run_script(self._redis, "store_token", self._keys, caller, "", error.reason, ERROR_MS)
            raise
        sealed, fingerprint = self._sealer.seal(token.value), _fingerprint(token.value)
        times = (int(token.fresh_for * 1000), int(token.lifetime * 1000))
        keys.run_script(self._redis, "store_token", self._keys, caller, sealed, fingerprint, *times)
        return token.value, token.fresh_for

    def _get_own(self, until: float) -> tuple[str, float]:
        token = self._fetch(until)
        return token.value, token.fresh_for

    def _fetch(self, until: float) -> Token:
        """Ask the token endpoint, with retries where a retry can help. Ends before the lock of the fetch expires."""
        until = min(until, time.monotonic() + FETCH_SECONDS)
        headers, content = self._credentials.request()
        for attempt in range(FETCH_ATTEMPTS):
            last = attempt == FETCH_ATTEMPTS - 1
            try:
                response = self._http.send("POST", self._credentials.url, headers=headers, content=content, until=until)
                if last or not (response.status == 429 or response.status >= 500):
                    return _token_in(response)
            except Unreachable as error:
                if last or time.monotonic() >= until:
                    raise TokenUnreachable(f"the token endpoint does not answer ({error.reason})", sent=False) from None
            time.sleep(min(backoff(attempt), max(0.0, until - time.monotonic())))
        raise AssertionError("the last attempt returns or raises")


def token_seconds_left(redis: Redis, store: str, credentials: Credentials) -> float | None:
    """Seconds until the shared token expires; None where there is no token now."""
    left = redis.pttl(keys.token_keys(store, credentials.fingerprint)[0])
    return left / 1000 if isinstance(left, int) and left >= 0 else None


def _token_in(response: HttpResponse) -> Token:
    """The token in a response. Of an error only the RFC 6749 code is shown: the rest could hold a secret."""
    try:
        document: Any = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        document = {}
    document = document if isinstance(document, dict) else {}
    if response.status not in (200, 201):
        code = str(document.get("error", ""))[:60]
        raise TokenRefused(f"the token endpoint answered {response.status}{f' ({code})' if code else ''}; check auth")
    value, lifetime = document.get("access_token"), document.get("expires_in")
    if not isinstance(value, str) or not value or not value.isascii() or not value.isprintable():
        raise TokenRefused("the token endpoint answered without an access_token")
    if isinstance(lifetime, str) and lifetime.isascii() and lifetime.isdigit():
        lifetime = int(lifetime)
    known = isinstance(lifetime, int | float) and not isinstance(lifetime, bool) and lifetime > 0
    return Token(value, float(lifetime) if known else DEFAULT_LIFETIME)


def _fingerprint(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:16] if token else ""
