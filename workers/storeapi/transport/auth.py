"""Auth: where a bearer token comes from. OAuth 2.0 client credentials (RFC 6749, section 4.4), or a configured token.

All processes share the token through Redis, where it is sealed: reading Redis without the credentials does not give a
token. One process fetches it while the others wait. It is refreshed before it expires, and once after a store has
refused it. Until it expires, a refresh that fails is no error.
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
from typing import Literal, Protocol
from urllib.parse import quote, quote_plus, urlencode

import orjson
from redis import Redis

from workers.storeapi import keys
from workers.storeapi.errors import Blocked, Redirected, TokenRefused, TokenUnreachable, Unreachable
from workers.storeapi.transport.http import HttpSession
from workers.storeapi.transport.retry import backoff, is_fault, retry_after
from workers.storeapi.transport.token_answer import TOKEN_PATH, Token, token_in, words_of

FETCH_SECONDS = 10.0
FETCH_ATTEMPTS = 4
ERROR_MS = 1_000
"""How long no process asks again after an error; a Retry-After makes it longer."""
MAX_PAUSE_MS = 3_600_000
"""How long a Retry-After is honoured; after that the token endpoint is asked once more."""
POLL_SECONDS = 0.02
USE_SECONDS = 0.25
"""How long a token whose refresh has failed is used before the next look at it; the same as in get_token.lua."""
_NONCE_BYTES = 12


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
    style: Literal["basic", "body", "json"] = "basic"
    scope: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    token_path: str = TOKEN_PATH
    scheme: str = "Bearer"
    """The word that is sent before the token: a token of another type is refused."""
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
        """Headers and body of a token request: a form, or JSON."""
        fields = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {}), **self.extra}
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        if self.style == "basic":
            return {**headers, "authorization": f"Basic {self._basic()}"}, urlencode(fields).encode()
        fields |= {"client_id": self.client_id, "client_secret": self.client_secret}
        if self.style == "json":
            return {**headers, "content-type": "application/json"}, orjson.dumps(fields)
        return headers, urlencode(fields).encode()

    def _basic(self) -> str:
        return b64encode(f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}".encode()).decode()

    @property
    def hidden(self) -> tuple[str, ...]:
        """The secret in each form in which a server may repeat it."""
        secret = self.client_secret
        return self._basic(), secret, quote_plus(secret), quote(secret)


class TokenSealer:
    """Seals and unseals tokens with one key; a sealed token is bound to the Redis key that holds it.

    The key is derived from the credentials, which every process has in its config. So every process can open what
    another one sealed, without agreeing on anything else. They alone would be enough to fetch a token anyway.
    """

    def __init__(self, key: bytes, redis_key: str) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # slow to import, and not every process calls

        self._cipher, self._redis_key = AESGCM(key), redis_key.encode()

    def seal(self, token: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, token.encode(), self._redis_key)

    def unseal(self, sealed: bytes) -> str:
        """The token; empty where it was not sealed with this key for this Redis key."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], self._redis_key).decode()
        except (InvalidTag, ValueError):
            return ""


class ClientCredentials:
    """A TokenSource. Threads of one process ask one at a time; all but the first find the token in memory."""

    def __init__(
        self, credentials: Credentials, http: HttpSession, *, redis: Redis | None = None, store: str = ""
    ) -> None:
        self._credentials = credentials
        self._http = http
        self._redis = redis
        self._config = f"stores.{store}.auth"
        self._keys = keys.token_keys(store, credentials.fingerprint)
        self._sealer = TokenSealer(credentials.sealing_key, self._keys[0]) if redis else None
        self._lock = threading.Lock()
        self._value = ""
        self._fresh_until = self._valid_until = 0.0
        self._paused_until, self._paused_by = 0.0, ""

    def bearer(self, *, refused: str = "", until: float) -> str:
        with self._lock:
            if not self._value or self._value == refused or time.monotonic() >= self._fresh_until:
                value, fresh_for = self._get_shared(refused, until) if self._redis else self._get_own(refused, until)
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
                self._redis, "get_token", self._keys, caller, lock_ms, _fingerprint(refused), MAX_PAUSE_MS
            )
            if answer == b"use":
                if token := self._sealer.unseal(rest[0]):
                    return token, rest[1] / 1000
                self._redis.delete(self._keys[0])  # damaged: the next round finds another token, or fetches one
                continue
            if answer == b"fetch":
                try:
                    return self._fetch_for_all(caller, _time_for_refresh(until) if rest[0] else until)
                except (TokenRefused, TokenUnreachable):
                    if not rest[0]:
                        raise
                continue  # the next round finds the old token, while it is valid
            if answer == b"error":
                raise _shared_error(rest[0].decode(), rest[1] / 1000)
            if time.monotonic() >= until:
                raise TokenUnreachable("timed out while another process was fetching a token", sent=False)
            time.sleep(POLL_SECONDS)

    def _fetch_for_all(self, caller: str, until: float) -> tuple[str, float]:
        assert self._redis is not None
        assert self._sealer is not None
        try:
            token = self._fetch(until)
        except (TokenRefused, TokenUnreachable) as error:
            shared = f"{type(error).__name__} {error.reason}"
            keys.run_script(self._redis, "store_token", self._keys, caller, "", shared, _pause_ms(error))
            raise
        sealed, fingerprint = self._sealer.seal(token.value), _fingerprint(token.value)
        times = (int(token.fresh_for * 1000), int(token.lifetime * 1000))
        keys.run_script(self._redis, "store_token", self._keys, caller, sealed, fingerprint, *times)
        return token.value, token.fresh_for

    def _get_own(self, refused: str, until: float) -> tuple[str, float]:
        """A token without Redis: the old one while it is valid and its refresh fails."""
        has_valid = self._value != refused and time.monotonic() < self._valid_until
        try:
            token = self._fetch_own(_time_for_refresh(until) if has_valid else until)
        except (TokenRefused, TokenUnreachable):
            if has_valid and time.monotonic() < self._valid_until:
                return self._value, USE_SECONDS
            raise
        self._valid_until = time.monotonic() + token.lifetime
        return token.value, token.fresh_for

    def _fetch_own(self, until: float) -> Token:
        left = self._paused_until - time.monotonic()
        if left > 0:
            raise TokenUnreachable(self._paused_by, sent=False, retry_after=left)
        try:
            return self._fetch(until)
        except TokenUnreachable as error:
            self._paused_until, self._paused_by = time.monotonic() + _pause_ms(error) / 1000, error.reason
            raise

    def _fetch(self, until: float) -> Token:
        """Ask the token endpoint, with retries where a retry can help. Ends before the lock of the fetch expires."""
        until = min(until, time.monotonic() + FETCH_SECONDS)
        for attempt in range(FETCH_ATTEMPTS):
            answer = self._ask(until)
            if isinstance(answer, Token):
                return answer
            pause = max(backoff(attempt), answer.retry_after or 0.0)
            if attempt == FETCH_ATTEMPTS - 1 or time.monotonic() + pause >= until:
                raise answer
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, until: float) -> Token | TokenUnreachable:
        """Ask once. Returns the token, or why there is none for now; raises TokenRefused."""
        given = self._credentials
        headers, content = given.request()
        try:
            response = self._http.send("POST", given.url, headers=headers, content=content, until=until)
        except Redirected as error:
            raise TokenRefused(
                f"the token endpoint answered {error.status}, a redirect to {error.target}; the credentials were not "
                f"sent there. Set url in {self._config} to the final address"
            ) from None
        except Blocked as error:
            raise TokenRefused(f"the token endpoint: {error.reason}; check url in {self._config}") from None
        except Unreachable as error:
            return TokenUnreachable(f"the token endpoint does not answer ({error.reason})", sent=False)
        if response.status != 429 and response.status < 500 and not is_fault(response.status):
            how = {"path": given.token_path, "style": given.style, "scheme": given.scheme}
            return token_in(response, **how, config=self._config, hidden=given.hidden)
        after = retry_after(response.headers.get("retry-after"))
        wait = f", and asks to wait {after:,.0f} s" if after else ""
        reason = f"the token endpoint answered {response.status}{words_of(response, given.hidden)}{wait}"
        return TokenUnreachable(reason, sent=False, retry_after=after)


def token_seconds_left(redis: Redis, store: str, credentials: Credentials) -> float | None:
    """Seconds until the shared token expires; None where there is no token now."""
    left = redis.pttl(keys.token_keys(store, credentials.fingerprint)[0])
    return left / 1000 if isinstance(left, int) and left >= 0 else None


def _time_for_refresh(until: float) -> float:
    """When an early refresh ends: if there is no answer, the call still needs time to use the old token."""
    return (time.monotonic() + until) / 2


def _pause_ms(error: TokenRefused | TokenUnreachable) -> int:
    """How long no process asks the token endpoint again."""
    after = error.retry_after if isinstance(error, TokenUnreachable) else None
    return int(min(max((after or 0.0) * 1000, ERROR_MS), MAX_PAUSE_MS))


def _shared_error(text: str, seconds: float) -> TokenRefused | TokenUnreachable:
    """The error that another process had, which ends in `seconds`."""
    kind, _, reason = text.partition(" ")
    if kind == TokenUnreachable.__name__:
        return TokenUnreachable(reason, sent=False, retry_after=seconds)
    return TokenRefused(reason)


def _fingerprint(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:16] if token else ""
