"""HMAC with a key that is used many times (RFC 2104)."""

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
