"""Detects the scheme of a captured delivery, from the delivery and its secret alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

import orjson
import tomli_w

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
# Ids of shops, apps, webhooks or subscriptions are equal in every delivery, and those of requests or traces differ in a
# redelivery. Standard Webhooks calls the id of a message `webhook-id`.
_ID_HEADER = re.compile(
    r"(.*[-_])?((delivery|message|msg|event|notification)[-_]?(id|uuid|guid)|delivery)|(webhook|svix)-id"
)


@dataclass(frozen=True)
class Detection:
    """The result: the scheme, or, if none matches, what was tried."""

    scheme: Scheme | None
    preset: str = ""
    """The preset that matches without changes; it needs no [schemes.NAME]."""
    tried: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Warnings: an algorithm that is not supported, a body that is not signed."""

    def toml(self, name: str) -> str:
        """Return the scheme as config lines, under this name; an empty text if none was found."""
        if self.scheme is None:
            return ""
        if self.preset:
            return _dump(name, {"extends": self.preset})
        return to_toml(self.scheme, name)


def detect(headers: Headers, body: bytes, secret_text: str, *, url: str = "") -> Detection:
    """Find the scheme under which `secret_text` made this delivery's signature. The age of the delivery is ignored."""
    document = _document(body)
    preset = _matching_preset(headers, body, secret_text, url)
    if preset:
        return Detection(preset, preset=preset.name)
    signatures = candidates.find_signatures(headers)
    times = candidates.find_timestamps(headers, document, signatures.values())
    ids = candidates.find_ids(headers, times, signatures.values())
    keys = candidates.decode_secret_variants(secret_text)
    notes: list[str] = []
    for match in candidates.find_matches(
        signatures, keys, candidates.possible_contents(body, url=url, times=times, ids=ids)
    ):
        scheme = _scheme_of(match, headers, document, notes)
        if scheme and _verifies(scheme, headers, body, secret_text, url):
            sources = scheme.event.resource_id
            if all(read_source(source, headers, document) is None for source in sources):
                notes.append(
                    f"no resource id was found: {' or '.join(sources)} is not in this delivery; set resource_id"
                )
            return Detection(scheme, notes=(*notes, _about_id(scheme)))
    if omitted := candidates.omitted(headers):
        notes.append(f"{candidates.OMITTED}{', '.join(omitted)}; if one of them is the signature, capture its value")
    return Detection(None, tried=_tried(signatures, times, ids, keys, url=url), notes=tuple(notes))


def to_toml(scheme: Scheme, name: str) -> str:
    """Return a scheme as `[schemes.NAME]`: the header, and every key that differs from the defaults."""
    default = Scheme(name)
    table = {"headers": list(scheme.headers), **_changes(scheme, default)}
    if sources := _changes(scheme.event, default.event):
        table["event"] = sources
    if scheme.topics:
        table["topics"] = dict(scheme.topics)
    if scheme.record:
        table["record"] = scheme.record.as_table()
    return _dump(name, table)


def _changes(given: Any, default: Any) -> dict[str, Any]:
    keys = [item.name for item in fields(given) if item.name not in ("name", "event", "topics", "record", "configured")]
    return {key: getattr(given, key) for key in keys if getattr(given, key) != getattr(default, key)}


def _dump(name: str, table: dict[str, Any]) -> str:
    return tomli_w.dumps({"schemes": {name: table}})


# Presets first: they also know topics and ids


def _matching_preset(headers: Headers, body: bytes, secret_text: str, url: str) -> Scheme | None:
    """Return the preset that matches. One that shares its header with another must also find its topic."""
    document = _document(body)
    matching = [preset for preset in PRESETS.values() if _verifies(preset, headers, body, secret_text, url)]
    named = [
        preset for preset in matching if any(read_source(source, headers, document) for source in preset.event.topic)
    ]
    alone = [
        preset
        for preset in matching
        if preset is next(other for other in PRESETS.values() if other.headers == preset.headers)
    ]
    return next(iter([*named, *alone]), None)


def _verifies(scheme: Scheme, headers: Headers, body: bytes, secret_text: str, url: str) -> bool:
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
        notes.append(
            f"the signature matches as HMAC-{match.algorithm.upper()} over {match.content.signed}, "
            "which is not supported"
        )
        return None
    if match.form.encoding not in ("hex", "base64"):
        notes.append(f"the signature matches as {match.form.encoding} in {match.form.header}, which is not supported")
        return None
    unsigned = "{body}" not in match.content.signed
    if unsigned:
        notes.append("the body is not signed: a captured delivery can be replayed with any other content")
    try:
        return _build(match, unsigned=unsigned, event=_sources(headers, document, match.form.header))
    except SchemeError as error:
        notes.append(f"the signature matches over {match.content.signed}, but {error}")
        return None


def _about_id(scheme: Scheme) -> str:
    """One delivery does not show what differs in each. So `dedupe = "id"` is never printed: it could lose events."""
    if scheme.event.id:
        return f"the id is assumed to be {' or '.join(scheme.event.id)}; in a second delivery it must be another one"
    return (
        "no delivery id was found; set id, if a header or field differs in a second delivery but not in a repeated one"
    )


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
        secret_prefix=match.secret.prefix,
        secret_encoding=match.secret.encoding,  # type: ignore[arg-type]
        timestamp=time.source if time else "",
        timestamp_unit=time.unit if time else "s",
        event=event,
    )


def _sources(headers: Headers, document: Any, signature: str) -> Sources:
    """Guess the sources of the event's parts from the names of headers and fields."""
    custom = [name for name in candidates.custom_headers(headers) if name != signature]
    ids = [name for name in custom if _ID_HEADER.fullmatch(name)]
    names = [name for name in custom if name not in ids and not name.endswith("-id")]
    data = [f"json:{key}" for key in _DATA_KEYS if isinstance(follow(document, key), dict)][:1]
    return Sources(
        topic=tuple(
            dict.fromkeys(
                (*_headers_with(names, "topic"), *_headers_with(names, "event"), *_present(document, _TOPIC_KEYS))
            )
        ),
        id=(*_headers_with(ids), *_present(document, _ID_KEYS)),
        resource_id=(*(f"{source}.id" for source in data), "json:id"),
        data=(*data, "body"),
        occurred=_present(document, _TIME_KEYS),
        store=(*_headers_with(names, "domain"), *_present(document, _STORE_KEYS)),
    )


def _headers_with(names: list[str], word: str = "") -> tuple[str, ...]:
    return tuple(f"header:{name}" for name in names if word in name)[:2]


def _present(document: Any, keys: tuple[str, ...]) -> tuple[str, ...]:
    found = (key for key in keys if isinstance(document, dict) and isinstance(document.get(key), str | int))
    return tuple(f"json:{key}" for key in found)[:2]


def _tried(
    signatures: dict[bytes, candidates.SignatureForm],
    times: list[candidates.Timestamp],
    ids: list[tuple[str, str]],
    keys: list[candidates.SecretVariant],
    *,
    url: str,
) -> tuple[str, ...]:
    """What the search tried, for the error message."""
    where = sorted({form.header for form in signatures.values()})
    templates = sum(1 for _ in candidates.possible_contents(b"", url=url, times=times, ids=ids))
    return (
        f"{len(PRESETS)} presets",
        f"signatures: {len(signatures)}, in {', '.join(where)}" if where else "signatures: none in any header",
        f"timestamps: {', '.join(time.source for time in times) or 'none'}",
        f"other headers: {', '.join(name[8:-1] for name, _ in ids) or 'none'}",
        f"the secret read as {', '.join(_name_of(key) for key in keys) or 'nothing'}",
        f"{templates} templates of the signed content" + ("" if url else ", none with a URL"),
    )


def _name_of(variant: candidates.SecretVariant) -> str:
    return f"{variant.encoding} without its prefix" if variant.prefix else variant.encoding


def _document(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
