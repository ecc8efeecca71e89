"""Hashes with a key: HMAC with a key that is used many times (RFC 2104), and SHA-256 over secret and content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

Mac = Callable[[bytes], bytes]
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


def keyed(key: bytes, digest: str) -> Mac:
    """Return the function that makes the HMAC of some content.

    The padded key is hashed here, once. `hmac.digest` looks for the hash and hashes the key for each content, which
    takes as long as a content of 2 KiB.
    """
    size = hashlib.new(digest).block_size
    padded = (key if len(key) <= size else hashlib.new(digest, key).digest()).ljust(size, b"\0")
    inner_start = hashlib.new(digest, padded.translate(_INNER))
    outer_start = hashlib.new(digest, padded.translate(_OUTER))

    def mac(content: bytes) -> bytes:
        inner, outer = inner_start.copy(), outer_start.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.digest()

    return mac


def secret_first(key: bytes) -> Mac:
    """Return the function that hashes key and content, as in SHA-256(secret + body)."""
    start = hashlib.sha256(key)

    def mac(content: bytes) -> bytes:
        inner = start.copy()
        inner.update(content)
        return inner.digest()

    return mac


def secret_last(key: bytes) -> Mac:
    """Return the function that hashes content and key, as in SHA-256(body + secret)."""
    return lambda content: hashlib.sha256(content + key).digest()
