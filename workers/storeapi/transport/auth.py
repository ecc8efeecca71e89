"""Auth: where a bearer token comes from. OAuth 2.0 client credentials (RFC 6749, section 4.4), or a token given to us.

The token is shared by all processes through Redis, sealed. One of them fetches it while the others wait; it is renewed
before it ends, and once after a store has refused it.
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
from workers.storeapi.errors import TokenRefused, Unreachable
from workers.storeapi.transport.http import HttpResponse, HttpSession
from workers.storeapi.transport.retry import backoff
from workers.storeapi.transport.token_sealing import TokenSeal

FETCH_SECONDS = 10.0
FETCHES = 4
FAULT_MS = 1_000
WAIT_SECONDS = 0.02
ENDLESS = 3600.0
"""How long a token is kept whose end nobody told us; a 401 ends it sooner."""


class TokenSource(Protocol):
    def bearer(self, *, refused: str = "", until: float) -> str:
        """A token that is not the refused one."""


@dataclass(frozen=True)
class StaticToken:
    """A token somebody gave us; there is no other when it is refused."""

    value: str = field(repr=False)

    def bearer(self, *, refused: str = "", until: float) -> str:  # noqa: ARG002
        if not self.value:
            raise TokenRefused("there is no token: set auth = {url, client_id, client_secret}, or auth = {token}")
        return self.value


@dataclass(frozen=True)
class Credentials:
    """What the developer portal gave us, and how the token endpoint wants it."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    style: Literal["basic", "body"] = "basic"
    scope: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    seal_key: str = field(default="", repr=False)
    """`[secrets] key`, where there is one: then a client secret that could be guessed opens no token by itself."""

    @property
    def mark(self) -> str:
        """Names these credentials in a key without telling them."""
        return self._made_for(b"name").hex()[:16]

    @property
    def sealing_key(self) -> bytes:
        return self._made_for(b"seal")

    def _made_for(self, purpose: bytes) -> bytes:
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
        """Renewed when a tenth of its life is left, but no earlier than a minute before its end."""
        return max(self.lifetime - min(60.0, self.lifetime / 10), 0.0)


class ClientCredentials:
    """A TokenSource. Threads of one process ask one at a time, and all but the first find the answer here."""

    def __init__(
        self, credentials: Credentials, wire: HttpSession, *, redis: Redis | None = None, store: str = ""
    ) -> None:
        self._credentials = credentials
        self._wire = wire
        self._redis = redis
        self._names = keys.token(store, credentials.mark)
        self._seal = TokenSeal(credentials.sealing_key, self._names[0]) if redis else None
        self._lock = threading.Lock()
        self._value = ""
        self._fresh_until = 0.0

    def bearer(self, *, refused: str = "", until: float) -> str:
        with self._lock:
            if not self._value or self._value == refused or time.monotonic() >= self._fresh_until:
                value, fresh_for = self._shared(refused, until) if self._redis else self._fetched(until)
                self._value, self._fresh_until = value, time.monotonic() + fresh_for
            return self._value

    def _shared(self, refused: str, until: float) -> tuple[str, float]:
        """The token all processes use; fetched by us if it is our turn."""
        assert self._redis is not None
        assert self._seal is not None
        who = secrets.token_hex(8)
        lock_ms = int((FETCH_SECONDS + 5) * 1000)
        while True:
            answer, *rest = keys.run(self._redis, "token", self._names, who, lock_ms, _mark(refused))
            if answer == b"use":
                if token := self._seal.open(rest[0]):
                    return token, rest[1] / 1000
                self._redis.delete(self._names[0])  # debris; what is there next is ours, or it is our turn
                continue
            if answer == b"fetch":
                return self._fetched_for_all(who, until)
            if answer == b"fault":
                raise TokenRefused(rest[0].decode())
            if time.monotonic() >= until:
                raise Unreachable("another process is fetching a token, and it takes too long", sent=False)
            time.sleep(WAIT_SECONDS)

    def _fetched_for_all(self, who: str, until: float) -> tuple[str, float]:
        assert self._redis is not None
        assert self._seal is not None
        try:
            token = self._fetch(until)
        except (TokenRefused, Unreachable) as error:
            keys.run(self._redis, "keep", self._names, who, "", error.reason, FAULT_MS)
            raise
        times = (int(token.fresh_for * 1000), int(token.lifetime * 1000))
        keys.run(self._redis, "keep", self._names, who, self._seal.close(token.value), _mark(token.value), *times)
        return token.value, token.fresh_for

    def _fetched(self, until: float) -> tuple[str, float]:
        token = self._fetch(until)
        return token.value, token.fresh_for

    def _fetch(self, until: float) -> Token:
        """Ask the token endpoint, again where asking again can help; all within the time others wait for us."""
        until = min(until, time.monotonic() + FETCH_SECONDS)
        headers, content = self._credentials.request()
        for attempt in range(FETCHES):
            last = attempt == FETCHES - 1
            try:
                answer = self._wire.send("POST", self._credentials.url, headers=headers, content=content, until=until)
                if last or not (answer.status == 429 or answer.status >= 500):
                    return _token_in(answer)
            except Unreachable as error:
                if last or time.monotonic() >= until:
                    raise Unreachable(f"the token endpoint gives {error.reason}", sent=False) from None
            time.sleep(min(backoff(attempt), max(0.0, until - time.monotonic())))
        raise AssertionError("the last attempt returns or raises")


def token_seconds_left(redis: Redis, store: str, credentials: Credentials) -> float | None:
    """How long the token that all processes share is still good; None where there is none now."""
    left = redis.pttl(keys.token(store, credentials.mark)[0])
    return left / 1000 if isinstance(left, int) and left >= 0 else None


def _token_in(answer: HttpResponse) -> Token:
    """The token of an answer. What the endpoint says of an error is told only by its RFC 6749 code."""
    try:
        told: Any = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        told = {}
    told = told if isinstance(told, dict) else {}
    if answer.status not in (200, 201):
        code = str(told.get("error", ""))[:60]
        raise TokenRefused(f"the token endpoint answered {answer.status}{f' ({code})' if code else ''}; check auth")
    value, lifetime = told.get("access_token"), told.get("expires_in")
    if not isinstance(value, str) or not value or not value.isascii() or not value.isprintable():
        raise TokenRefused("the token endpoint answered without an access_token")
    if isinstance(lifetime, str) and lifetime.isascii() and lifetime.isdigit():
        lifetime = int(lifetime)
    known = isinstance(lifetime, int | float) and not isinstance(lifetime, bool) and lifetime > 0
    return Token(value, float(lifetime) if known else ENDLESS)


def _mark(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:16] if token else ""
