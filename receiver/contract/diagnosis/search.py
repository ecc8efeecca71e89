"""Searches a capture for its signature: where it is, how it is written, and which key, hash and content made it.

`detect` and `hints` use it. A delivery that is received is never searched.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from receiver.contract.diagnosis.captures import Capture, unit_of
from receiver.contract.diagnosis.contents import SEPARATORS, Content, Slots, Timestamp, find_times
from receiver.contract.errors import DeliveryRefused
from receiver.contract.signing.decoding import decode_secret, strict_base64, strict_base64url, strict_hex
from receiver.contract.signing.grammar import Scheme, SchemeError, Secret
from receiver.contract.signing.mac import keyed
from receiver.contract.signing.signatures import Headers, verify

ALGORITHMS = {20: "sha1", 32: "sha256", 48: "sha384", 64: "sha512"}
"""The hash for each length of a signature in bytes."""
SUPPORTED = ("sha1", "sha256", "sha512")
ENCODINGS = ("hex", "base64", "base64url")
"""The hashes and encodings of schemes."""
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


class SignatureForm(NamedTuple):
    """Where a signature is, and how it is written there."""

    source: str
    encoding: str
    list_sep: str = ""
    pair_sep: str = ""
    key: str = ""
    place: int = -1
    """Its place among the parts of the header, if the other parts are no signatures."""


class SecretVariant(NamedTuple):
    """One way to decode the text of a secret: the encoding, and the prefix that is removed first."""

    encoding: str
    prefix: str
    key: bytes
    about: tuple[str, str] = ("", "")
    """For a key of another secret: which one it is, and the fix."""


class Match(NamedTuple):
    """A match: these forms of one signature, made with this hash and key over this content.

    `plain` is the place of the secret, "first" or "last", in a hash without HMAC.
    """

    forms: Sequence[SignatureForm]
    digest: str
    secret: SecretVariant
    content: Content
    plain: str = ""

    def schemes(self, base: Scheme) -> Iterator[Scheme | str]:
        """Yield every scheme that it can mean, the most usual first, or a sentence that says why it cannot be used."""
        for (signed, time), form in product(self._readings(), self.forms):
            matches = f"the signature matches over {signed}"
            if self.digest not in SUPPORTED or form.encoding not in ENCODINGS:
                yield f"{matches} as HMAC-{self.digest.upper()}, {form.encoding}, which is not supported"
                continue
            try:
                yield self._scheme(base, form, signed, time)
            except SchemeError as error:
                yield f"{matches}, but {error}"

    def _readings(self) -> Iterator[tuple[str, Timestamp | None]]:
        for signed, time in self.content.readings():
            parts = {"": [signed], "first": ["{secret}", signed], "last": [signed, "{secret}"]}[self.plain]
            yield self.content.separator.join(parts), time

    def _scheme(self, base: Scheme, form: SignatureForm, signed: str, time: Timestamp | None) -> Scheme:
        kind, name = form.source.split(":", 1)
        is_known = name in base.header_names if kind == "header" else form.source in base.signature
        signs_body = any(part in signed for part in ("{body", "{form_sorted"))
        values: dict[str, Any] = {
            "headers": base.headers if is_known else (name,) if kind == "header" else (),
            "signature": base.signature if is_known else () if kind == "header" else (form.source,),
            "algorithm": "sha256" if self.plain else f"hmac-{self.digest}",
            "encoding": form.encoding,
            "list_sep": form.list_sep,
            "pair_sep": form.pair_sep,
            "sig_keys": base.sig_keys if form.key in base.sig_keys else (form.key,) if form.pair_sep else (),
            "sig_index": form.place,
            "signed": signed,
            "allow_unsigned_body": base.allow_unsigned_body or not signs_body,
            "secret_prefix": self.secret.prefix,
            "secret_encoding": self.secret.encoding,
            "timestamp": time.source if time else "" if base.signs_time else base.timestamp,
            "timestamp_unit": time.unit if time else base.timestamp_unit,
        }
        return replace(base, **values)


Signatures = dict[bytes, list[SignatureForm]]


def find_signatures(capture: Capture, base: Scheme) -> Signatures:
    """Return what decodes to the length of a signature, with the simplest form of each place and encoding.

    The form of `base` is the simplest one.
    """
    found: Signatures = {}
    separators = dict.fromkeys([(base.list_sep, base.pair_sep), *FORMS])
    for (list_sep, pair_sep), (source, text) in product(separators, capture.values.items()):
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
        if form.list_sep and (form.pair_sep or form.place >= 0):
            items = split(capture.values[form.source], list_sep=form.list_sep, pair_sep=form.pair_sep)
            for index, key, text in items:
                if unit_of(text):
                    values[f"sig:{key or index}"] = text
    return values


def decodings(text: str) -> Iterator[tuple[str, bytes]]:
    """Yield (encoding, bytes) for each encoding in which the text has the length of a signature."""
    for encoding, decode in _DECODERS.items():
        with suppress(ValueError):
            mac = decode(text)
            if len(mac) in ALGORITHMS:
                yield encoding, mac
                if encoding == "hex":
                    return  # it is also base64, of another length


def _unpadded(text: str) -> bytes:
    if text.endswith("=") or not {"+", "/"} & set(text):
        raise ValueError("it is padded, or base64url")
    return decode_secret(text, "base64")


_DECODERS: dict[str, Callable[[str], bytes]] = {
    "hex": strict_hex,
    "base64": strict_base64,
    "base64url": strict_base64url,
    "base64 without padding": _unpadded,
}


def decode_secret_variants(text: str, prefix: str = "") -> list[SecretVariant]:
    """Return the ways to decode a secret: with or without its prefix, as text, base64 or hex."""
    prefix = prefix or (match[0] if (match := _PREFIX.match(text)) else "")
    found: dict[bytes, SecretVariant] = {}
    for cut, encoding in product(dict.fromkeys(["", prefix]), ("utf8", "base64", "hex")):
        with suppress(ValueError):
            key = decode_secret(text[len(cut) :], encoding)
            found.setdefault(key, SecretVariant(encoding, cut, key))
    return [variant for variant in found.values() if variant.key]


def find_signer(scheme: Scheme, secrets: Sequence[Secret], headers: Headers, body: bytes, url: str) -> Secret | None:
    """Return the secret that signed a delivery of any age, even if it has expired; None if it is not valid.

    A tolerance of 0 would turn off checks of the timestamp, too.
    """
    ageless = replace(scheme, tolerance=10**15)
    try:
        return verify(ageless, secrets=secrets, headers=headers, body=body, now=0.0, url=url).secret
    except DeliveryRefused:
        return None


class Search:
    """Looks for contents that give a signature of the capture, until the limit on the work is reached."""

    def __init__(self, capture: Capture, keys: Sequence[SecretVariant], url: str, base: Scheme) -> None:
        self.signatures, self.keys = find_signatures(capture, base), keys
        forms = [form for forms in self.signatures.values() for form in forms]
        self.places = sorted({form.source for form in forms})
        self.times = find_times(capture, beside(capture, forms))
        self.slots = Slots(capture, url=url, times=self.times, taken=set(self.places))
        sizes = sorted({len(mac) for mac in self.signatures})
        self._variants = [(key, size, keyed(key.key, ALGORITHMS[size])) for key, size in product(keys, sizes)]
        self._plain = keys if 32 in sizes else ()
        self._work = 0
        self.tried = 0
        """The number of contents that were tested."""

    @property
    def stopped(self) -> bool:
        """Whether the limit on the work was reached before all were tested."""
        return self._work > MAX_WORK

    def matches(self, contents: Iterable[Content]) -> Iterator[list[Match]]:
        """Yield the matches of each content that has any."""
        each = len(self._variants) + len(self._plain)  # a plain hash takes half the time, and there are two
        for content in contents if each else ():
            if self.stopped:
                return
            found = [
                Match(forms, ALGORITHMS[size], secret, content)
                for secret, size, mac in self._variants
                if (forms := self.signatures.get(mac(content.data)))
            ]
            for secret in self._plain:
                found += self._plain_matches(secret, content)
            if found:
                yield found
            self.tried += 1
            self._work += (len(content.data) + COST_OF_HASH) * each

    def _plain_matches(self, secret: SecretVariant, content: Content) -> Iterator[Match]:
        """SHA-256 without HMAC, over the secret and the content."""
        for separator in SEPARATORS if len(content.parts) == 1 else (content.separator,):
            between = separator.encode()
            joined = {"first": secret.key + between + content.data, "last": content.data + between + secret.key}
            for place, data in joined.items():
                if forms := self.signatures.get(hashlib.sha256(data).digest()):
                    yield Match(forms, "sha256", secret, content._replace(separator=separator), plain=place)
