"""Redaction: removes the fields at `[redact] paths` from a body, and the texts of a payload from errors.

Every other byte of a body stays as the store wrote it. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from json import JSONDecoder
from math import inf
from typing import Any
from urllib.parse import unquote_to_bytes

from receiver.contract.event import REDACTED, Event
from receiver.contract.signing.sources import after_comma, after_space

SHORTEST = 4
"""Characters of a payload's text that is replaced in errors: shorter ones are found in other words."""
MAX_ERROR = 64_000
"""Characters of an error in which texts are looked for; more are never stored."""

Path = tuple[str, ...]


class TooManyValues(Exception):
    """More values would have to be looked at, one by one, than the budget allows."""


class Budget:
    """How many values of a body may be looked at one by one, which takes 2 to 6 microseconds for each."""

    def __init__(self, values: float) -> None:
        self._left = values

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooManyValues


_scan = JSONDecoder(parse_int=str, parse_float=str, parse_constant=str).raw_decode
"""Reads one JSON value of a text, in C, and returns it with the place where it ends. Numbers may have any length."""


def redact(event: Event, paths: Sequence[str], *, anywhere: bool = False, budget: Budget | None = None) -> Event:
    """The event without the values at these paths of its data: `null` is in their place, so that lists keep theirs.
    With `anywhere` the paths may begin at any object or list of a JSON body: where its data are is not known.

    The digest of the body as it was signed is stored with it, by which a redelivery is known.
    """
    above = tuple(event.data_path.split(".")) if event.data_path and not anywhere else ()
    split = {(*above, *path.split(".")): path for path in paths}
    body, found = _without(event.body, list(split), anywhere, budget or Budget(inf))
    if not found:
        return event
    mark = " ".join((event.signed_digest, *(split[path] for path in split if path in found)))
    return replace(event, body=body, headers={**event.headers, REDACTED: mark})


def _without(body: bytes, paths: list[Path], anywhere: bool, budget: Budget) -> tuple[bytes, set[Path]]:
    """The body without the values at these paths, and the paths that had one."""
    text = body.decode("utf-8", "surrogateescape")
    at = after_space(text, 1 if text.startswith("\ufeff") else 0)
    if text[at : at + 1] not in ("{", "["):
        return _form_without(body, paths)
    wanted = [(path, path) for path in paths]
    spans, _ = _spans(text, at, [] if anywhere else wanted, wanted if anywhere else [], budget)
    parts, end = list[str](), 0
    for begin, stop, _ in spans:
        parts += (text[end:begin], "null")
        end = stop
    return "".join((*parts, text[end:])).encode("utf-8", "surrogateescape"), {path for *_, path in spans}


def _form_without(body: bytes, paths: list[Path]) -> tuple[bytes, set[Path]]:
    names = {path[0]: path for path in paths if len(path) == 1}
    kept, found = list[bytes](), set[Path]()
    for field in body.split(b"&"):
        name, _, value = field.partition(b"=")
        text = unquote_to_bytes(name.replace(b"+", b" ")).decode("utf-8", "replace")
        if text in names and value:
            found.add(names[text])
        kept.append(name + b"=" if text in names else field)
    return b"&".join(kept), found


_SCALAR = r'(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|[^][{}",:\s]++)'
_SCALARS = re.compile(rf"(?:{_SCALAR}\s*+,\s*+)*+", re.DOTALL)
"""Values of a list that are no objects or lists, but for the last one: they are skipped at once, in C."""


@lru_cache(maxsize=64)
def _other_fields(names: frozenset[str]) -> re.Pattern[str]:
    """The same of an object, up to a field of these names or one whose name is written with escapes."""
    wanted = "|".join(re.escape(name) for name in sorted(names))
    return re.compile(rf'(?:(?!"(?:{wanted})")"[^"\\]*+"\s*+:\s*+{_SCALAR}\s*+,\s*+)*+', re.DOTALL)


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found  # it matches no field or value, too
    return found.end()


_Wanted = tuple[Path, Path]
"""The rest of a path from a value on, and the whole path."""
_Span = tuple[int, int, Path]


def _spans(
    text: str, at: int, wanted: list[_Wanted], anywhere: list[_Wanted], budget: Budget
) -> tuple[list[_Span], int]:
    """Where the wanted values are below the value at this place, and where that value ends. Those of `anywhere` are
    wanted below each object and list."""
    budget.spend()
    whole = next((path for rest, path in wanted if not rest), None)
    wanted = wanted + anywhere
    if whole is not None or not wanted or text[at] not in "{[":
        end = _scan(text, at)[1]
        is_null = text[at:end] == "null"
        return [] if whole is None or is_null else [(at, end, whole)], end
    is_object, place, found = text[at] == "{", 0, list[_Span]()
    last = max((int(rest[0]) for rest, _ in wanted if rest[0].isascii() and rest[0].isdigit()), default=-1)
    if not (is_object or anywhere) and last < 0:
        return [], _scan(text, at)[1]
    skip = _other_fields(frozenset(rest[0] for rest, _ in wanted)) if is_object else _SCALARS
    at = after_space(text, at + 1)
    while text[at] not in "}]":
        if is_object or place > last:
            at = _after(skip, text, at)
        if is_object:
            key, end = _scan(text, at)
            at = after_space(text, after_space(text, end) + 1)
            inner = [(rest[1:], path) for rest, path in wanted if rest[0] == key]
        else:
            inner = [(rest[1:], path) for rest, path in wanted if _is_place(rest[0], place)]
        spans, end = _spans(text, at, inner, anywhere, budget)
        found += spans
        at, place = after_comma(text, end), place + 1
    return found, at + 1


def without_values(document: Any, path: str) -> Any:
    """A document that was read, with `null` in the place of the value at a path: as `redact` leaves a body."""
    first, _, rest = path.partition(".")
    if isinstance(document, Mapping) and first in document:
        return {**document, first: without_values(document[first], rest) if rest else None}
    if isinstance(document, list):
        places = ((_is_place(first, place), item) for place, item in enumerate(document))
        return [(without_values(item, rest) if rest else None) if found else item for found, item in places]
    return document


def _is_place(step: str, place: int) -> bool:
    return step.isascii() and step.isdigit() and int(step) == place


# Errors


def without_payload(text: str, payload: Any) -> str:
    """An error text or a traceback in which each text of the payload is replaced by its path: `{customer.email}`."""
    text = text[-MAX_ERROR:]
    found: dict[str, str] = {}
    for value, path in _texts(payload, ""):
        if len(value) >= SHORTEST:
            for form in _forms(value):
                if form in text:
                    found.setdefault(form, path)
    if not found:
        return text
    longest_first = sorted(found, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), lambda match: "{" + found[match[0]] + "}", text)


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield value, path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _texts(inner, f"{path}.{place}" if path else str(place))


def _forms(value: str) -> set[str]:
    """A text as it is, and as Python and JSON write it between quotes."""
    if value.isascii() and value.isprintable() and not {"'", '"', "\\"} & set(value):
        return {value}
    return {value, repr(value)[1:-1], ascii(value)[1:-1], json.dumps(value)[1:-1]}
