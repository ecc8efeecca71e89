"""Searches a delivery for possible signatures, timestamps, ids and signed contents, and tests which of them match.

`detect` and `hints` use it. A delivery that is received is never searched.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Literal

from receiver.contract.intake import NOT_STORED, omitted_headers
from receiver.contract.signing.decoding import decode_secret, strict_base64, strict_hex
from receiver.contract.signing.signatures import MAX_SIGNATURE_HEADER, Headers

ALGORITHMS = {20: "sha1", 32: "sha256", 48: "sha384", 64: "sha512"}
"""The hash algorithm for each length of a signature in bytes."""
MAX_HASHED = 400_000_000
"""The number of bytes that one search may hash, about a second's work: a pure function cannot read a clock."""
MAX_FOUND = 12
"""The number of timestamps, and of ids, that a search tries."""
OMITTED = "headers that may hold credentials are stored without their value: "

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
# Headers that every HTTP client or proxy may send. None of them belongs to a signature scheme.
_COMMON_HEADERS = re.compile(
    r"host|user-agent|accept.*|connection|content-.*|transfer-encoding|date|via|forwarded|x-forwarded-.*"
    r"|x-real-ip|cf-.*|cdn-.*|te|trailer|upgrade|expect|cache-control|pragma|origin|referer|cookie|authorization"
    r"|traceparent|tracestate|sec-.*|server|from|keep-alive|proxy-.*|range|if-.*|max-forwards|priority"
)
_TIMESTAMP_PATTERNS: list[tuple[Unit, re.Pattern[str]]] = [
    ("s", re.compile(r"[0-9]{10}")),
    ("ms", re.compile(r"[0-9]{13}")),
    (
        "rfc3339",
        re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:]{8}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"),
    ),
]
# Only short lower-case words: a prefix is printed, so it must never contain a part of the secret itself.
_PREFIX = re.compile(r"([a-z]{2,10}_){1,3}")


@dataclass(frozen=True)
class SignatureForm:
    """How a signature is written in a header."""

    header: str
    encoding: str
    list_sep: str = ""
    pair_sep: str = ""
    key: str = ""


@dataclass(frozen=True)
class Timestamp:
    """A value that looks like a timestamp, and its source."""

    source: str
    text: str
    unit: Unit


@dataclass(frozen=True)
class Content:
    """Content that a store may have signed: the template, its bytes, and the timestamp in it."""

    signed: str
    data: bytes
    time: Timestamp | None = None


@dataclass(frozen=True)
class SecretVariant:
    """One way to decode the text of a secret: the encoding, and the prefix that is removed first."""

    encoding: str
    prefix: str
    key: bytes


@dataclass(frozen=True)
class Match:
    """A match: this signature was made with this algorithm and key over this content."""

    form: SignatureForm
    algorithm: str
    secret: SecretVariant
    content: Content


def custom_headers(headers: Headers) -> dict[str, str]:
    """Return the headers that a scheme could use."""
    return {
        name: value
        for name, value in headers.items()
        if value not in ("", NOT_STORED) and len(value) <= MAX_SIGNATURE_HEADER and not _COMMON_HEADERS.fullmatch(name)
    }


def omitted(headers: Headers) -> list[str]:
    """Return the headers that a scheme could use, but whose values are not stored with a refusal."""
    return [name for name in omitted_headers(headers) if not _COMMON_HEADERS.fullmatch(name)]


def find_signatures(headers: Headers) -> dict[bytes, SignatureForm]:
    """Return every header value that decodes to the length of a signature, each in its simplest form."""
    found: dict[bytes, SignatureForm] = {}
    for (list_sep, pair_sep), (name, value) in product(FORMS, custom_headers(headers).items()):
        for key, item in split(value, list_sep=list_sep, pair_sep=pair_sep):
            sized = (way for way in decodings(item) if len(way[1]) in ALGORITHMS)
            for encoding, mac in islice(sized, 1):  # hex also decodes as base64, to another length
                found.setdefault(mac, SignatureForm(name, encoding, list_sep, pair_sep, key))
    return found


def split(value: str, *, list_sep: str, pair_sep: str) -> Iterator[tuple[str, str]]:
    """Yield (key, item) of a header; with `pair_sep`, only the items that have a key."""
    for item in value.split(list_sep)[:32] if list_sep else (value,):
        key, sep, rest = item.strip().partition(pair_sep) if pair_sep else ("", "-", item.strip())
        if sep and (key or not pair_sep):
            yield key, rest


def decodings(text: str) -> Iterator[tuple[str, bytes]]:
    """Yield (encoding, bytes) for each encoding in which the text is valid. Schemes do not support the last two."""
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


def find_timestamps(headers: Headers, document: Any, forms: Iterable[SignatureForm]) -> list[Timestamp]:
    """Return every value that looks like a timestamp: beside the signature, in a header, in the body."""
    places: dict[str, Any] = {}
    for form in forms:
        if form.list_sep and form.pair_sep:
            items = split(headers.get(form.header, ""), list_sep=form.list_sep, pair_sep=form.pair_sep)
            places |= {f"sig:{key}": value for key, value in items}
    places |= {f"header:{name}": value for name, value in custom_headers(headers).items()}
    places |= dict(_scalars(document, "json:"))
    found = (Timestamp(source, str(value), unit) for source, value in places.items() if (unit := unit_of(value)))
    return list(found)[:MAX_FOUND]


def unit_of(value: Any) -> Unit | None:
    """Return the unit of a timestamp, or None for a value that does not look like one."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return None
    return next((unit for unit, pattern in _TIMESTAMP_PATTERNS if pattern.fullmatch(str(value))), None)


def _scalars(document: Any, prefix: str, depth: int = 2) -> Iterator[tuple[str, Any]]:
    if not isinstance(document, dict):
        return
    for key, value in list(document.items())[:64]:
        if isinstance(value, dict) and depth > 1:
            yield from _scalars(value, f"{prefix}{key}.", depth - 1)
        elif isinstance(value, str | int) and key and "." not in key:
            yield f"{prefix}{key}", value


def find_ids(headers: Headers, times: Iterable[Timestamp], forms: Iterable[SignatureForm]) -> list[tuple[str, str]]:
    """Return placeholder and value of every header that is neither a timestamp nor a signature."""
    known = {time.source.removeprefix("header:") for time in times} | {form.header for form in forms}
    found = [
        (f"{{header:{name}}}", value)
        for name, value in custom_headers(headers).items()
        if name not in known and len(value) <= 256
    ]
    return sorted(found, key=lambda item: "id" not in item[0].rpartition(":")[2])[:MAX_FOUND]


def possible_contents(
    body: bytes, *, url: str, times: Iterable[Timestamp], ids: Iterable[tuple[str, str]]
) -> Iterator[Content]:
    """Yield contents that a store may have signed, the most usual first and those without the body last."""
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


def _ordered(parts: list[tuple[str, bytes]], time: Timestamp | None = None) -> Iterator[Content]:
    """Yield the parts in the given order, with the first two swapped, and with the last one first."""
    orders = [parts, [parts[1], parts[0], *parts[2:]], [parts[-1], *parts[:-1]]]
    for order in orders[: len(parts)]:
        yield from _joined(order, time)


def _joined(parts: list[tuple[str, bytes]], time: Timestamp | None = None) -> Iterator[Content]:
    for sep in SEPARATORS:
        signed = sep.join(placeholder for placeholder, _ in parts)
        yield Content(signed, sep.encode().join(data for _, data in parts), time)


def decode_secret_variants(text: str) -> list[SecretVariant]:
    """Return the variants to decode a secret: with or without its prefix, as text, base64 or hex."""
    prefix = match[0] if (match := _PREFIX.match(text)) else ""
    found: dict[bytes, SecretVariant] = {}
    for cut in dict.fromkeys(["", prefix]):
        for encoding in ("utf8", "base64", "hex"):
            for _, key in _try(encoding, lambda bare, way=encoding: decode_secret(bare, way), text[len(cut) :]):
                if key:
                    found.setdefault(key, SecretVariant(encoding, cut, key))
    return list(found.values())


def find_matches(
    signatures: Mapping[bytes, SignatureForm], keys: Iterable[SecretVariant], contents: Iterable[Content]
) -> Iterator[Match]:
    """Yield every match, until the limit on the work is reached."""
    algorithms = [ALGORITHMS[size] for size in sorted({len(mac) for mac in signatures})]
    variants = list(product(keys, algorithms))
    if not variants:
        return
    hashed = 0
    for content in contents:
        for secret, algorithm in variants:
            form = signatures.get(hmac.digest(secret.key, content.data, algorithm))
            if form:
                yield Match(form, algorithm, secret, content)
        hashed += (len(content.data) + 512) * len(variants)
        if hashed > MAX_HASHED:
            return
