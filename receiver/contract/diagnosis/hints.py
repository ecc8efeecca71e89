"""Searches for the change under which a refused delivery's signature would match. No text contains a secret."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from receiver.contract.diagnosis.captures import Capture
from receiver.contract.diagnosis.contents import Content, Slots, find_times
from receiver.contract.diagnosis.search import (
    ENCODINGS,
    SUPPORTED,
    Match,
    Search,
    SecretVariant,
    SignatureForm,
    Signatures,
    beside,
    decode_secret_variants,
    find_signatures,
    without_age,
)
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import is_form
from receiver.contract.intake import read_document
from receiver.contract.signing.decoding import decode_secret
from receiver.contract.signing.grammar import Scheme, Secret
from receiver.contract.signing.signatures import (
    PRESETS,
    Headers,
    read_timestamp,
    split_signatures,
    verify,
)
from receiver.contract.stores import Store

MAX_RESERIALISED = 512 * 1024
MAX_INFLATED = 4 * 1024 * 1024
MAX_HINTS = 3
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Hint:
    """One finding about a refused delivery, and how to fix it."""

    text: str
    fix: str = ""


@dataclass(frozen=True)
class _Change:
    """A key or content to try. `difference` from the store's own is empty for the store's own."""

    difference: str
    data: bytes
    fix: str = ""


@dataclass(frozen=True)
class Findings:
    """The smallest changes under which the signature matches, the most likely first, and how far was searched."""

    hints: tuple[Hint, ...]
    has_signature: bool
    """Whether anything in the delivery has the length of a signature."""
    tried: int
    """The number of ways to build the signed content that were tried."""
    is_complete: bool


def find_hints(store: Store, headers: Headers, body: bytes, others: Iterable[Store] = ()) -> Findings:
    """Search for changes of scheme, secret and content under which the signature matches."""
    capture = Capture(headers, body)
    signatures = find_signatures(capture)
    keys = {change.data: change for change in reversed(list(_possible_keys(store, list(others))))}
    search = Search(signatures, [SecretVariant("", "", key) for key in reversed(keys)])
    presets = list(_other_presets(store, headers, body))
    changes = _smallest_change(store, search, keys, _possible_contents(store, capture, signatures), bool(presets))
    hints = (*changes, *presets)[:MAX_HINTS]
    return Findings(hints, bool(signatures), search.tried, not search.stopped)


def _smallest_change(
    store: Store, search: Search, keys: dict[bytes, _Change], contents: Iterator[_Change | Content], has_preset: bool
) -> list[Hint]:
    """Return the first change that is enough by itself; if none is, the smallest combination that matches."""
    latest: list[_Change] = []

    def each() -> Iterator[Content]:
        for content in contents:
            latest[:] = [content] if isinstance(content, _Change) else []
            if isinstance(content, _Change):
                yield Content((), "", "", content.data)
            elif has_preset or found:
                return
            else:
                yield content

    found: list[list[_Change]] = []
    for match in search.matches(each()):
        content = latest[0] if latest else _template_change(match)
        parts = (_form_change(store.scheme, match), keys[match.secret.key], content)
        found.append([part for part in parts if part.difference])
        if len(found[-1]) <= 1:
            break
    return [_hint(parts) for parts in sorted(found, key=len)[:1]]


def _hint(parts: list[_Change]) -> Hint:
    difference = " and ".join(part.difference for part in parts) or "with fewer signatures in the header"
    return Hint(f"the signature would match {difference}", "; ".join(part.fix for part in parts if part.fix))


def _template_change(match: Match) -> _Change:
    signed, time = next(match.readings())
    place = f', timestamp = "{time.source}"' if time else ""
    return _Change(f"if the signed content were {json.dumps(signed)}", b"", f"signed = {json.dumps(signed)}{place}")


def _form_change(scheme: Scheme, match: Match) -> _Change:
    """How the form of the matching signature differs from the scheme."""
    if match.plain:
        fix = 'algorithm = "sha256", with {secret} in signed'
        return _Change(f"with SHA-256 without HMAC, the secret {match.plain}", b"", fix)
    if match.digest != scheme.digest:
        fix = f'algorithm = "hmac-{match.digest}"' if match.digest in SUPPORTED else ""
        return _Change(f"with HMAC-{match.digest.upper()}" + ("" if fix else ", which is not supported"), b"", fix)
    changes = [_change_of_form(scheme, form) for form in match.forms]
    return min(changes, key=lambda change: bool(change.difference))


def _change_of_form(scheme: Scheme, form: SignatureForm) -> _Change:
    kind, name = form.source.split(":", 1)
    if kind != "header":
        return _Change(f"with the signature at {form.source}", b"", f'signature = ["{form.source}"]')
    if name not in scheme.header_names:
        return _Change(f"with the signature header {name}", b"", f'headers = ["{name}"]')
    if form.encoding != scheme.encoding:
        known = form.encoding in ENCODINGS
        difference = f"read as {form.encoding}" + ("" if known else ", which is not supported")
        return _Change(difference, b"", f'encoding = "{form.encoding}"' if known else "")
    if form.pair_sep and form.key not in scheme.sig_keys:
        fix = f'pair_sep = "{form.pair_sep}", sig_keys = ["{form.key}"]'
        return _Change(f"with the signature after the key {form.key}", b"", fix)
    if scheme.sig_keys and not form.pair_sep:
        return _Change("without a key before the signature", b"", 'pair_sep = "", sig_keys = []')
    return _Change("", b"")


# Keys: the store's own, the same with another encoding, and those of other stores


def _possible_keys(store: Store, others: list[Store]) -> Iterator[_Change]:
    for secret in store.secrets:
        yield _Change("", secret.key)
    for secret in store.secrets:
        yield from _with_other_encoding(store.scheme, secret)
    for other in others:
        for secret in other.secrets:
            difference = f"with {secret.fingerprint}, a secret of {other.name}"
            fix = f"have {other.name} send to its own URL, or add that secret to {store.name}"
            yield _Change(difference, secret.key, fix)


def _with_other_encoding(scheme: Scheme, secret: Secret) -> Iterator[_Change]:
    """Decode the secret in other ways. Only its key is known, so its text is encoded from the key first."""
    for text in _texts_of(scheme, secret):
        for encoding in ("utf8", "base64", "hex"):
            if encoding != scheme.secret_encoding:
                fix = f'secret_encoding = "{encoding}"'
                yield from _decoded(text, encoding, f"with {secret.fingerprint} read as {encoding}", fix)
        for variant in decode_secret_variants(text):
            if variant.prefix:
                difference = f"with {secret.fingerprint} read as {variant.encoding} without its prefix"
                yield _Change(difference, variant.key, "set secret_prefix and secret_encoding")
        if scheme.secret_prefix:
            difference, fix = (
                f"with {secret.fingerprint} including its prefix",
                'secret_prefix = "", secret_encoding = "utf8"',
            )
            yield _Change(difference, (scheme.secret_prefix + text).encode(), fix)
    if secret.key.strip(b" \t\r\n\"'") != secret.key:
        difference = f"with {secret.fingerprint} without the spaces or quotes around it"
        yield _Change(
            difference, secret.key.strip(b" \t\r\n\"'"), f"correct the secret at {secret.origin or 'its source'}"
        )


def _texts_of(scheme: Scheme, secret: Secret) -> list[str]:
    padded = b64encode(secret.key).decode()
    texts = {
        "hex": [secret.key.hex(), secret.key.hex().upper()],
        "base64": list(dict.fromkeys([padded, padded.rstrip("=")])),
        "utf8": [secret.key.decode("utf-8", "replace")],
    }
    return texts[scheme.secret_encoding]


def _decoded(text: str, encoding: str, difference: str, fix: str) -> Iterator[_Change]:
    try:
        key = decode_secret(text, encoding)
    except ValueError:
        return
    if key:
        yield _Change(difference, key, fix)


# Contents: by the scheme's own template, over another body or URL, or by another template


def _possible_contents(store: Store, capture: Capture, signatures: Signatures) -> Iterator[_Change | Content]:
    headers, body = capture.headers, capture.body
    yield from _content_by_scheme(store, headers, body)
    for difference, changed in _possible_bodies(body, headers):
        if changed != body:
            fix = "find the proxy or middleware that changes the body"
            yield from _content_by_scheme(store, headers, changed, difference, fix)
    for url in _possible_urls(store):
        fix = f'[stores.{store.name}] url = "{url}"'
        yield from _content_by_scheme(replace(store, url=url), headers, body, f"if the url were {url}", fix)
    forms = [form for forms in signatures.values() for form in forms]
    times = find_times(capture, beside(capture, forms))
    yield from Slots(capture, url=store.url, times=times, taken={form.source for form in forms}).contents()


def _content_by_scheme(
    store: Store, headers: Headers, body: bytes, difference: str = "", fix: str = ""
) -> Iterator[_Change]:
    scheme = store.scheme
    raw = [(name, headers[name]) for name in scheme.header_names if name in headers]
    try:
        text = ""
        if "{timestamp}" in scheme.signed:
            text = read_timestamp(scheme, headers, body, split_signatures(scheme, raw))
        content = scheme.signed_content(headers, body, text, store.url)
    except DeliveryRefused:
        return
    yield _Change(difference, content, fix)


def _possible_bodies(body: bytes, headers: Headers) -> Iterator[tuple[str, bytes]]:
    yield "if the body had no trailing newline", body.rstrip(b"\r\n")
    yield "if the body had a trailing newline", body + b"\n"
    yield "if the body had no spaces around it", body.strip()
    yield "if the body had no byte order mark", body.removeprefix(_BOM)
    yield "if the body had Unix line endings", body.replace(b"\r\n", b"\n")
    yield "if the body had Windows line endings", body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    yield "if the body were empty", b""
    if body.startswith(b"\x1f\x8b") or "gzip" in headers.get("content-encoding", ""):
        yield from _inflated(body)
    if len(body) <= MAX_RESERIALISED:
        yield from _reserialised(body)


def _inflated(body: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        yield "if the body were decompressed", zlib.decompressobj(wbits=47).decompress(body, MAX_INFLATED)
    except zlib.error:
        return


def _reserialised(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the same JSON in other formats. A proxy that parses and re-serialises the body is a frequent cause."""
    _, problem = read_document(body)
    if problem or is_form(body):
        return
    document = json.loads(body)
    compact: dict[str, Any] = {"separators": (",", ":")}
    for style in (
        compact,
        {},
        {"indent": 2},
        {"indent": 4},
        {**compact, "sort_keys": True},
        {"sort_keys": True},
    ):
        for ascii_only in (False, True):
            text = json.dumps(document, ensure_ascii=ascii_only, **style)
            for written in (text, text.replace("/", "\\/")):
                yield "if the JSON body were re-serialised", written.encode("utf-8", "surrogatepass")


def _possible_urls(store: Store) -> list[str]:
    if "{url}" not in store.scheme.signed:
        return []
    url = store.url
    swapped = (
        url.replace("https://", "http://", 1) if url.startswith("https://") else url.replace("http://", "https://", 1)
    )
    shared = url.rpartition("/")[0]
    return [url.rstrip("/"), url.rstrip("/") + "/", swapped, swapped.rstrip("/") + "/", shared, shared + "/"]


def _other_presets(store: Store, headers: Headers, body: bytes) -> Iterator[Hint]:
    own = store.scheme
    keys = [change.data for change in _possible_keys(store, [])]
    for preset in PRESETS.values():
        if (preset.headers, preset.signed) == (own.headers, own.signed):
            continue
        try:
            secrets = [Secret(key) for key in keys]
            verify(without_age(preset), secrets=secrets, headers=headers, body=body, now=0.0, url=store.url)
        except DeliveryRefused:
            continue
        yield Hint(f"the signature would match with the preset {preset.name}", f'scheme = "{preset.name}"')
