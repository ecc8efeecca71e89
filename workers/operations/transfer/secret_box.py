"""Secret box: values encrypted by a passphrase, as JSON: by AES-GCM with a key derived by scrypt. Pure."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from receiver.contract.errors import ConfigError

SHORTEST = 12
"""Characters of a passphrase."""
_COST = {"n": 1 << 15, "r": 8, "p": 1}
_MOST = {"n": 1 << 20, "r": 16, "p": 4}
"""A file that asks for more is refused: it would take all memory."""


def close_box(values: Sequence[Mapping[str, Any]], passphrase: str) -> dict[str, Any]:
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    box = AESGCM(_key(passphrase, salt, _COST)).encrypt(nonce, orjson.dumps(values), None)
    return {**_COST, "salt": _text(salt), "nonce": _text(nonce), "box": _text(box)}


def open_box(closed: Mapping[str, Any], passphrase: str) -> list[dict[str, Any]]:
    """Raises ConfigError for another passphrase, or a damaged box."""
    try:
        cost = {name: int(closed[name]) for name in _COST}
        if any(cost[name] > most for name, most in _MOST.items()):
            raise ConfigError("the secrets in this file ask for more memory than any export does; the file is damaged")
        salt, nonce, box = (base64.b64decode(closed[name]) for name in ("salt", "nonce", "box"))
        found: list[dict[str, Any]] = orjson.loads(AESGCM(_key(passphrase, salt, cost)).decrypt(nonce, box, None))
    except (InvalidTag, ValueError, KeyError, TypeError):
        raise ConfigError("the passphrase does not open the secrets in this file, or they are damaged") from None
    return found


def _key(passphrase: str, salt: bytes, cost: Mapping[str, int]) -> bytes:
    return Scrypt(salt=salt, length=32, **cost).derive(passphrase.encode())


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
