"""Remedies: what a refused delivery would have fitted with. No secret is ever in a word of it."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from receiver.contract.diagnosis import candidates
from receiver.contract.errors import DeliveryRefused
from receiver.contract.intake import read_document
from receiver.contract.signing.grammar import Scheme, Secret, decode_secret
from receiver.contract.signing.signatures import (
    PRESETS,
    Headers,
    read_timestamp,
    signed_content,
    split_signature,
    verify,
)
from receiver.contract.stores import Store

MAX_REWRITTEN = 512 * 1024
MAX_INFLATED = 4 * 1024 * 1024
MAX_HINTS = 3
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Hint:
    """One thing that would have made the delivery fit, and what to do about it."""

    text: str
    fix: str = ""


@dataclass(frozen=True)
class _Change:
    """A key or a content other than the store's own, and the words for it; no words for its own."""

    words: str
    data: bytes
    fix: str = ""


def would_fit(store: Store, headers: Headers, body: bytes, others: Iterable[Store] = ()) -> list[Hint]:
    """The smallest changes under which the signature fits, the likeliest first."""
    found = _single_changes(store, headers, body, list(others))
    return [*found, *_other_presets(store, headers, body)][:MAX_HINTS]


def _single_changes(store: Store, headers: Headers, body: bytes, others: list[Store]) -> list[Hint]:
    """The first change that is enough by itself; where none is, the smallest of what fits."""
    signatures = candidates.signatures_in(headers)
    keys = {change.data: change for change in reversed(list(_keys(store, others)))}
    readings = [candidates.Reading("", "", key) for key in reversed(keys)]
    fixes: dict[str, str] = {}
    found: list[list[_Change]] = []
    for match in candidates.matches(signatures, readings, _lazily(_contents(store, headers, body, signatures), fixes)):
        content = _Change(match.content.signed, b"", fixes[match.content.signed])
        parts = (_form(store.scheme, match), keys[match.reading.key], content)
        found.append([part for part in parts if part.words])
        if len(found[-1]) <= 1:
            break
    return [_hint(parts) for parts in sorted(found, key=len)[:1]]


def _lazily(contents: Iterator[_Change], fixes: dict[str, str]) -> Iterator[candidates.Content]:
    """Contents are as long as the body: never hold two of them."""
    for change in contents:
        fixes[change.words] = change.fix
        yield candidates.Content(change.words, change.data)


def _hint(parts: list[_Change]) -> Hint:
    words = " and ".join(part.words for part in parts) or "with fewer signatures in the header"
    return Hint(f"it would fit {words}", "; ".join(part.fix for part in parts if part.fix))


def _form(scheme: Scheme, match: candidates.Match) -> _Change:
    """How the fitting signature stands otherwise than the scheme says."""
    form = match.form
    if match.algorithm != scheme.digest:
        fix = f'algorithm = "hmac-{match.algorithm}"' if match.algorithm in ("sha256", "sha512") else ""
        return _Change(f"as HMAC-{match.algorithm.upper()}" + ("" if fix else ", which is not supported"), b"", fix)
    if form.header not in scheme.header_names:
        return _Change(f"with the header {form.header}", b"", f'headers = ["{form.header}"]')
    if form.encoding != scheme.encoding:
        known = form.encoding in ("hex", "base64")
        return _Change(
            f"as {form.encoding}" + ("" if known else ", which is not supported"),
            b"",
            f'encoding = "{form.encoding}"' if known else "",
        )
    if form.pair_sep and form.key not in scheme.sig_keys:
        fix = f'pair_sep = "{form.pair_sep}", sig_keys = ["{form.key}"]'
        return _Change(f"with the signature under {form.key}", b"", fix)
    if scheme.sig_keys and not form.pair_sep:
        return _Change("without a key before the signature", b"", 'pair_sep = "", sig_keys = []')
    return _Change("", b"")


# Keys: the store's own, the same read otherwise, other stores'


def _keys(store: Store, others: list[Store]) -> Iterator[_Change]:
    for secret in store.secrets:
        yield _Change("", secret.key)
    for secret in store.secrets:
        yield from _read_otherwise(store.scheme, secret)
    for other in others:
        for secret in other.secrets:
            words = f"with {secret.fingerprint}, a secret of {other.name}"
            yield _Change(words, secret.key, f"let {other.name} send to its own URL, or give {store.name} that secret")


def _read_otherwise(scheme: Scheme, secret: Secret) -> Iterator[_Change]:
    """Only the key is kept, not its text; but the text can be had back from it."""
    for text in _texts_of(scheme, secret):
        for encoding in ("utf8", "base64", "hex"):
            if encoding != scheme.secret_encoding:
                fix = f'secret_encoding = "{encoding}"'
                yield from _decoded(text, encoding, f"with {secret.fingerprint} taken as {encoding}", fix)
        for reading in candidates.readings(text):
            if reading.prefix:
                words = f"with {secret.fingerprint} taken as {reading.encoding} without its prefix"
                yield _Change(words, reading.key, "set secret_prefix and secret_encoding")
        if scheme.secret_prefix:
            words = f"with {secret.fingerprint} taken with its prefix"
            yield _Change(words, (scheme.secret_prefix + text).encode(), 'secret_prefix = "", secret_encoding = "utf8"')
    if secret.key.strip(b" \t\r\n\"'") != secret.key:
        words = f"with {secret.fingerprint} without the spaces or quotes around it"
        yield _Change(words, secret.key.strip(b" \t\r\n\"'"), f"mend the secret at {secret.origin or 'its place'}")


def _texts_of(scheme: Scheme, secret: Secret) -> list[str]:
    padded = b64encode(secret.key).decode()
    texts = {
        "hex": [secret.key.hex(), secret.key.hex().upper()],
        "base64": list(dict.fromkeys([padded, padded.rstrip("=")])),
        "utf8": [secret.key.decode("utf-8", "replace")],
    }
    return texts[scheme.secret_encoding]


def _decoded(text: str, encoding: str, words: str, fix: str) -> Iterator[_Change]:
    try:
        key = decode_secret(text, encoding)
    except ValueError:
        return
    if key:
        yield _Change(words, key, fix)


# Contents: the scheme's own, over another body or URL, or put together otherwise


def _contents(
    store: Store, headers: Headers, body: bytes, signatures: dict[bytes, candidates.Form]
) -> Iterator[_Change]:
    yield from _own_content(store, headers, body)
    for words, changed in _bodies(body, headers):
        if changed != body:
            yield from _own_content(store, headers, changed, words, "something on the way changes the body")
    for url in _urls(store):
        fix = f'[stores.{store.name}] url = "{url}"'
        yield from _own_content(replace(store, url=url), headers, body, f"if the url were {url}", fix)
    document, _ = read_document(body)
    times = candidates.times_in(headers, document, signatures.values())
    ids = candidates.ids_in(headers, times, signatures.values())
    for content in candidates.contents(body, url=store.url, times=times, ids=ids):
        place = f', timestamp = "{content.time.source}"' if content.time else ""
        fix = f"signed = {json.dumps(content.signed)}{place}"
        yield _Change(f"if what is signed were {json.dumps(content.signed)}", content.data, fix)


def _own_content(store: Store, headers: Headers, body: bytes, words: str = "", fix: str = "") -> Iterator[_Change]:
    scheme = store.scheme
    raw = next((headers[name] for name in scheme.header_names if name in headers), "")
    try:
        text = ""
        if "{timestamp}" in scheme.signed:
            text = read_timestamp(scheme, headers, body, split_signature(scheme, raw))
        content = signed_content(scheme, headers=headers, body=body, timestamp=text, url=store.url)
    except DeliveryRefused:
        return
    yield _Change(words, content, fix)


def _bodies(body: bytes, headers: Headers) -> Iterator[tuple[str, bytes]]:
    yield "if the body had no trailing newline", body.rstrip(b"\r\n")
    yield "if the body had a trailing newline", body + b"\n"
    yield "if the body had no spaces around it", body.strip()
    yield "if the body had no byte order mark", body.removeprefix(_BOM)
    yield "if the body had Unix line ends", body.replace(b"\r\n", b"\n")
    yield "if the body had Windows line ends", body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    yield "if the body had been empty", b""
    if body.startswith(b"\x1f\x8b") or "gzip" in headers.get("content-encoding", ""):
        yield from _inflated(body)
    if len(body) <= MAX_REWRITTEN:
        yield from _rewritten(body)


def _inflated(body: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        yield "if the body had been decompressed", zlib.decompressobj(wbits=47).decompress(body, MAX_INFLATED)
    except zlib.error:
        return


def _rewritten(body: bytes) -> Iterator[tuple[str, bytes]]:
    """The same JSON as other writers put it. A proxy that parses and writes again is a frequent cause."""
    document, problem = read_document(body)
    if problem:
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
                yield "if the body had been re-serialised", written.encode("utf-8", "surrogatepass")


def _urls(store: Store) -> list[str]:
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
    keys = [change.data for change in _keys(store, [])]
    for preset in PRESETS.values():
        if (preset.headers, preset.signed) == (own.headers, own.signed):
            continue
        try:
            timeless = replace(preset, tolerance=0)
            secrets = [Secret(key) for key in keys]
            verify(timeless, secrets=secrets, headers=headers, body=body, now=0.0, url=store.url)
        except DeliveryRefused:
            continue
        yield Hint(f"it would fit as the preset {preset.name}", f'scheme = "{preset.name}"')
