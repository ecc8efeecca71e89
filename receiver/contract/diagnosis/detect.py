"""Detect: the scheme that signed a captured delivery, found with nothing but the delivery and the secret."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

import orjson

from receiver.contract.diagnosis import candidates
from receiver.contract.errors import DeliveryRefused
from receiver.contract.event import follow
from receiver.contract.signing.grammar import Scheme, SchemeError, Secret, Sources
from receiver.contract.signing.signatures import PRESETS, Headers, read_source, verify

UNSUPPORTED = ("sha1", "sha384")
_TOPIC_KEYS = ("type", "event", "topic", "event_type", "eventType", "name", "scope", "action")
_DATA_KEYS = ("data", "payload", "resource", "object", "body")
_TIME_KEYS = ("timestamp", "created_at", "createdAt", "occurred_at", "occurredAt", "time", "date")
_STORE_KEYS = (
    "store_id",
    "storeId",
    "shop_id",
    "shopId",
    "merchant_id",
    "merchant",
    "store",
    "shop",
    "domain",
)
_ID_KEYS = ("event_id", "eventId", "delivery_id", "deliveryId", "notification_id", "message_id")


@dataclass(frozen=True)
class Detection:
    """What was found: the scheme, or, where there is none, what was tried."""

    scheme: Scheme | None
    preset: str = ""
    """The preset that fits as it is; then no [schemes.NAME] is needed."""
    tried: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know: an algorithm that is not supported, a body that is not signed."""

    def toml(self, name: str) -> str:
        """The lines that make this scheme work."""
        if self.scheme is None:
            return ""
        if self.preset:
            return f'[schemes.{_key(name)}]\nextends = "{self.preset}"\n'
        return to_toml(self.scheme, name)


def detect(headers: Headers, body: bytes, secret_text: str, *, url: str = "") -> Detection:
    """Find the scheme under which `secret_text` made this delivery's signature. Time is not judged."""
    document = _document(body)
    preset = _fitting_preset(headers, body, secret_text, url)
    if preset:
        return Detection(preset, preset=preset.name)
    signatures = candidates.signatures_in(headers)
    times = candidates.times_in(headers, document, signatures.values())
    ids = candidates.ids_in(headers, times, signatures.values())
    keys = candidates.readings(secret_text)
    notes: list[str] = []
    for match in candidates.matches(signatures, keys, candidates.contents(body, url=url, times=times, ids=ids)):
        scheme = _scheme_of(match, headers, document, notes)
        if scheme and _fits(scheme, headers, body, secret_text, url):
            return Detection(scheme, notes=tuple(notes))
    return Detection(None, tried=_tried(signatures, times, ids, keys, url=url), notes=tuple(notes))


def to_toml(scheme: Scheme, name: str) -> str:
    """A scheme as `[schemes.NAME]`: whatever differs from the grammar's defaults."""
    plain = Scheme(name)
    table = f"schemes.{_key(name)}"
    lines = [f"[{table}]", *_changes(scheme, plain, always=("headers",))]
    if events := _changes(scheme.event, plain.event):
        lines += [f"[{table}.event]", *events]
    if scheme.topics:
        topics = (f"{_value(theirs)} = {_value(ours)}" for theirs, ours in scheme.topics.items())
        lines += [f"[{table}.topics]", *topics]
    return "\n".join(lines) + "\n"


def _changes(given: Any, plain: Any, always: tuple[str, ...] = ()) -> list[str]:
    keys = [item.name for item in fields(given) if item.name not in ("name", "event", "topics", "configured")]
    return [
        f"{key} = {_value(getattr(given, key))}"
        for key in keys
        if key in always or getattr(given, key) != getattr(plain, key)
    ]


def _value(value: Any) -> str:
    """TOML takes JSON's strings, numbers, flags and lists as they are, but for one character."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else _value(name)


# Presets first: they know topics and ids too


def _fitting_preset(headers: Headers, body: bytes, secret_text: str, url: str) -> Scheme | None:
    """The preset that fits. One that shares its header with another must also find its topic."""
    document = _document(body)
    fitting = [preset for preset in PRESETS.values() if _fits(preset, headers, body, secret_text, url)]
    named = [
        preset for preset in fitting if any(read_source(source, headers, document) for source in preset.event.topic)
    ]
    alone = [
        preset
        for preset in fitting
        if preset is next(other for other in PRESETS.values() if other.headers == preset.headers)
    ]
    return next(iter([*named, *alone]), None)


def _fits(scheme: Scheme, headers: Headers, body: bytes, secret_text: str, url: str) -> bool:
    try:
        secret = Secret(scheme.key_of(secret_text))
        timeless = replace(scheme, tolerance=0)
        verify(timeless, secrets=[secret], headers=headers, body=body, now=0.0, url=url)
    except (ValueError, DeliveryRefused):
        return False
    return True


# From a match to a scheme


def _scheme_of(match: candidates.Match, headers: Headers, document: Any, notes: list[str]) -> Scheme | None:
    if match.algorithm in UNSUPPORTED:
        notes.append(f"it fits as HMAC-{match.algorithm.upper()} over {match.content.signed}, which is not supported")
        return None
    if match.form.encoding not in ("hex", "base64"):
        notes.append(f"it fits as {match.form.encoding} in {match.form.header}, which is not supported")
        return None
    unsigned = "{body}" not in match.content.signed
    if unsigned:
        notes.append("the body is not signed: whoever captures one delivery can send any other content")
    try:
        scheme = _build(match, unsigned=unsigned, event=_sources(headers, document, match.form.header))
    except SchemeError as error:
        notes.append(f"it fits over {match.content.signed}, but {error}")
        return None
    signed_ids = scheme.event.id and all(scheme.signs(source) for source in scheme.event.id)
    return replace(scheme, dedupe="id") if signed_ids else scheme


def _build(match: candidates.Match, *, unsigned: bool, event: Sources) -> Scheme:
    form, time = match.form, match.content.time
    return Scheme(
        "detected",
        headers=(form.header,),
        algorithm="hmac-sha512" if match.algorithm == "sha512" else "hmac-sha256",
        encoding="hex" if form.encoding == "hex" else "base64",
        list_sep=form.list_sep,
        pair_sep=form.pair_sep,
        sig_keys=(form.key,) if form.pair_sep else (),
        signed=match.content.signed,
        allow_unsigned_body=unsigned,
        secret_prefix=match.reading.prefix,
        secret_encoding=match.reading.encoding,  # type: ignore[arg-type]
        timestamp=time.source if time else "",
        timestamp_unit=time.unit if time else "s",
        event=event,
    )


def _sources(headers: Headers, document: Any, signature: str) -> Sources:
    """Where the event's parts seem to stand, by the names things have."""
    names = [name for name in candidates.uncommon(headers) if name != signature]
    data = [f"json:{key}" for key in _DATA_KEYS if isinstance(follow(document, key), dict)][:1]
    return Sources(
        topic=(
            *_headers_with(names, "topic"),
            *_headers_with(names, "event"),
            *_present(document, _TOPIC_KEYS),
        ),
        id=(*_headers_with(names, "delivery"), *_headers_with(names, "-id"), *_present(document, _ID_KEYS)),
        resource_id=(*(f"{source}.id" for source in data), "json:id"),
        data=(*data, "body"),
        occurred=_present(document, _TIME_KEYS),
        store=(*_headers_with(names, "domain"), *_present(document, _STORE_KEYS)),
    )


def _headers_with(names: list[str], word: str) -> tuple[str, ...]:
    wanted = [name for name in names if word in name and (word != "event" or not name.endswith("-id"))]
    return tuple(f"header:{name}" for name in wanted[:2])


def _present(document: Any, keys: tuple[str, ...]) -> tuple[str, ...]:
    found = (key for key in keys if isinstance(document, dict) and isinstance(document.get(key), str | int))
    return tuple(f"json:{key}" for key in found)[:2]


def _tried(
    signatures: dict[bytes, candidates.Form],
    times: list[candidates.Time],
    ids: list[tuple[str, str]],
    keys: list[candidates.Reading],
    *,
    url: str,
) -> tuple[str, ...]:
    """What the search had to work with, for a person who knows more."""
    where = sorted({form.header for form in signatures.values()})
    templates = sum(1 for _ in candidates.contents(b"", url=url, times=times, ids=ids))
    return (
        f"{len(PRESETS)} presets",
        f"signatures: {len(signatures)}, in {', '.join(where)}" if where else "signatures: none in any header",
        f"times: {', '.join(time.source for time in times) or 'none'}",
        f"other headers: {', '.join(name[8:-1] for name, _ in ids) or 'none'}",
        f"the secret as {', '.join(_called(key) for key in keys) or 'nothing'}",
        f"{templates} ways to put the signed content together" + ("" if url else ", none with a URL"),
    )


def _called(reading: candidates.Reading) -> str:
    return f"{reading.encoding} without its prefix" if reading.prefix else reading.encoding


def _document(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
