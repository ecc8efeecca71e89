"""Conditions: the forms of `when=`, and whether an event meets them. Pure.

    when=is_large                                       a function (event) -> bool
    when={"total": "> 100", "status": ["paid", "open"]}  paths into event.data, with a condition for each

The conditions on a path:

    "> 100"  ">= 100"  "< 5"  "<= 5"     the value is a number, or the text of one, and the comparison is true
    "!= test"                            the value is present and differs
    "*"                                  the value is present and not null
    None                                 the value is absent or null
    [...]                                the value is one of these
    anything else                        the value is equal; 42 equals "42.00", "paid" equals only "paid"

All conditions must be true. An absent value meets `None`, alone or in a list, and no other condition.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from receiver.contract.event import Event, follow

Value = str | int | float | bool | Decimal | None
When = Callable[[Event], bool] | Mapping[str, Value | Sequence[Value]]

_COMPARISON = re.compile(r"\s*(>=|<=|>|<|!=)\s*(.*?)\s*", re.DOTALL)
_PATH = re.compile(r"[^.\s]+(\.[^.\s]+)*")
_SCALARS = (str, int, float, Decimal, bool, type(None))
_HELP = '"> 100", "!= test", "*", None, a value, or a list of values'


def unmet_condition(when: When | None, event: Event) -> str | None:
    """The first condition that an event does not meet, as a sentence; None if it meets all."""
    if when is None:
        return None
    if not isinstance(when, Mapping):
        return None if when(event) else f"{_called(when)} was false"
    for path, wanted in when.items():
        if not meets(follow(event.data, path), wanted):
            return f"{describe_one(path, wanted)} was false"
    return None


def faults_of(when: Any) -> Iterator[str]:
    """What is wrong with a `when=`, for validation."""
    if when is None:
        return
    if isinstance(when, Mapping):
        yield from _faults_of_paths(when)
    elif not callable(when):
        yield f'has when={when!r}; write a function of the event, or paths and conditions: {{"total": "> 100"}}'
    elif inspect.iscoroutinefunction(when) or not _accepts_an_event(when):
        yield f"has when={_called(when)}, which must be `def {_called(when)}(event)` and return True or False"


def describe(when: When | None) -> str | None:
    """All conditions as text, for lists of handlers."""
    if when is None:
        return None
    if not isinstance(when, Mapping):
        return _called(when)
    return " and ".join(describe_one(path, wanted) for path, wanted in when.items())


def describe_one(path: str, wanted: Any) -> str:
    if wanted is None:
        return f"{path} is not there"
    if isinstance(wanted, str):
        if match := _COMPARISON.fullmatch(wanted):
            return f"{path} {match[1]} {match[2]}"
        return f"{path} is there" if wanted == "*" else f"{path} = {wanted}"
    if isinstance(wanted, Sequence):
        return f"{path} in {', '.join(map(str, wanted))}"
    return f"{path} = {wanted}"


def _faults_of_paths(when: Mapping[Any, Any]) -> Iterator[str]:
    if not when:
        yield "has an empty when=; leave it out"
    for path, wanted in when.items():
        if not isinstance(path, str) or not _PATH.fullmatch(path):
            yield f'has when= with the path {path!r}; a path into event.data looks like "total" or "customer.email"'
        for one in wanted if _is_list(wanted) else (wanted,):
            if not isinstance(one, _SCALARS):
                yield f"has when= with {path}: {one!r}; it may be {_HELP}"
            elif isinstance(one, str) and (match := _COMPARISON.fullmatch(one)):
                if _is_list(wanted):
                    yield f"has when= with {one!r} in the list of {path}; a comparison stands alone"
                elif match[1] != "!=" and _number(match[2]) is None:
                    yield f'has when= with {path}: {one!r}; after {match[1]} comes a number, as in "{match[1]} 100"'


def meets(value: Any, wanted: Any) -> bool:
    """Whether the value at a path meets the condition on it."""
    if _is_list(wanted):
        return any(meets(value, one) for one in wanted)
    if wanted is None or value is None:
        return value is None and wanted is None
    if wanted == "*":
        return True
    if isinstance(wanted, str) and (match := _COMPARISON.fullmatch(wanted)):
        return _compares(value, match[1], match[2])
    return _equal(value, wanted)


def _compares(value: Any, sign: str, text: str) -> bool:
    if sign == "!=":
        return not _equal(value, text if _number(text) is None else _number(text))
    left, right = _number(value), _number(text)
    if left is None or right is None:
        return False
    return {">": left > right, ">=": left >= right, "<": left < right, "<=": left <= right}[sign]


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(value, bool):
        return value is wanted
    if isinstance(wanted, int | float | Decimal):
        return _number(value) == _number(wanted)
    return bool(value == wanted)


def _number(value: Any) -> Decimal | None:
    """A number, or the text of one; money comes as text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        return None
    try:
        found = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def _is_list(wanted: Any) -> bool:
    return isinstance(wanted, Sequence) and not isinstance(wanted, str | bytes)


def _called(when: Any) -> str:
    name = str(getattr(when, "__name__", type(when).__name__))
    return "the condition" if name == "<lambda>" else name


def _accepts_an_event(when: Callable[..., Any]) -> bool:
    try:
        inspect.signature(when).bind(object())
    except (TypeError, ValueError):
        return False
    return True
