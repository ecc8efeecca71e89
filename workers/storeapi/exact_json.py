"""Exact JSON: reads amounts as Decimal and integers of any length, writes them back unchanged, and compares them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any

import orjson

from receiver.contract.records import Record

NOT_JSON = (json.JSONDecodeError, UnicodeDecodeError)
_INT64_LIMIT = 1 << 63


def loads(content: bytes) -> Any:
    """Parse JSON. Raises ValueError where it is not JSON, is nested too deeply, or has a number out of range."""
    try:
        return json.loads(content, parse_float=Decimal)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except NOT_JSON:
        raise
    except (ArithmeticError, ValueError):  # Python reads integers of 4,300 digits
        raise ValueError("a number out of range") from None


def dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=_to_plain)
    except orjson.JSONEncodeError:
        return orjson.dumps(_with_long_integers(value), default=_to_plain)


def dumps_for_store(value: Any) -> bytes:
    """Raises TypeError for NaN and Infinity: a null would delete the store's value."""
    written = dumps(value)
    if b"null" in written and has_infinite(value):
        raise TypeError("NaN and Infinity cannot be sent as JSON")
    return written


def has_infinite(value: Any) -> bool:
    """Whether NaN or Infinity is in a value. JSON has neither, and orjson writes null."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if is_dataclass(value):
        return any(has_infinite(getattr(value, one.name)) for one in fields(value))
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(map(has_infinite, inner))


def digest(value: Any, *, without: Sequence[str] = ()) -> str:
    """A digest of a document as `loads` returns it: the same for two documents that are equal as JSON.

    The order of keys and the way a number is written do not count (`1.50` is `1.5`); all else does. `without` are paths
    that are left out, such as `updated_at`, `meta.updated_at` and `lines.*.updated_at`.
    """
    text = json.dumps(_comparable(value, [tuple(path.split(".")) for path in without]), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _comparable(value: Any, without: list[tuple[str, ...]]) -> Any:
    """The document with each text and each number as a marked text, so that "1" and 1 differ."""
    if isinstance(value, Mapping):
        left = {name: item for name, item in value.items() if (name,) not in without and ("*",) not in without}
        return {name: _comparable(item, _below(without, name)) for name, item in left.items()}
    if isinstance(value, list):
        return [_comparable(item, _below(without, "*")) for item in value]
    if value is None or isinstance(value, bool):
        return value
    return f"text {value}" if isinstance(value, str) else f"number {_plain_number(value)}"


def _below(without: list[tuple[str, ...]], name: str) -> list[tuple[str, ...]]:
    return [path[1:] for path in without if path[0] in (name, "*") and path[1:]]


def _plain_number(value: int | float | Decimal) -> str:
    """Digits and exponent, without trailing zeros. `Decimal.normalize` would round to 28 digits."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    sign, digits, exponent = Decimal(str(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    zeros = len(digits) - len(text)
    return f"{'-' if sign else ''}{text.lstrip('0')}e{int(exponent) + zeros}" if text else "0"


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
