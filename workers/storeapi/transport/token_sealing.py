"""Sealing: how a token lies in Redis. Whoever can read there, and does not have the credentials, cannot use it.

The key is made of the credentials that every process has in its config, so that all of them open what one of them
sealed, and nothing else needs to be agreed on. Whoever has the credentials could fetch a token anyway.
"""

from __future__ import annotations

import secrets

NONCE = 12


class TokenSeal:
    """Seals and opens under one key; what is sealed is bound to the place where it lies."""

    def __init__(self, key: bytes, place: str) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # it takes a while, and not everybody calls

        self._box, self._place = AESGCM(key), place.encode()

    def close(self, token: str) -> bytes:
        nonce = secrets.token_bytes(NONCE)
        return nonce + self._box.encrypt(nonce, token.encode(), self._place)

    def open(self, sealed: bytes) -> str:
        """The token; nothing where it is not one of ours."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._box.decrypt(sealed[:NONCE], sealed[NONCE:], self._place).decode()
        except (InvalidTag, ValueError):
            return ""
