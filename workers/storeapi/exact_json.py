"""Exact JSON: reads amounts as Decimal and integers of any length, and writes them back unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

from receiver.contract.records import Record

_INT64_LIMIT = 1 << 63


def loads(content: bytes) -> Any:
    """Parse JSON. Raises ValueError where it is not JSON, or is nested too deeply."""
    try:
        return json.loads(content, parse_float=Decimal)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=_to_plain)
    except orjson.JSONEncodeError:
        return orjson.dumps(_with_long_integers(value), default=_to_plain)


def _to_plain(value: Any) -> Any:
    if isinstance(value, Decimal) and value.is_finite():
        return orjson.Fragment(str(value).encode())
    if isinstance(value, Record):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def _with_long_integers(value: Any) -> Any:
    """orjson writes integers of 64 bits; longer ones become raw digits."""
    if isinstance(value, Mapping):
        return {str(key): _with_long_integers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_long_integers(item) for item in value]
    if isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT:
        return orjson.Fragment(str(value).encode())
    return value
