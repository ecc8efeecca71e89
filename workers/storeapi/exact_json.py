"""JSON of the store's API: read exactly (amounts as Decimal, whole integers), written as it was read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

from receiver.contract.records import Record

_BITS = 1 << 63


def loads(content: bytes) -> Any:
    """ValueError where it is no JSON; a nesting nobody means is no JSON either."""
    try:
        return json.loads(content, parse_float=Decimal)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=_plain)
    except orjson.JSONEncodeError:
        return orjson.dumps(_exact(value), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal) and value.is_finite():
        return orjson.Fragment(str(value).encode())
    if isinstance(value, Record):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def _exact(value: Any) -> Any:
    """orjson writes 64 bits; longer integers are written by their digits."""
    if isinstance(value, Mapping):
        return {str(key): _exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(item) for item in value]
    if isinstance(value, int) and not -_BITS <= value < _BITS:
        return orjson.Fragment(str(value).encode())
    return value
