"""Payload search: a condition on a path as JSON documents that a matching payload contains, for an index. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice, product
from typing import Any

import orjson

MAX_VARIANTS = 32
MAX_EXPONENT = 300
_CENTS = Decimal("0.01")
_EXPONENT = re.compile(rb"\d[eE]")


def contained(path: str, condition: Any) -> list[str] | None:
    """JSON documents one of which is contained in `event.data` if the condition is met; None if there are none such.

    An index finds them. What it finds is compared again, because `items.0.sku` is found in any item.
    """
    if isinstance(condition, str) and (condition == "*" or condition.lstrip()[:1] in ("<", ">", "!")):
        return None
    wanted = condition if isinstance(condition, list | tuple) else [condition]
    if None in wanted:  # an absent value meets it, too
        return None
    found = list(
        islice(_documents(path.split("."), [text for one in wanted for text in _texts(one)]), MAX_VARIANTS + 1)
    )
    return [without_nul(one) for one in found] if len(found) <= MAX_VARIANTS else None


def without_nul(document: str) -> str:
    """A JSON document for PostgreSQL, which refuses NUL."""
    return document.replace(r"\u0000", r"\ufffd")


def body_may_match(body: bytes, where: Sequence[tuple[str, Any]]) -> bool:
    """Whether a body may meet conditions on paths, without reading it as JSON, which takes several times as long."""
    if b"\\" in body or b"\0" in body or body.lstrip()[:1] not in (b"{", b"["):
        return True  # a value may be written in another way, or in UTF-16
    return all(_may_contain(body, path, condition) for path, condition in where)


def _may_contain(body: bytes, path: str, condition: Any) -> bool:
    wanted = condition if isinstance(condition, list | tuple) else [condition]
    if None in wanted:  # an absent value meets it, too
        return True
    if not all(_is_place(step) or b'"%s"' % step.encode("utf-8", "replace") in body for step in path.split(".")):
        return False
    return contained("", condition) is None or any(_is_in(body, one) for one in wanted)


def _is_place(step: str) -> bool:
    """Whether a step of a path may be a place in a list instead of a name."""
    return step.isascii() and step.isdigit()


def _is_in(body: bytes, value: Any) -> bool:
    if isinstance(value, Decimal):
        digits = f"{value.normalize():f}" if abs(value.adjusted()) <= MAX_EXPONENT else ""
        return digits.lstrip("-0").encode() in body or bool(_EXPONENT.search(body))
    return not isinstance(value, str) or value.encode("utf-8", "replace") in body


def _texts(value: Any) -> Iterator[str]:
    """A value as JSON. A number may be written as text, too: as it was typed, without zeros at its end, or in cents."""
    if not isinstance(value, int | float | Decimal) or isinstance(value, bool):
        yield orjson.dumps(value).decode()
        return
    number = Decimal(str(value))
    if abs(number.adjusted()) > MAX_EXPONENT:
        return
    yield f"{number:f}"
    written = {f"{number:f}", f"{number.normalize():f}"}
    if number == number.quantize(_CENTS):
        written.add(f"{number.quantize(_CENTS):f}")
    yield from (f'"{text}"' for text in sorted(written))


def _documents(steps: list[str], values: list[str]) -> Iterator[str]:
    """A number in a path is a place in a list, or a name."""
    kinds = [(True, False) if _is_place(step) else (False,) for step in steps]
    for value, in_lists in product(values, product(*kinds)):
        document = value
        for step, in_list in zip(reversed(steps), reversed(in_lists), strict=True):
            document = f"[{document}]" if in_list else f"{{{orjson.dumps(step).decode()}:{document}}}"
        yield document
