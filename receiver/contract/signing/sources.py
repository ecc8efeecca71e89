"""Sources: the places in a delivery that a scheme names, and the functions that read them.

A scheme makes these functions once: they tell no kinds apart and split no paths for each delivery.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from json import JSONDecoder
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode, urlsplit

import orjson

from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import follow, form_pairs, walk

Headers = Mapping[str, str]
"""Header names in lower case; values as the server decoded them (latin-1). Query fields are among them, as `?NAME`."""
Part = tuple[str, str]
"""A parsed placeholder or source: ("header", "x-topic"), ("json", "data.id"), ("body", "").

A query field is ("header", "?NAME"): a sender's text outside of the body, as a header is. No header has such a name.
"""
Reader = Callable[[Headers, Any], Any]
"""Returns the value of a source in headers and document, or None."""
Filler = Callable[[Headers, "BodyFields", str, str], bytes]
"""Returns the signed content for headers, body, timestamp and URL."""
MAX_CONTAINERS = 50_000
"""Objects and arrays in a body, counted by their brackets. Ten times as many take a web process 100 ms to read."""
MIN_CONTAINER_BYTES = 20
"""In a longer body, each of them may take this many bytes."""
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
MAX_QUERY_FIELDS = 64
_QUERY_NAME = re.compile(r"[^\x00-\x20:\x7f]{1,100}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
BODY: Part = ("body", "")
BODY_HASHES: tuple[Part, ...] = (("body_sha256", ""), ("body_sha256_base64", ""))
FORM_SORTED: Part = ("form_sorted", "")
SECRET: Part = ("secret", "")
TIMESTAMP: Part = ("timestamp", "")
METHOD = b"POST"
_NOTHING = (None, "")
_BOM = "\ufeff"
_SPACE = re.compile(r"[ \t\n\r]*")
_scan = JSONDecoder().raw_decode
"""Reads one JSON value of a text, in C, and returns it with the place where it ends."""


def parse_source(source: str) -> Part:
    """Parse `header:X-Topic` to ("header", "x-topic"). Header names are case-insensitive."""
    kind, _, name = source.partition(":")
    if kind == "query" and name:
        return "header", f"?{name}"
    return kind, name.lower() if kind == "header" else name


def written(part: Part) -> str:
    """The reverse of `parse_source`."""
    kind, name = part
    if kind == "header" and name.startswith("?"):
        return f"query:{name[1:]}"
    return f"{kind}:{name}" if name else kind


def query_fields(query: str) -> dict[str, str]:
    """The fields of a request's query, as headers: `?NAME`. Of a repeated one, the first value.

    A field that could not be a header, as it has control characters, is left out.
    """
    fields: dict[str, str] = {}
    for item in query.split("&", MAX_QUERY_FIELDS)[:MAX_QUERY_FIELDS]:
        name, value = (unquote_to_bytes(text).decode("latin-1") for text in item.replace("+", " ").partition("=")[::2])
        if _QUERY_NAME.fullmatch(name) and not _CONTROL.search(value):
            fields.setdefault(f"?{name}", value)
    return fields


def with_query(url: str, headers: Headers) -> tuple[str, dict[str, str]]:
    """The URL and the headers to send a delivery with: its query fields are written to the URL."""
    query = {name[1:].encode("latin-1"): header_bytes(text) for name, text in headers.items() if name.startswith("?")}
    sent = {name: text for name, text in headers.items() if not name.startswith("?")}
    return (f"{url}{'&' if '?' in url else '?'}{urlencode(query)}" if query else url), sent


def reader(part: Part) -> Reader:
    """Return the function that reads one source."""
    kind, name = part
    if kind == "header":
        return lambda headers, _: headers.get(name)
    if not name:  # `body`, or `form` without a field
        return lambda _, document: document
    if kind == "form":
        return lambda _, document: document.get(name) if isinstance(document, dict) else None
    if kind == "const":
        return lambda *_: name
    *parents, last = name.split(".")

    def read(_: Headers, document: Any) -> Any:
        for step in parents:
            document = document.get(step) if isinstance(document, dict) else walk(document, (step,))
        return document.get(last) if isinstance(document, dict) else walk(document, (last,))

    return read


def first_reader(parts: Sequence[Part]) -> Reader:
    """Return the function that reads the first source with a value; empty texts are none."""
    readers = [reader(part) for part in parts]
    if len(readers) == 1:
        return readers[0]

    def first(headers: Headers, document: Any) -> Any:
        for read in readers:
            value = read(headers, document)
            if value or value not in _NOTHING:
                return value
        return None

    return first


# What a scheme signs


def parse_template(signed: str) -> Iterator[bytes | Part]:
    end = 0
    for match in PLACEHOLDER.finditer(signed):
        if literal := signed[end : match.start()]:
            yield literal.encode()
        yield parse_source(_required(match[1]))
        end = match.end()
    if literal := signed[end:]:
        yield literal.encode()


def optional_parts(signed: str) -> frozenset[Part]:
    """The placeholders that end in `?`, as in `{json:a.b?}`: one that is missing is an empty text."""
    named = (match[1] for match in PLACEHOLDER.finditer(signed))
    return frozenset(parse_source(_required(text)) for text in named if _required(text) != text)


def _required(placeholder: str) -> str:
    return placeholder.removesuffix("?")


def joints(template: tuple[bytes | Part, ...]) -> Iterator[tuple[Part, bytes, Part]]:
    left: Part | None = None
    between = b""
    for part in template:
        if isinstance(part, bytes):
            between = part
            continue
        if left:
            yield left, between, part
        left, between = part, b""


def filler(template: Sequence[bytes | Part], optional: frozenset[Part] = frozenset()) -> Filler:
    """Return the function that fills the template of the signed content."""
    form = b"".join(part.replace(b"%", b"%%") if isinstance(part, bytes) else b"%b" for part in template)
    parts = [part for part in template if not isinstance(part, bytes)]

    def fill(headers: Headers, fields: BodyFields, timestamp: str, url: str) -> bytes:
        values = []
        for kind, name in parts:
            if kind == "body":
                values.append(fields.body)
            elif kind == "timestamp":
                values.append(header_bytes(timestamp))
            elif kind == "header":
                text = headers.get(name)
                values.append(_missing((kind, name), optional) if text is None else header_bytes(text))
            elif kind in _FIXED:
                values.append(_FIXED[kind](fields.body, url))
            else:
                value = fields.read((kind, name))
                if value is None:
                    value = _missing((kind, name), optional if fields.are_in(kind) else _NONE)
                values.append(value)
        return form % tuple(values)

    return fill


_NONE: frozenset[Part] = frozenset()
_FIXED: dict[str, Callable[[bytes, str], bytes]] = {
    "url": lambda _, url: url.encode(),
    "path": lambda _, url: urlsplit(url).path.encode(),
    "method": lambda *_: METHOD,
    "body_sha256": lambda body, _: hashlib.sha256(body).hexdigest().encode(),
    "body_sha256_base64": lambda body, _: b64encode(hashlib.sha256(body).digest()),
}


def _missing(part: Part, optional: frozenset[Part]) -> bytes:
    if part in optional:
        return b""
    raise DeliveryRefused("incomplete", f"{written(part)} is part of the signed content, but it is missing")


def header_bytes(text: str) -> bytes:
    """Return a header's bytes as sent: servers decode them as latin-1."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def count_containers(body: bytes, limit: int) -> int:
    """Count the opening brackets of each kind up to a limit. `replace` finds them three times as fast as `count`."""
    return len(body) - len(body.replace(b"[", b"", limit).replace(b"{", b"", limit))


def too_many_containers(body: bytes) -> int:
    """The number of objects and arrays that are allowed in a body, if it has more; else 0."""
    allowed = max(MAX_CONTAINERS, len(body) // MIN_CONTAINER_BYTES)
    return allowed if len(body) > MAX_CONTAINERS and count_containers(body, allowed + 1) > allowed else 0


class BodyFields:
    """The fields of a body that is not verified yet. One that takes long to read has none. It is parsed once."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def are_in(self, kind: str) -> bool:
        """Whether the body is JSON, or a form. Only then a field that is not found is missing.

        What a body of another kind has at the same name is read after verification, so it must not be unsigned.
        """
        return (self._document if kind == "json" else self._pairs) is not None

    def read(self, part: Part) -> bytes | None:
        """Return the bytes that a store signs for a field; None if it is missing."""
        kind, name = part
        if kind == "json":
            text = scalar_text(follow(self._document, name))
            return None if text is None else text.encode("utf-8", "surrogatepass")
        if self._pairs is None:
            return None
        if part == FORM_SORTED:
            return "".join(name + value for name, value in sorted(set(self._pairs))).encode("latin-1")
        own = name.encode().decode("latin-1")
        return next((value.encode("latin-1") for key, value in reversed(self._pairs) if key == own), None)

    @cached_property
    def _document(self) -> Any:
        if too_many_containers(self.body):
            return None
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None

    @cached_property
    def _pairs(self) -> list[tuple[str, str]] | None:
        return form_pairs(self.body)


def scalar_text(value: Any) -> str | None:
    """Return a scalar as the text that a store signs. Other values have none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def unverified_text(part: Part, fields: BodyFields) -> str | None:
    """Return the text of a field of a body that is not verified yet."""
    value = fields.read(part)
    return None if value is None else value.decode("latin-1" if part[0] == "form" else "utf-8", "surrogatepass")


def put(document: Any, path: str, value: Any, *, overwrite: bool = False) -> None:
    """Write a value to a path of a JSON document. A step of digits is a place in a list."""
    place = document
    *above, last = path.split(".")
    for step, following in zip(above, path.split(".")[1:], strict=True):
        place = _enter(place, step, [] if following.isdigit() else {})
    _enter(place, last, value)
    if overwrite:
        place[last if isinstance(place, dict) else int(last)] = value


def _enter(place: Any, step: str, new: Any) -> Any:
    if isinstance(place, dict):
        return place.setdefault(step, new)
    if len(place) == int(step):
        place.append(new)
    return place[int(step)]


# The items of a batch


def item_slices(body: bytes, path: Sequence[str]) -> list[bytes] | None:
    """The items of the list at a path, each as the store wrote it; None if there is no list. The body is valid JSON."""
    text = body.decode().removeprefix(_BOM)
    return _slices(text, after_space(text, 0), path)[0]


def _slices(text: str, at: int, path: Sequence[str]) -> tuple[list[bytes] | None, int]:
    """The items of the list that the path leads to from the value at this place, and the place where the value ends."""
    if path and text[at] == "{":
        return _slices_in_object(text, at, path)
    if path or text[at] != "[":
        return None, _scan(text, at)[1]
    found: list[bytes] = []
    at = after_space(text, at + 1)
    while text[at] != "]":
        end = _scan(text, at)[1]
        found.append(text[at:end].encode())
        at = after_comma(text, end)
    return found, at + 1


def _slices_in_object(text: str, at: int, path: Sequence[str]) -> tuple[list[bytes] | None, int]:
    """Of equal keys the last one counts, as in the document."""
    found: list[bytes] | None = None
    at = after_space(text, at + 1)
    while text[at] != "}":
        key, end = _scan(text, at)
        at = after_space(text, after_space(text, end) + 1)
        if key == path[0]:
            found, end = _slices(text, at, path[1:])
        else:
            end = _scan(text, at)[1]
        at = after_comma(text, end)
    return found, at + 1


def after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space
    return space.end()


def after_comma(text: str, at: int) -> int:
    at = after_space(text, at)
    return after_space(text, at + 1) if text[at] == "," else at
