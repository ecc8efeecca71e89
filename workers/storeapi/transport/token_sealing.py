"""Token sealing: tokens are stored in Redis encrypted. Reading Redis without the credentials does not give a token.

The key is derived from the credentials, which every process has in its config. So every process can open what another
one sealed, without agreeing on anything else. The credentials alone would be enough to fetch a token anyway.
"""

from __future__ import annotations

import secrets

_NONCE_BYTES = 12


class TokenSealer:
    """Seals and unseals tokens with one key; a sealed token is bound to the Redis key that holds it."""

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
