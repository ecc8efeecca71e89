"""Tokens: OAuth 2.0 client credentials, from the store's side; with ends that are kept, or not."""

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
class Registration:
    """The application the developer portal knows, and what it may use instead of a token request."""

    client_id: str = "sandbox"
    client_secret: str = field(default="sandbox-secret", repr=False)
    token: str = field(default="", repr=False)
    path: str = "/oauth/token"


class Tokens:
    def __init__(self, shop: Shop, registration: Registration) -> None:
        self._shop = shop
        self._known = registration

    def issue(self, authorization: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Status and body of an answer of the token endpoint (RFC 6749, sections 5.1 and 5.2)."""
        self._shop.state.add("token requests")
        if form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        if not self._is_known(*_credentials(authorization, form)):
            return 401, {"error": "invalid_client"}
        token, life = secrets.token_urlsafe(24), self._shop.pathologies.seconds("token_life")
        self._shop.state.execute("INSERT INTO tokens VALUES (?, ?)", token, time.time() + life)
        claims = self._shop.pathologies.seconds("token_claims")
        told = {"access_token": token, "token_type": "Bearer", "expires_in": int(claims)}
        return 200, told | ({"scope": form["scope"]} if "scope" in form else {})

    def accepts(self, authorization: str) -> bool:
        kind, _, token = authorization.partition(" ")
        if kind != "Bearer":
            return False
        if self._known.token and hmac.compare_digest(token.encode(), self._known.token.encode()):
            return True
        found = self._shop.state.execute("SELECT ends FROM tokens WHERE token = ?", token)
        return bool(found) and found[0][0] > time.time()

    def _is_known(self, client_id: str, client_secret: str) -> bool:
        return hmac.compare_digest(
            f"{client_id}\0{client_secret}".encode(), f"{self._known.client_id}\0{self._known.client_secret}".encode()
        )


def _credentials(authorization: str, form: dict[str, str]) -> tuple[str, str]:
    """From HTTP Basic, or from the body."""
    if authorization.startswith("Basic "):
        try:
            name, _, secret = b64decode(authorization[6:]).decode().partition(":")
        except ValueError:
            return "", ""
        return unquote_plus(name), unquote_plus(secret)
    return form.get("client_id", ""), form.get("client_secret", "")
