"""Signs and verifies deliveries by a scheme.

Verification works on the raw bytes, before the body is parsed, and fails with `DeliveryRefused` only.
Each step is a function, so that `explain` shows exactly the steps of `verify`.
"""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hmac import compare_digest
from typing import Any, NamedTuple
from urllib.parse import urlencode

import orjson

from receiver.contract.errors import DeliveryRefused
from receiver.contract.signing.decoding import strict_base64, strict_base64url, strict_hex
from receiver.contract.signing.grammar import Scheme, SchemeError, Secret  # noqa: F401  also for others
from receiver.contract.signing.presets import PRESETS, STANDARD_WEBHOOKS  # noqa: F401  for others
from receiver.contract.signing.scheme_checks import MAX_POSITIONS
from receiver.contract.signing.sources import (
    BODY,
    TIMESTAMP,
    BodyFields,
    Headers,
    Part,
    header_bytes,
    parse_source,
    put,
    reader,
    scalar_text,
    unverified_text,
)

Pairs = list[tuple[str, str]]

MAX_CANDIDATES = 16
MAX_SECRETS = 16
"""The number of signing secrets of one store in the config."""
MAX_LEARNED = 48
"""The number of active secrets of one store in the keyring. Each subscription may have its own."""
MAX_ENDED = 48
"""The number of secrets of one store in the keyring that have an end. A rotation sets one for each active secret."""
MAX_TRIED = MAX_SECRETS + MAX_LEARNED + MAX_ENDED
"""The number of secrets that a delivery is verified with."""
MAX_SIGNATURE_HEADER = 4096
_DIGITS = re.compile(r"0|[1-9][0-9]{0,15}")  # one form for each time: a zero could belong to the part before it
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_FORMS = {"s": "[1-9][0-9]{9}", "ms": "[1-9][0-9]{12}", "rfc3339": _RFC3339.pattern}
"""Each unit's timestamps of this age."""
_BODY_BEGINS = re.compile(rb'[={["]')
_DECODERS = {"hex": strict_hex, "base64": strict_base64, "base64url": strict_base64url}


class Verified(NamedTuple):
    """A valid signature: the secret it was made with, the time of signing where the scheme has one, what it covers."""

    secret: Secret
    timestamp: float | None
    content: bytes


def verify(
    scheme: Scheme,
    *,
    secrets: Sequence[Secret],
    headers: Headers,
    body: bytes | BodyFields,
    now: float,
    url: str = "",
) -> Verified:
    """Verify a delivery's signature over its raw bytes, or raise DeliveryRefused. BodyFields that are given for several
    schemes are parsed once."""
    fields = body if isinstance(body, BodyFields) else BodyFields(body)
    pairs = split_signatures(scheme, find_signatures(scheme, headers, fields))
    candidates = candidates_in(scheme, pairs)
    text = read_timestamp(scheme, headers, fields, pairs) if scheme.signs_time else ""
    content = scheme.signed_content(headers, fields, text, url)
    secret = find_secret(scheme, secrets, content, candidates, now)
    if secret is None:
        raise DeliveryRefused("signature-mismatch", "invalid signature: it matches none of the store's secrets")
    if not secret.is_active(now):
        raise DeliveryRefused("secret-expired", f"signed with {secret.fingerprint}, which has expired")
    if not scheme.timestamp or not scheme.tolerance:
        if scheme.signs_time and _has_separator(scheme, TIMESTAMP, text):
            parse_timestamp(scheme, text)  # else it may hold a part of what is signed next to it
        return Verified(secret, None, content)
    # Checked last: before that it may be forged.
    moment = parse_timestamp(scheme, text or read_timestamp(scheme, headers, fields, pairs))
    check_timestamp(scheme, moment, now)
    return Verified(secret, moment, content)


class Signed(NamedTuple):
    """What a store adds to a delivery to sign it."""

    headers: dict[str, str]
    """Its headers and query fields, as `?NAME`."""
    body: bytes
    """Changed where the signature is a field of it."""


def sign(scheme: Scheme, *, secret: Secret, headers: Headers, body: bytes, now: float, url: str = "") -> Signed:
    """Sign a delivery as the store would, in the first place where the scheme looks for a signature.

    A header that the scheme signs must be in `headers`, and a timestamp that it reads from the body must be
    in the body: DeliveryRefused says which one is missing.
    """
    kind, name = scheme.timestamp_source
    text = format_timestamp(scheme, now) if kind in ("header", "sig") else ""
    added = {name: text} if kind == "header" else {}
    given, fields = {**headers, **added}, BodyFields(body)
    if kind in ("json", "form") and TIMESTAMP in scheme.signed_parts:
        text = read_timestamp(scheme, given, fields, [])
    mac = secret.macs[scheme.mac](scheme.signed_content(given, fields, text, url))
    pairs = [(name, text)] if kind == "sig" else []
    pairs.append((next(iter(scheme.signature_keys), ""), encode_mac(scheme, mac)))
    signature = write_signature(scheme, pairs)
    kind, name = scheme.places[0][1]
    if kind == "header":
        return Signed({**added, name: signature}, body)
    return Signed(added, _with_field(body, (kind, name), signature))


def _with_field(body: bytes, part: Part, text: str) -> bytes:
    kind, name = part
    if kind == "form":
        return body + (b"&" if body else b"") + urlencode({name: text}).encode()
    document = orjson.loads(body)
    put(document, name, text, overwrite=True)
    return orjson.dumps(document)


# The steps of verification, in their order


def find_signatures(scheme: Scheme, headers: Headers, fields: BodyFields) -> list[tuple[str, str]]:
    """Return where signatures are, as written in the scheme, and their texts. Some stores send one for each key."""
    found = []
    for place, part in scheme.places:
        kind, name = part
        if value := headers.get(name) if kind == "header" else unverified_text(part, fields):
            if len(value) > MAX_SIGNATURE_HEADER:
                raise DeliveryRefused("malformed-signature", f"{place} is {len(value)} characters long")
            found.append((place, value))
    if not found:
        raise DeliveryRefused("no-signature", f"no {' or '.join(_names(scheme))}")
    return found


def _names(scheme: Scheme) -> list[str]:
    return [*(f"header {name}" for name in scheme.headers), *scheme.signature]


def split_signatures(scheme: Scheme, found: list[tuple[str, str]]) -> Pairs:
    """Split each text into (key, value). A plain value has the empty key and is never split: base64 may end in `=`."""
    pairs: Pairs = []
    list_sep, pair_sep = scheme.list_sep, scheme.pair_sep
    for _, raw in found:
        items = raw.split(list_sep) if list_sep else (raw,)
        if pair_sep:
            for item in items:
                key, sep, value = item.strip().partition(pair_sep)
                pairs.append((key, value) if sep else ("", key))
        elif scheme.sig_index < 0:
            pairs += [("", item.strip()) for item in items]
        else:
            pairs += [(str(position), item.strip()) for position, item in enumerate(items[:MAX_POSITIONS])]
    return pairs


def candidates_in(scheme: Scheme, pairs: Pairs) -> list[bytes]:
    """Return every well-formed signature of the right length, at most MAX_CANDIDATES."""
    keys, size = scheme.signature_keys, scheme.digest_size
    decode = _DECODERS[scheme.encoding]
    found: list[bytes] = []
    tried = 0
    for key, value in pairs:
        if (keys and key not in keys) or tried == MAX_CANDIDATES:
            continue
        tried += 1
        try:
            mac = decode(value)
        except ValueError:
            continue
        if len(mac) == size:
            found.append(mac)
    if not found:
        raise DeliveryRefused("malformed-signature", f"no {scheme.encoding} signature of {size} bytes in the header")
    return found


def read_timestamp(scheme: Scheme, headers: Headers, fields: BodyFields, pairs: Pairs) -> str:
    """Return the delivery's timestamp as the text that was signed."""
    kind, name = scheme.timestamp_source
    if kind == "sig":
        text = next((value for key, value in pairs if key == name), None)
    else:
        text = headers.get(name) if kind == "header" else unverified_text((kind, name), fields)
    if not text:
        raise DeliveryRefused("no-timestamp", f"no timestamp at {scheme.timestamp}")
    return text


def parse_timestamp(scheme: Scheme, text: str) -> float:
    """Return the timestamp as seconds since 1970."""
    return _moment(text, scheme.timestamp_unit)


@lru_cache(maxsize=512)  # many deliveries have the same timestamp
def _moment(text: str, unit: str) -> float:
    """Python's own parsers accept `1_700`, `nan` and Arabic digits."""
    if unit == "rfc3339":
        if _RFC3339.fullmatch(text):
            try:
                return datetime.fromisoformat(text).timestamp()
            except (ValueError, OverflowError):
                pass
    elif _DIGITS.fullmatch(text):
        return int(text) / (1000 if unit == "ms" else 1)
    units = {"s": "whole seconds since 1970", "ms": "milliseconds since 1970", "rfc3339": "an RFC 3339 time"}
    raise DeliveryRefused("malformed-timestamp", f"the timestamp is not {units[unit]}")


def check_timestamp(scheme: Scheme, moment: float, now: float) -> None:
    if moment < now - scheme.tolerance:
        raise DeliveryRefused("too-old", f"signed {now - moment:.0f} s ago, limit {scheme.tolerance} s")
    if moment > now + scheme.tolerance:
        raise DeliveryRefused("too-new", f"signed {moment - now:.0f} s in the future, limit {scheme.tolerance} s")


def find_secret(
    scheme: Scheme, secrets: Sequence[Secret], content: bytes, candidates: Sequence[bytes], now: float
) -> Secret | None:
    """Return the secret that made one of the candidates, or None. An active secret is preferred to an expired one.

    Every secret is tried on every candidate, so that the time taken reveals nothing.
    """
    found, mac = None, scheme.mac
    for secret in secrets[:MAX_TRIED]:
        expected = secret.macs[mac](content)
        for candidate in candidates:
            if compare_digest(expected, candidate) and (found is None or found.is_active(now) < secret.is_active(now)):
                found = secret
    return found


def id_has_separator(scheme: Scheme, headers: Headers, document: Any) -> bool:
    """Whether the delivery id contains the text that separates it from another signed part."""
    for name, separator in scheme.id_separators:
        if separator in header_bytes(headers.get(name, "")):
            return True
    for read, separator in scheme.id_field_separators:  # noqa: SIM110  any() takes twice as long
        if separator in _field_bytes(read(headers, document)):
            return True
    return False


def joined_id(scheme: Scheme, headers: Headers, document: Any) -> bytes:
    """The text of the delivery id and of the signed parts next to it; empty if the id is not next to any."""
    sources = (part for part in scheme.event.parts["id"] if read_part(part, headers, document) not in (None, ""))
    run = scheme.joined_ids.get(next(sources, ("", "")), ())
    return b"".join(part if isinstance(part, bytes) else _part_bytes(part, headers, document) for part in run)


def _part_bytes(part: Part, headers: Headers, document: Any) -> bytes:
    value = read_part(part, headers, document)
    return header_bytes(value or "") if part[0] == "header" else _field_bytes(value)


def _field_bytes(value: Any) -> bytes:
    return (scalar_text(value) or "").encode("utf-8", "surrogatepass")


def may_be_cut(scheme: Scheme, headers: Headers, body: bytes, *, is_form: bool) -> bool:
    """Whether the same signed bytes may be another delivery, whose signed headers and body end elsewhere.

    Then a signed header contains its separator, or the body may contain a part of a signed header or the timestamp.
    The rest of a form that was cut may be a form. But its beginning is in a header then, after the separator.
    """
    names = [part for part in scheme.signed_parts if part[0] == "header"]
    if not names or BODY not in scheme.signed_parts:
        return False
    if is_form:
        first, last = body.partition(b"&")[0], body.rpartition(b"=")[2]
        in_header = any(_has_part_of_a_form(scheme, part, header_bytes(headers.get(part[1], ""))) for part in names)
        return in_header or first.count(b"=") > 1 or _has_part_of_others(scheme, first.partition(b"=")[0], last)
    # Only on the outer side of all brackets: inside them it is a part of the document.
    start = min(at for at in (body.find(b"{"), body.find(b"["), len(body)) if at >= 0)
    end = max(body.rfind(b"}"), body.rfind(b"]")) + 1
    has_separator = any(_has_separator(scheme, part, headers.get(part[1], "")) for part in names)
    return has_separator or _has_part_of_others(scheme, body[:start], body[end:])


def _has_separator(scheme: Scheme, part: Part, value: str) -> bool:
    """Whether a signed value contains the text that separates it from another signed part."""
    return any(between in header_bytes(value) for left, between, right in scheme.joints if part in (left, right))


def _has_part_of_a_form(scheme: Scheme, part: Part, value: bytes) -> bool:
    """Whether a signed header contains its separator and, if the body follows, the beginning of a body after that."""
    is_before = scheme.template.index(part) < scheme.template.index(BODY)
    separators = [between for left, between, right in scheme.joints if part in (left, right)]
    tails = [value.partition(between)[2] if between else value for between in separators if between in value]
    return any(_BODY_BEGINS.search(tail) for tail in tails) if is_before else bool(tails)


def _has_part_of_others(scheme: Scheme, before: bytes, after: bytes) -> bool:
    """Whether the begin of a body or its end has what separates it from a signed header, or from the timestamp with a
    timestamp there."""
    forms = {"header": b"", "timestamp": _FORMS[scheme.timestamp_unit].encode()}
    for left, between, right in scheme.joints:
        separator = re.escape(between)
        if right == BODY and left[0] in forms and re.search(forms[left[0]] + separator, before):
            return True
        if left == BODY and right[0] in forms and re.search(separator + forms[right[0]], after):
            return True
    return False


# Reading and writing the parts of a delivery


def read_source(source: str, headers: Headers, document: Any) -> Any:
    """Return the value at `header:NAME`, `json:a.b` or `body`, or None."""
    return read_part(parse_source(source), headers, document)


def read_part(part: Part, headers: Headers, document: Any) -> Any:
    return reader(part)(headers, document)


def write_signature(scheme: Scheme, pairs: Pairs) -> str:
    """The reverse of `split_signatures`."""
    if scheme.sig_index >= 0:
        texts = dict(pairs)
        return scheme.list_sep.join(texts.get(str(at), "") for at in range(max(map(int, texts)) + 1))
    return scheme.list_sep.join(f"{key}{scheme.pair_sep}{value}" if key else value for key, value in pairs)


def encode_mac(scheme: Scheme, mac: bytes) -> str:
    if scheme.encoding == "base64url":
        return urlsafe_b64encode(mac).rstrip(b"=").decode()
    return mac.hex() if scheme.encoding == "hex" else b64encode(mac).decode()


def format_timestamp(scheme: Scheme, now: float) -> str:
    """The reverse of `parse_timestamp`."""
    if scheme.timestamp_unit == "rfc3339":
        return datetime.fromtimestamp(int(now), UTC).isoformat().replace("+00:00", "Z")
    return str(int(now * 1000) if scheme.timestamp_unit == "ms" else int(now))
