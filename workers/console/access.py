"""Access: which hosts and origins the console answers to, who may log in, and the token of each form."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from redis import Redis

from receiver.config.settings import ConsoleSettings
from receiver.config.values import LOOPBACK
from receiver.contract.errors import ConfigError
from receiver.inbox.console_logins import ConsoleLogins, Role

_PORTS = {"http": "80", "https": "443"}


def require_safe(settings: ConsoleSettings) -> None:
    """Raise ConfigError if other hosts could reach a console without a password."""
    host = settings.bind.rpartition(":")[0].strip("[]")
    named = urlsplit(settings.address).hostname
    if not has_password(settings) and (host not in LOOPBACK or named not in LOOPBACK):
        raise ConfigError(
            f"[console] bind is {settings.bind} and url is {settings.address}, and there is no password; set "
            '[console] password = "env:NAME", or use a loopback address for both'
        )


def has_password(settings: ConsoleSettings) -> bool:
    return bool(settings.password.get_secret_value())


def allowed_origins(settings: ConsoleSettings) -> Mapping[str, str]:
    """The origin of each host by which the console may be asked for, as in the header Host."""
    parts = urlsplit(settings.address)
    named = parts.netloc.rpartition("@")[2].lower()
    host, port = named.removesuffix(f":{_PORTS[parts.scheme]}"), settings.bind.rpartition(":")[2]
    found = {host: f"{parts.scheme}://{host}"}
    if settings.bind.rpartition(":")[0].strip("[]") in LOOPBACK:  # no other host can have these names
        found = {one: f"http://{one}" for one in (settings.bind.lower(), f"localhost:{port}")} | found
    return found


def new_link(settings: ConsoleSettings, client: Redis) -> str:
    """A URL that opens the console once, for a person at this machine."""
    return f"{settings.address}/login?once={ConsoleLogins(client).new_link()}"


def form_token(cookie: str) -> str:
    """The token that each form of a browser carries: only our own pages can know it."""
    return hashlib.sha256(b"form\0" + cookie.encode()).hexdigest()[:32]


class Access:
    """The logins of one console."""

    def __init__(self, settings: ConsoleSettings, client: Redis) -> None:
        self._logins = ConsoleLogins(client)
        viewer = settings.viewer_password.get_secret_value()
        self._passwords: dict[Role, str] = {"operator": settings.password.get_secret_value()}
        self._passwords |= {"viewer": viewer} if viewer else {}

    @property
    def has_password(self) -> bool:
        return any(self._passwords.values())

    def role_of(self, cookie: str) -> Role | None:
        return self._logins.role_of(cookie, self._passwords) if cookie else None

    def wait_seconds(self, address: str) -> int:
        """0 if a login from this address is examined now; else how long to wait. Counts the attempt."""
        return -(-self._logins.wait_ms(address) // 1000)

    def log_in(self, password: str, address: str) -> str | None:
        """The cookie of a new session, or None for a wrong password."""
        for role, right in self._passwords.items():
            if right and hmac.compare_digest(password.encode(), right.encode()):
                self._logins.forget_failures(address)
                return self._logins.open(role, right)
        return None

    def spend_link(self, word: str, address: str) -> str | None:
        """The cookie of a new session, or None if the link is wrong or spent, or if there is a password."""
        if self._passwords["operator"] or not self._logins.spend_link(word.strip().upper()):
            return None
        self._logins.forget_failures(address)
        return self._logins.open("operator", "")

    def log_out(self, cookie: str) -> None:
        self._logins.close(cookie)
