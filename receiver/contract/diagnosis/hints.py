"""Finds what to change so that a refused delivery would be accepted. No text contains a secret."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any, NamedTuple

from receiver.contract.diagnosis.captures import OMITTED, Capture, omitted, unit_of
from receiver.contract.diagnosis.contents import Content, Timestamp, Way
from receiver.contract.diagnosis.detect import changes
from receiver.contract.diagnosis.search import Match, Search, SecretVariant, decode_secret_variants, find_signer
from receiver.contract.diagnosis.terminal_text import printable
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import is_form
from receiver.contract.intake import read_document
from receiver.contract.signing.grammar import Scheme, Secret
from receiver.contract.signing.signatures import PRESETS, Headers, find_signatures, read_timestamp, split_signatures
from receiver.contract.signing.sources import BodyFields
from receiver.contract.stored_headers import NEVER_STORED, omitted_headers, sealed_headers
from receiver.contract.stores import Store

MAX_RESERIALISED = 512 * 1024
MAX_INFLATED = 4 * 1024 * 1024
MAX_HINTS = 3
MAX_CHANGES = 99
_SPACES = b" \t\r\n\"'"


class Hint(NamedTuple):
    """One finding about a refused delivery, and how to fix it."""

    text: str
    fix: str = ""


def find_hints(
    refusal: DeliveryRefused, store: Store, headers: Headers, body: bytes, others: Iterable[Store] = ()
) -> list[Hint]:
    """Return what would make the delivery valid, the most likely first. Secrets of the stores in `others` are tried."""
    if refusal.reason == "wrong-store":
        fix = f"compare {', '.join(store.scheme.event.store)} of the delivery with [stores.{store.name}] domain"
        return [Hint("the signature matches this store's secret, but the delivery names another store", fix)]
    if refusal.reason == "ambiguous":
        fix = (
            "look for the whole delivery in `storehooks events`; if the store really sends this, ask it for JSON or "
            "for signed headers without the separator"
        )
        return [Hint("the signature matches, but the same bytes may be another delivery, cut elsewhere", fix)]
    if refusal.reason == "secret-expired":
        return _rotation_hints(store, str(refusal))
    if refusal.reason in ("too-old", "too-new", "malformed-timestamp"):
        return [_time_hint(store.scheme, headers, body, refusal.reason)]
    return _unstored_hints(store.scheme, headers) or _signature_hints(store, Capture(headers, body), others)


def _unstored_hints(scheme: Scheme, headers: Headers) -> list[Hint]:
    """Why the value of a header is not here: it may hold a credential."""
    if scheme.reads.intersection(sealed_headers(headers)):
        return [Hint("it was sealed on arrival", "run this with the [secrets] key that the receiver had then")]
    omitted = scheme.reads.intersection(omitted_headers(headers))
    if omitted & NEVER_STORED:
        fix = 'set [secrets] key = "env:KEYRING_KEY" for every process, and have the store send it again'
        return [Hint("it may hold a credential, so it is stored only sealed, while the scheme reads it", fix)]
    if omitted:
        fix = "have the store send it again; while the scheme reads this header, its value is stored"
        return [Hint("its name says that it may hold a credential, and the scheme did not read it on arrival", fix)]
    return []


def _rotation_hints(store: Store, detail: str) -> list[Hint]:
    return [
        Hint(
            f"the signature matches {secret.fingerprint}, which expired {format_time(secret.not_after)}",
            f"extend not_after in {secret.origin or f'[stores.{store.name}] signing_secrets'}, then send HUP; or "
            f"have the store sign with a newer one (with an API: storehooks subscriptions rotate --store {store.name})",
        )
        for secret in store.secrets
        if secret.not_after and secret.fingerprint in detail
    ][:1]


def _time_hint(scheme: Scheme, headers: Headers, body: bytes, reason: str) -> Hint:
    fields = BodyFields(body)
    pairs = split_signatures(scheme, find_signatures(scheme, headers, fields))
    unit = unit_of(read_timestamp(scheme, headers, fields, pairs))
    if unit and unit != scheme.timestamp_unit:
        return Hint(f"the signature matches, but the timestamp has another unit, {unit}", f'timestamp_unit = "{unit}"')
    if reason == "malformed-timestamp":
        return Hint(f"the signature matches, but {scheme.timestamp} is not a timestamp", "set timestamp")
    return Hint(
        "the signature matches, but the timestamp is outside the tolerance: a wrong clock, a late retry or a replay",
        "synchronise the clocks; raise tolerance for a store that signs once and retries for hours, and while you "
        "release what a wrong clock of ours has refused",
    )


# The signature does not match: a search with other keys, other contents and other schemes


def _signature_hints(store: Store, capture: Capture, others: Iterable[Store]) -> list[Hint]:
    keys: dict[bytes, SecretVariant] = {}
    for variant in _possible_keys(store, others):
        keys.setdefault(variant.key, variant)
    search = Search(capture, list(keys.values()), store.url, store.scheme)

    def smallest(contents: Iterable[Content]) -> list[Hint]:
        """The smallest change under which the first content that matches is valid."""
        found = [one for match in next(search.matches(contents), ()) for one in _changes(match, store.scheme)]
        return [hint for _, hint in sorted(found, key=lambda one: one[0])[:1]]

    own = [Secret(variant.key) for variant in keys.values() if not variant.about[0]]
    hints = [*smallest(_possible_contents(store, capture)), *_other_presets(store, capture, own)][:MAX_HINTS]
    hints = hints or smallest(search.slots.contents())
    return hints or [_no_match(search, capture) if store.secrets else _no_secret(store)]


def _changes(match: Match, own: Scheme) -> Iterator[tuple[int, Hint]]:
    """Yield the number of changes, and the changes, under which the match is valid."""
    for scheme in match.schemes(own):
        if isinstance(scheme, str):
            yield MAX_CHANGES, Hint(scheme)
            continue
        settings = changes(scheme, own)
        fix = ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
        about = [one for one in (match.secret.about, match.content.about) if one[0]]
        parts = [(f"with {fix}", fix), *about] if fix else about
        text = " and ".join(text for text, _ in parts) or "with fewer signatures in the header"
        hint = Hint(f"the signature would match {text}", "; ".join(fix for _, fix in parts))
        yield len(settings) + len(about), hint


def _possible_keys(store: Store, others: Iterable[Store]) -> Iterator[SecretVariant]:
    """Yield the store's own keys, the same decoded in other ways, and those of other stores."""
    own = store.scheme
    plain = SecretVariant(own.secret_encoding, own.secret_prefix, b"")
    yield from (plain._replace(key=secret.key) for secret in store.secrets)
    for secret in store.secrets:
        for text in _texts_of(own, secret.key):
            yield from decode_secret_variants(own.secret_prefix + text, own.secret_prefix)
        text = f"with {secret.fingerprint} without the spaces or quotes around it"
        fix = f"correct the secret at {secret.origin or 'its source'}"
        yield plain._replace(key=secret.key.strip(_SPACES), about=(text, fix))
    for other in others:
        fix = f"have {other.name} send to its own URL, or add that secret to {store.name}"
        for secret in other.secrets:
            text = f"with {secret.fingerprint}, a secret of {other.name}"
            yield plain._replace(key=secret.key, about=(text, fix))


def _texts_of(scheme: Scheme, key: bytes) -> tuple[str, ...]:
    """The texts that a secret may have in the config: only its key is known."""
    padded = b64encode(key).decode()
    return {
        "utf8": (key.decode("utf-8", "replace"),),
        "base64": (padded, padded.rstrip("=")),
        "hex": (key.hex(), key.hex().upper()),
    }[scheme.secret_encoding]


def _possible_contents(store: Store, capture: Capture) -> Iterator[Content]:
    """Yield the contents by the scheme's own template: over this body and URL, and over others."""
    headers, body = capture.headers, capture.body
    yield from _content_by_scheme(store, headers, body)
    for text, changed in _possible_bodies(body, headers):
        if changed != body:
            about = (f"if the body {text}", "find the proxy or middleware that changes the body")
            yield from _content_by_scheme(store, headers, changed, about)
    for url in _possible_urls(store):
        about = (f"if the url were {url}", f'[stores.{store.name}] url = "{url}"')
        yield from _content_by_scheme(replace(store, url=url), headers, body, about)


def _content_by_scheme(
    store: Store, headers: Headers, body: bytes, about: tuple[str, str] = ("", "")
) -> Iterator[Content]:
    scheme, fields, text = store.scheme, BodyFields(body), ""
    raw = [(name, headers[name]) for name in scheme.header_names if name in headers]
    with suppress(DeliveryRefused):
        if scheme.signs_time:
            text = read_timestamp(scheme, headers, fields, split_signatures(scheme, raw))
        data = scheme.signed_content(headers, fields, text, store.url)
        time = Timestamp(scheme.timestamp, text, scheme.timestamp_unit) if scheme.timestamp else None
        way = Way(scheme.signed.replace("{secret}", ""), time)
        yield Content(((way,),), "", "", data, about)


def _possible_bodies(body: bytes, headers: Headers) -> Iterator[tuple[str, bytes]]:
    unix = body.replace(b"\r\n", b"\n")
    yield "had no trailing newline", body.rstrip(b"\r\n")
    yield "had a trailing newline", body + b"\n"
    yield "had no spaces around it", body.strip()
    yield "had no byte order mark", body.removeprefix(b"\xef\xbb\xbf")
    yield "had Unix line endings", unix
    yield "had Windows line endings", unix.replace(b"\n", b"\r\n")
    yield "were empty", b""
    if body.startswith(b"\x1f\x8b") or "gzip" in headers.get("content-encoding", ""):
        with suppress(zlib.error):
            yield "were decompressed", zlib.decompressobj(wbits=47).decompress(body, MAX_INFLATED)
    if len(body) <= MAX_RESERIALISED and not is_form(body) and not read_document(body)[1]:
        # A proxy that parses and re-serialises the body is a frequent cause.
        document, compact = json.loads(body), {"separators": (",", ":")}
        styles: list[dict[str, Any]] = [compact, {}, {"indent": 2}, {"indent": 4}]
        styles += [{**compact, "sort_keys": True}, {"sort_keys": True}]
        for style, is_ascii in product(styles, (False, True)):
            text = json.dumps(document, ensure_ascii=is_ascii, **style)
            for written in (text, text.replace("/", "\\/")):
                yield "were re-serialised", written.encode("utf-8", "surrogatepass")


def _possible_urls(store: Store) -> list[str]:
    if "{url}" not in store.scheme.signed:
        return []
    scheme, _, rest = store.url.partition("://")
    bare, swapped = rest.rstrip("/"), "http" if scheme == "https" else "https"
    shared = rest.rpartition("/")[0]
    ends = (bare, f"{bare}/", shared, f"{shared}/")
    return [f"{scheme}://{end}" for end in ends] + [f"{swapped}://{end}" for end in (rest, f"{bare}/")]


def _other_presets(store: Store, capture: Capture, secrets: list[Secret]) -> Iterator[Hint]:
    own = store.scheme
    for preset in PRESETS.values():
        is_other = (preset.headers, preset.signed) != (own.headers, own.signed)
        if is_other and find_signer(preset, secrets, capture.headers, capture.body, store.url):
            yield Hint(f"the signature would match with the preset {preset.name}", f'scheme = "{preset.name}"')


def _no_secret(store: Store) -> Hint:
    return Hint(
        "no secret of this store is known here",
        f"storehooks subscriptions apply --store {store.name}, or rotate if the [secrets] key was changed; "
        f"without an API, set [stores.{store.name}] signing_secrets",
    )


def _no_match(search: Search, capture: Capture) -> Hint:
    """Names every possible cause: a wrong scheme, a wrong secret and a changed body look the same."""
    unstored = omitted(capture.headers)
    about_unstored = f"; {OMITTED}{', '.join(map(printable, unstored))}" if unstored else ""
    if search.signatures:
        limit = " (the search reached its limit, so others were not tried)" if search.stopped else ""
        return Hint(
            "no known change makes the signature match: the store signs with a secret that is not configured, or in a "
            f"way that is not among the {search.tried:,} that were tried{limit}, or the body was changed in "
            f"transit{about_unstored}",
            "compare the secret at the store with the fingerprints above; if it is the right one, compare the scheme "
            "with the store's documentation",
        )
    if unstored:
        return Hint(
            f"no stored header contains a signature{about_unstored}",
            f'headers = ["{printable(unstored[0])}"], if that is the signature; later ones are stored with it',
        )
    return Hint(
        "no header contains a signature; besides the usual headers the delivery has "
        + (", ".join(map(printable, capture.custom_headers)) or "no others"),
        "turn on signing at the store, or find the proxy that removes the header",
    )


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
