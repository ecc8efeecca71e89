"""Seals headers of refused deliveries that may be credentials, such as Authorization where it is the signature.

The key is made from `[secrets] key`: anyone can have headers sealed, so they must not use up the nonces of that one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from receiver.config.values import sealing_key
from receiver.contract.signing.signatures import Headers
from receiver.contract.stored_headers import sealed_headers


class HeaderSeal:
    """Seals and opens the values of headers under one key."""

    def __init__(self, key: str) -> None:
        self._cipher = AESGCM(hmac.digest(sealing_key(key), b"storehooks refused headers", "sha256"))

    def close(self, name: str, value: str) -> str:
        nonce = secrets.token_bytes(12)
        box = self._cipher.encrypt(nonce, value.encode("utf-8", "surrogatepass"), name.encode())
        return base64.b64encode(nonce + box).decode()

    def open_all(self, headers: Headers) -> dict[str, str]:
        """The headers with their sealed values opened. Those of another key stay sealed."""
        opened = dict(headers)
        for name, sealed in sealed_headers(headers).items():
            try:
                box = base64.b64decode(sealed)
                text = self._cipher.decrypt(box[:12], box[12:], name.encode())
            except (InvalidTag, binascii.Error, ValueError):
                continue
            opened[name] = text.decode("utf-8", "surrogatepass")
        return opened
