"""Whole characters: JSON in which each half of a surrogate pair has become U+FFFD, the replacement character.

A program that cuts a text in the middle of an emoji writes such a half, as in `"\\ud83d"`. Python's json reads it into
a text that cannot be encoded, and orjson refuses it. The bytes that are stored stay as they came. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALVES = re.compile(rb"\\\\|" + _HIGH + _LOW + rb"|(" + _HIGH + rb"|" + _LOW + rb")")


def with_whole_characters(body: bytes) -> bytes:
    """The same object where nothing is to be replaced."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return body
    mended = _HALVES.sub(lambda match: rb"\ufffd" if match[1] else match[0], body)
    return body if mended == body else mended


def read_whole(body: bytes, loads: Callable[[bytes], Any]) -> Any:
    """What `loads` reads, where it refuses such a half."""
    try:
        return loads(body)
    except ValueError:
        whole = with_whole_characters(body)
        if whole is body:
            raise
        return loads(whole)
