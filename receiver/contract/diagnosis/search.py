"""Searches a capture for its signature: where it is, how it is written, and which key, hash and content made it.

`detect` and `hints` use it. A delivery that is received is never searched.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from receiver.contract.diagnosis.captures import Capture, unit_of
from receiver.contract.diagnosis.contents import SEPARATORS, Content, Timestamp
from receiver.contract.signing.decoding import decode_secret, strict_base64, strict_base64url, strict_hex
from receiver.contract.signing.grammar import Scheme
from receiver.contract.signing.mac import keyed

ALGORITHMS = {20: "sha1", 32: "sha256", 48: "sha384", 64: "sha512"}
"""The hash for each length of a signature in bytes."""
SUPPORTED = ("sha1", "sha256", "sha512")
ENCODINGS = ("hex", "base64", "base64url")
"""The hashes and encodings of the grammar."""
MAX_WORK = 500_000_000
"""The work that one search may do, in bytes hashed, about two seconds: a pure function cannot read a clock."""
COST_OF_HASH = 800
"""The work for one hash besides its content, in bytes."""
# How a header is split: between signatures, and between a key and its signature.
FORMS = (
    ("", ""), ("", "="), (",", "="), (" ", ","), (";", "="), (" ", "="), ("&", "="), ("", ","), ("", " "), ("", ":"),
    (",", ":"), (";", ":"), (",", ""), (" ", ""), (";", ""), (":", ""), (".", ""), ("|", ""),
)  # fmt: skip
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_ /.-]{0,31}")
# Only short lower-case words: a prefix is printed, so it must never contain a part of the secret itself.
_PREFIX = re.compile(r"([a-z]{2,10}_){1,3}")


@dataclass(frozen=True)
class SignatureForm:
    """Where a signature is, and how it is written there."""

    source: str
    encoding: str
    list_sep: str = ""
    pair_sep: str = ""
    key: str = ""
    index: int = -1
    """Its place among the parts of the header, if the other parts are no signatures."""


@dataclass(frozen=True)
class SecretVariant:
    """One way to decode the text of a secret: the encoding, and the prefix that is removed first."""

    encoding: str
    prefix: str
    key: bytes


@dataclass(frozen=True)
class Match:
    """A match: these forms of one signature, made with this hash and key over this content.

    `plain` is the place of the secret, "first" or "last", in a hash without HMAC.
    """

    forms: Sequence[SignatureForm]
    digest: str
    secret: SecretVariant
    content: Content
    plain: str = ""

    def readings(self) -> Iterator[tuple[str, Timestamp | None]]:
        """Yield each `signed` that gives the content, with the source of its timestamp; the most usual first."""
        for signed, time in self.content.readings():
            parts = {"": [signed], "first": ["{secret}", signed], "last": [signed, "{secret}"]}[self.plain]
            yield self.content.separator.join(parts), time


Signatures = dict[bytes, list[SignatureForm]]


def find_signatures(capture: Capture) -> Signatures:
    """Return what decodes to the length of a signature, with the simplest form of each place and encoding."""
    found: Signatures = {}
    for (list_sep, pair_sep), (source, text) in product(FORMS, capture.values.items()):
        if (list_sep or pair_sep) and source.startswith("json:"):
            continue  # a field of a document has one value
        for index, key, item in split(text, list_sep=list_sep, pair_sep=pair_sep):
            for encoding, mac in decodings(item):
                forms = found.setdefault(mac, [])
                if all((form.source, form.encoding) != (source, encoding) for form in forms):
                    forms.append(SignatureForm(source, encoding, list_sep, pair_sep, key, index))
    return found


def split(value: str, *, list_sep: str, pair_sep: str) -> Iterator[tuple[int, str, str]]:
    """Yield (place, key, item) of a header; with `pair_sep`, only items that have a key.

    Without it, an item has a place if the others are no signatures.
    """
    items = [item.strip() for item in value.split(list_sep)[:32]] if list_sep else [value.strip()]
    if pair_sep:
        for item in items:
            key, sep, rest = item.partition(pair_sep)
            if sep and _KEY.fullmatch(key):
                yield -1, key, rest
        return
    alike = all(any(decodings(item)) for item in items)
    for index, item in enumerate(items):
        yield -1 if alike else index, "", item


def beside(capture: Capture, forms: Iterable[SignatureForm]) -> dict[str, str]:
    """Return the values next to the signatures in their headers, as `sig:KEY` or `sig:PLACE`."""
    values: dict[str, str] = {}
    for form in forms:
        if form.list_sep and (form.pair_sep or form.index >= 0):
            items = split(capture.values[form.source], list_sep=form.list_sep, pair_sep=form.pair_sep)
            for index, key, text in items:
                if unit_of(text):
                    values[f"sig:{key or index}"] = text
    return values


def decodings(text: str) -> Iterator[tuple[str, bytes]]:
    """Yield (encoding, bytes) for each encoding in which the text has the length of a signature.

    Hex is also base64, of another length. Schemes do not support the last encoding.
    """
    ways: list[tuple[str, Callable[[str], bytes]]] = [("base64", strict_base64), ("base64url", strict_base64url)]
    if ("+" in text or "/" in text) and not text.endswith("="):
        ways.append(("base64 without padding", lambda bare: decode_secret(bare, "base64")))
    as_hex = list(_try("hex", strict_hex, text))
    found = as_hex if as_hex and len(as_hex[0][1]) in ALGORITHMS else [one for way in ways for one in _try(*way, text)]
    yield from (one for one in found if len(one[1]) in ALGORITHMS)


def _try(encoding: str, decode: Callable[[str], bytes], text: str) -> Iterator[tuple[str, bytes]]:
    try:
        yield encoding, decode(text)
    except ValueError:
        return


def decode_secret_variants(text: str) -> list[SecretVariant]:
    """Return the ways to decode a secret: with or without its prefix, as text, base64 or hex."""
    prefix = match[0] if (match := _PREFIX.match(text)) else ""
    found: dict[bytes, SecretVariant] = {}
    for cut in dict.fromkeys(["", prefix]):
        for encoding in ("utf8", "base64", "hex"):
            for _, key in _try(encoding, lambda bare, way=encoding: decode_secret(bare, way), text[len(cut) :]):  # type: ignore[misc]
                if key:
                    found.setdefault(key, SecretVariant(encoding, cut, key))
    return list(found.values())


def without_age(scheme: Scheme) -> Scheme:
    """The scheme for deliveries of any age. A tolerance of 0 would turn off checks of the timestamp, too."""
    return replace(scheme, tolerance=10**15)


class Search:
    """Tests contents against the signatures, until the limit on the work is reached."""

    def __init__(self, signatures: Mapping[bytes, list[SignatureForm]], keys: Sequence[SecretVariant]) -> None:
        self.signatures = signatures
        sizes = sorted({len(mac) for mac in signatures})
        self.variants = [(key, size, keyed(key.key, ALGORITHMS[size])) for key, size in product(keys, sizes)]
        self.plain = list(keys) if 32 in sizes else []
        self.tried = 0
        """The number of contents that were tested."""
        self.stopped = False
        """Whether the limit on the work was reached before all were tested."""

    def matches(self, contents: Iterable[Content]) -> Iterator[Match]:
        if not self.variants:
            return
        work, each = 0, len(self.variants) + len(self.plain)  # a plain hash takes half the time, and there are two
        for content in contents:
            if work > MAX_WORK:
                self.stopped = True
                return
            for secret, size, mac in self.variants:
                if forms := self.signatures.get(mac(content.data)):
                    yield Match(forms, ALGORITHMS[size], secret, content)
            for secret in self.plain:
                yield from self._plain_matches(secret, content)
            self.tried += 1
            work += (len(content.data) + COST_OF_HASH) * each

    def _plain_matches(self, secret: SecretVariant, content: Content) -> Iterator[Match]:
        """SHA-256 without HMAC, over the secret and the content."""
        for separator in SEPARATORS if len(content.parts) == 1 else (content.separator,):
            between = separator.encode()
            for place, data in (
                ("first", secret.key + between + content.data),
                ("last", content.data + between + secret.key),
            ):
                if forms := self.signatures.get(hashlib.sha256(data).digest()):
                    yield Match(forms, "sha256", secret, content._replace(separator=separator), plain=place)
