"""Clues: what in a delivery could be a signature, a time or an id, and what makes them fit together.

`detect` and `explain` search with these; the path of a delivery never comes here.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Literal

from receiver.contract.signing.grammar import decode_secret, strict_base64, strict_hex
from receiver.contract.signing.signatures import MAX_SIGNATURE_HEADER, Headers

ALGORITHMS = {20: "sha1", 32: "sha256", 48: "sha384", 64: "sha512"}
"""What a signature of so many bytes was made with."""
MAX_HASHED = 400_000_000
"""Bytes a search may hash, about a second: a pure function has no clock to look at."""
MAX_CLUES = 12

Unit = Literal["s", "ms", "rfc3339"]
FORMS = [
    ("", ""),
    ("", "="),
    (",", "="),
    (" ", ","),
    (";", "="),
    (" ", "="),
    ("", ","),
    (",", ""),
    (" ", ""),
    (";", ""),
]
SEPARATORS = [".", ":", "", "|", "\n", "&", ";", ",", "-", "+", " ", "#", "/"]
# What every client sends; none of it is a clue.
_ORDINARY = re.compile(
    r"host|user-agent|accept.*|connection|content-.*|transfer-encoding|date|via|forwarded|x-forwarded-.*"
    r"|x-real-ip|cf-.*|cdn-.*|te|trailer|upgrade|expect|cache-control|pragma|origin|referer|cookie|authorization"
    r"|traceparent|tracestate|sec-.*|server|from|keep-alive|proxy-.*|range|if-.*|max-forwards|priority"
)
_UNITS: list[tuple[Unit, re.Pattern[str]]] = [
    ("s", re.compile(r"[0-9]{10}")),
    ("ms", re.compile(r"[0-9]{13}")),
    (
        "rfc3339",
        re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:]{8}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"),
    ),
]
# Short words only: a prefix is printed, and must never be a piece of the secret itself.
_PREFIX = re.compile(r"([a-z]{2,10}_){1,3}")


@dataclass(frozen=True)
class Form:
    """How a signature stands in a header."""

    header: str
    encoding: str
    list_sep: str = ""
    pair_sep: str = ""
    key: str = ""


@dataclass(frozen=True)
class Time:
    """Something that looks like a time, and where it stands."""

    source: str
    text: str
    unit: Unit


@dataclass(frozen=True)
class Content:
    """What may have been signed: the template, the time in it, and the bytes."""

    signed: str
    data: bytes
    time: Time | None = None


@dataclass(frozen=True)
class Reading:
    """One way to take a secret's text: as which encoding, without which prefix."""

    encoding: str
    prefix: str
    key: bytes


@dataclass(frozen=True)
class Match:
    """What fits: this form of signature, made by this algorithm with this key over this content."""

    form: Form
    algorithm: str
    reading: Reading
    content: Content


def uncommon(headers: Headers) -> dict[str, str]:
    """The headers that could mean something to a scheme."""
    return {
        name: value
        for name, value in headers.items()
        if value and len(value) <= MAX_SIGNATURE_HEADER and not _ORDINARY.fullmatch(name)
    }


def signatures_in(headers: Headers) -> dict[bytes, Form]:
    """Everything in the headers that decodes to the size of a signature, in the simplest form it has."""
    found: dict[bytes, Form] = {}
    for (list_sep, pair_sep), (name, value) in product(FORMS, uncommon(headers).items()):
        for key, item in split(value, list_sep=list_sep, pair_sep=pair_sep):
            sized = (way for way in decodings(item) if len(way[1]) in ALGORITHMS)
            for encoding, mac in islice(sized, 1):  # hex is base64 too, of another size
                found.setdefault(mac, Form(name, encoding, list_sep, pair_sep, key))
    return found


def split(value: str, *, list_sep: str, pair_sep: str) -> Iterator[tuple[str, str]]:
    """(key, item) of a header; with `pair_sep`, only the items that have a key."""
    for item in value.split(list_sep)[:32] if list_sep else (value,):
        key, sep, rest = item.strip().partition(pair_sep) if pair_sep else ("", "-", item.strip())
        if sep and (key or not pair_sep):
            yield key, rest


def decodings(text: str) -> Iterator[tuple[str, bytes]]:
    """The bytes a text may stand for. The last two are no encoding of the grammar, but they occur."""
    yield from _try("hex", strict_hex, text)
    yield from _try("base64", strict_base64, text)
    if text and not text.endswith("="):
        yield from _try("base64 without padding", lambda bare: decode_secret(bare, "base64"), text)
    if "-" in text or "_" in text:
        yield from _try("url-safe base64", _url_safe, text)


def _try(encoding: str, decode: Any, text: str) -> Iterator[tuple[str, bytes]]:
    try:
        yield encoding, decode(text)
    except ValueError:
        return


def _url_safe(text: str) -> bytes:
    data = decode_secret(text.replace("-", "+").replace("_", "/"), "base64")
    if urlsafe_b64encode(data).decode().rstrip("=") != text.rstrip("="):
        raise ValueError("it is not url-safe base64")
    return data


def times_in(headers: Headers, document: Any, forms: Iterable[Form]) -> list[Time]:
    """Everything that looks like a time: beside the signature, in a header, in the body."""
    places: dict[str, Any] = {}
    for form in forms:
        if form.list_sep and form.pair_sep:
            items = split(headers.get(form.header, ""), list_sep=form.list_sep, pair_sep=form.pair_sep)
            places |= {f"sig:{key}": value for key, value in items}
    places |= {f"header:{name}": value for name, value in uncommon(headers).items()}
    places |= dict(_scalars(document, "json:"))
    found = (Time(source, str(value), unit) for source, value in places.items() if (unit := unit_of(value)))
    return list(found)[:MAX_CLUES]


def unit_of(value: Any) -> Unit | None:
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None
    return next((unit for unit, pattern in _UNITS if pattern.fullmatch(str(value))), None)


def _scalars(document: Any, prefix: str, depth: int = 2) -> Iterator[tuple[str, Any]]:
    if not isinstance(document, dict):
        return
    for key, value in list(document.items())[:64]:
        if isinstance(value, dict) and depth > 1:
            yield from _scalars(value, f"{prefix}{key}.", depth - 1)
        elif isinstance(value, str | int) and key and "." not in key:
            yield f"{prefix}{key}", value


def ids_in(headers: Headers, times: Iterable[Time], forms: Iterable[Form]) -> list[tuple[str, str]]:
    """Placeholder and value of every header that is neither a time nor a signature."""
    known = {time.source.removeprefix("header:") for time in times} | {form.header for form in forms}
    found = [
        (f"{{header:{name}}}", value)
        for name, value in uncommon(headers).items()
        if name not in known and len(value) <= 256
    ]
    return sorted(found, key=lambda item: "id" not in item[0].rpartition(":")[2])[:MAX_CLUES]


def contents(body: bytes, *, url: str, times: Iterable[Time], ids: Iterable[tuple[str, str]]) -> Iterator[Content]:
    """What a store may have signed, the usual first. Contents without the body come last."""
    whole = ("{body}", body)
    address = [("{url}", url.encode())] if url else []
    names = [(placeholder, value.encode("latin-1", "replace")) for placeholder, value in ids]
    moments = [(time, ("{timestamp}", time.text.encode())) for time in times]
    yield Content("{body}", body)
    for time, moment in moments:
        for version in ("v0", "v1"):
            yield from _joined([(version, version.encode()), moment, whole], time)
        yield from _ordered([moment, whole], time)
    for other in [*address, *names]:
        yield from _ordered([other, whole])
    for (time, moment), other in product(moments, [*names, *address]):
        yield from _ordered([other, moment, whole], time)
    for other in address:
        yield from _joined([("POST", b"POST"), other, whole])
        for time, moment in moments:
            yield from _joined([moment, ("POST", b"POST"), other, whole], time)
    for time, moment in moments:
        yield Content("{timestamp}", moment[1], time)
        for other in [*names, *address]:
            yield from _ordered([other, moment], time)


def _ordered(parts: list[tuple[str, bytes]], time: Time | None = None) -> Iterator[Content]:
    """The parts as they stand, with the first two swapped, and with the last one first."""
    orders = [parts, [parts[1], parts[0], *parts[2:]], [parts[-1], *parts[:-1]]]
    for order in orders[: len(parts)]:
        yield from _joined(order, time)


def _joined(parts: list[tuple[str, bytes]], time: Time | None = None) -> Iterator[Content]:
    for sep in SEPARATORS:
        signed = sep.join(placeholder for placeholder, _ in parts)
        yield Content(signed, sep.encode().join(data for _, data in parts), time)


def readings(text: str) -> list[Reading]:
    """The ways to take a secret's text: all of it or without its prefix, as text, base64 or hex."""
    prefix = match[0] if (match := _PREFIX.match(text)) else ""
    found: dict[bytes, Reading] = {}
    for cut in dict.fromkeys(["", prefix]):
        for encoding in ("utf8", "base64", "hex"):
            for _, key in _try(encoding, lambda bare, way=encoding: decode_secret(bare, way), text[len(cut) :]):
                if key:
                    found.setdefault(key, Reading(encoding, cut, key))
    return list(found.values())


def matches(signatures: Mapping[bytes, Form], keys: Iterable[Reading], found: Iterable[Content]) -> Iterator[Match]:
    """Everything that fits, until the bound on the work is reached."""
    algorithms = [ALGORITHMS[size] for size in sorted({len(mac) for mac in signatures})]
    ways = list(product(keys, algorithms))
    if not ways:
        return
    hashed = 0
    for content in found:
        for reading, algorithm in ways:
            form = signatures.get(hmac.digest(reading.key, content.data, algorithm))
            if form:
                yield Match(form, algorithm, reading, content)
        hashed += (len(content.data) + 512) * len(ways)
        if hashed > MAX_HASHED:
            return
