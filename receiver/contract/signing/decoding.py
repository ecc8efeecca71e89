"""Decodes signatures and secrets strictly: Python's decoders accept spaces, junk and stray bits; these refuse them."""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64

_HEX = re.compile(r"[0-9a-fA-F]*")


def strict_hex(text: str) -> bytes:
    if not _HEX.fullmatch(text) or len(text) % 2:
        raise ValueError("it is not hex")
    return bytes.fromhex(text)


def strict_base64(text: str) -> bytes:
    """Decode the standard alphabet with full padding and no stray bits in the last character."""
    try:
        decoded = a2b_base64(text, strict_mode=True)
    except ValueError:  # also for what is not ASCII
        raise ValueError("it is not base64") from None
    if b2a_base64(decoded, newline=False).decode() != text:
        raise ValueError("it is not canonical base64")
    return decoded


def strict_base64url(text: str) -> bytes:
    """Decode the URL-safe alphabet, with or without padding."""
    if "+" in text or "/" in text:
        raise ValueError("it is not base64url")
    bare = text.replace("-", "+").replace("_", "/")
    return strict_base64(bare if text.endswith("=") else bare + "=" * (-len(bare) % 4))


def decode_secret(text: str, encoding: str) -> bytes:
    """Decode the text of a secret. Base64 padding is optional: some stores leave it out."""
    if encoding == "utf8":
        return text.encode()
    if encoding == "hex":
        return strict_hex(text)
    bare = text.rstrip("=")
    return strict_base64(bare + "=" * (-len(bare) % 4))
