"""Console logins: sessions, links that work once, and the growing wait after wrong passwords, shared by all processes.

Redis has only digests of cookies and links: a copy of its data opens no console.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Literal

from receiver.config.values import LOOPBACK
from receiver.contract.sender_address import SENDER_BITS, address_in, sender_at
from receiver.inbox import keys
from receiver.inbox.queries.damage import as_text
from receiver.inbox.redis import script_runner
from receiver.inbox.redis.connecting import ServerUser

Role = Literal["operator", "viewer"]
SESSION_SECONDS = 12 * 3600
LINK_SECONDS = 24 * 3600
FAILURES_SECONDS = 900
FREE_ATTEMPTS = 3
"""Wrong passwords before the wait begins to grow."""
LONGEST_WAIT_MS = 60_000
BUCKETS = 256
"""Addresses share counters, so that a sender with many addresses cannot create any number of keys."""
_LETTERS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"


class ConsoleLogins(ServerUser):
    def open(self, role: Role, password: str) -> str:
        """Begin a session; returns the value of its cookie. A link opens one with an empty password."""
        cookie = secrets.token_urlsafe(32)
        proof = _proof(password, cookie)
        script_runner.run_one(self.client, "login", "session", _digest(cookie), SESSION_SECONDS, role, proof)
        return cookie

    def role_of(self, cookie: str, passwords: Mapping[Role, str]) -> Role | None:
        """The role of a session. One that was opened with another password than that of today has ended."""
        role, proof = self.client.hmget(keys.SESSION + _digest(cookie), "role", "proof")
        for name, password in passwords.items():
            if as_text(role or b"") == name and hmac.compare_digest(as_text(proof or b""), _proof(password, cookie)):
                return name
        return None

    def close(self, cookie: str) -> None:
        self.client.delete(keys.SESSION + _digest(cookie))

    def new_link(self) -> str:
        """A word that opens one session."""
        word = "-".join("".join(secrets.choice(_LETTERS) for _ in range(4)) for _ in range(4))
        script_runner.run_one(self.client, "login", "link", _digest(word), LINK_SECONDS)
        return word

    def spend_link(self, word: str) -> bool:
        """Whether the link was new. Of several processes that ask at once, one gets True."""
        return bool(self.client.delete(keys.LINK + _digest(word)))

    def wait_ms(self, address: str) -> int:
        """0 if a login from this address is to be examined now; else how long to wait. Counts the attempt."""
        limits = (FAILURES_SECONDS, FREE_ATTEMPTS, LONGEST_WAIT_MS)
        return int(script_runner.run_one(self.client, "login", "attempt", _bucket(address), *limits))

    def forget_failures(self, address: str) -> None:
        self.client.delete(keys.LOGIN + _bucket(address), keys.WAIT + _bucket(address))


def _bucket(address: str) -> str:
    """The host itself has its own, so that no sender that a proxy names delays a login through a forwarded port."""
    own = str(address_in(address))
    if own in LOOPBACK:
        return own
    return str(int(_digest(sender_at(address, bits=SENDER_BITS)), 16) % BUCKETS)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _proof(password: str, cookie: str) -> str:
    """Shows that a session was opened with a password. Without the cookie, the password cannot be guessed from it."""
    return hmac.new(password.encode(), cookie.encode(), hashlib.sha256).hexdigest()
