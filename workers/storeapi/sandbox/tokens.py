"""Tokens: the token endpoint of the sandbox store (OAuth 2.0 client credentials)."""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from workers.storeapi.sandbox.shop import Shop


@dataclass(frozen=True)
class AppRegistration:
    """The registered application. `token`, if set, is accepted without a token request."""

    client_id: str = "sandbox"
    client_secret: str = field(default="sandbox-secret", repr=False)
    token: str = field(default="", repr=False)
    path: str = "/oauth/token"
    header: str = "authorization"
    scheme: str = "Bearer"
    token_path: str = "access_token"  # noqa: S105


class TokenIssuer:
    def __init__(self, shop: Shop, registration: AppRegistration) -> None:
        self._shop = shop
        self._app = registration

    def issue(self, authorization: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Status and body of the token endpoint's response (RFC 6749, sections 5.1 and 5.2)."""
        self._shop.state.increment("token requests")
        if form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        if not self._is_registered(*_credentials(authorization, form)):
            return 401, {"error": "invalid_client"}
        token, life = secrets.token_urlsafe(24), self._shop.misbehaviour.seconds("token_life")
        self._shop.state.execute("INSERT INTO tokens VALUES (?, ?)", token, time.time() + life)
        claimed = self._shop.misbehaviour.seconds("token_claims")
        *above, name = self._app.token_path.split(".")
        body: dict[str, Any] = {name: token, "token_type": "Bearer", "expires_in": int(claimed)}
        body |= {"scope": form["scope"]} if "scope" in form else {}
        for outer in reversed(above):
            body = {outer: body}
        return 200, body

    @property
    def header(self) -> str:
        return self._app.header

    def accepts(self, value: str) -> bool:
        """Whether this value of the header has a valid token."""
        prefix = f"{self._app.scheme} " if self._app.scheme else ""
        if not value.startswith(prefix):
            return False
        token = value.removeprefix(prefix)
        if self._app.scheme.lower() == "basic":
            token = ":".join(_credentials(f"Basic {token}", {}))
        if self._app.token and hmac.compare_digest(token.encode(), self._app.token.encode()):
            return True
        found = self._shop.state.execute("SELECT ends FROM tokens WHERE token = ?", token)
        return bool(found) and found[0][0] > time.time()

    def _is_registered(self, client_id: str, client_secret: str) -> bool:
        return bool(client_secret) and hmac.compare_digest(
            f"{client_id}\0{client_secret}".encode(), f"{self._app.client_id}\0{self._app.client_secret}".encode()
        )


def _credentials(authorization: str, form: dict[str, str]) -> tuple[str, str]:
    """client_id and client_secret from HTTP Basic, or from the form."""
    if authorization.startswith("Basic "):
        try:
            name, _, secret = b64decode(authorization[6:]).decode().partition(":")
        except ValueError:
            return "", ""
        return unquote_plus(name), unquote_plus(secret)
    return form.get("client_id", ""), form.get("client_secret", "")
