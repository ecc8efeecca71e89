"""Scheme: how a store signs, as data; `sign` and `verify` are the only two things done with it.

Verification works on the raw bytes, before anything is parsed, and fails in one way: `Rejected`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

import orjson

from receiver.contract.errors import Rejected
from receiver.contract.event import follow

Headers = Mapping[str, str]
"""Header names in lower case; values as the server decoded them (latin-1)."""

MAX_CANDIDATES = 16
MAX_SIGNATURE_HEADER = 4096
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_DIGITS = re.compile(r"[0-9]{1,16}")
_HEX = re.compile(r"[0-9a-fA-F]*")


@dataclass(frozen=True)
class Sources:
    """Where an event's parts stand in a delivery; tried in order."""

    topic: tuple[str, ...] = ("json:type",)
    id: tuple[str, ...] = ("header:webhook-id",)
    resource_id: tuple[str, ...] = ("json:data.id", "json:id")
    data: tuple[str, ...] = ("json:data", "body")
    occurred: tuple[str, ...] = ("json:timestamp",)
    store: tuple[str, ...] = ()


@dataclass(frozen=True)
class Secret:
    """One signing secret of a store. It knows its bytes and shows only its fingerprint."""

    key: bytes = field(repr=False)
    origin: str = field(default="", compare=False)
    not_after: datetime | None = None

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(b"storehooks fingerprint\0" + self.key).hexdigest()[:6]

    def live(self, now: float) -> bool:
        return self.not_after is None or now <= self.not_after.timestamp()


@dataclass(frozen=True)
class Scheme:
    """How a store signs and what its deliveries look like. Design: a few lines of config."""

    name: str
    headers: tuple[str, ...] = ("webhook-signature",)
    algorithm: Literal["hmac-sha256", "hmac-sha512"] = "hmac-sha256"
    encoding: Literal["hex", "base64"] = "base64"
    list_sep: str = ""
    pair_sep: str = ""
    sig_keys: tuple[str, ...] = ()
    signed: str = "{body}"
    allow_unsigned_body: bool = False
    secret_prefix: str = ""
    secret_encoding: Literal["utf8", "base64", "hex"] = "utf8"  # noqa: S105
    timestamp: str = ""
    timestamp_unit: Literal["s", "ms", "rfc3339"] = "s"
    tolerance: int = 300
    success: int = 200
    dedupe: Literal["id+body", "id"] = "id+body"
    event: Sources = Sources()
    topics: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def template(self) -> tuple[bytes | tuple[str, str], ...]:
        """`signed`, taken apart once: literal bytes, and placeholders as (kind, name)."""
        return tuple(_parse_template(self.signed))

    @property
    def digest(self) -> str:
        return self.algorithm.removeprefix("hmac-")

    def key_of(self, text: str) -> bytes:
        """The key bytes in a secret as the store shows it. ValueError says what is wrong with it."""
        bare = text.removeprefix(self.secret_prefix) if self.secret_prefix else text
        match self.secret_encoding:
            case "utf8":
                key = bare.encode()
            case "hex":
                key = _strict_hex(bare)
            case "base64":
                key = _strict_base64(bare.rstrip("=") + "=" * (-len(bare.rstrip("=")) % 4))
        if not key:
            raise ValueError("it is empty")
        return key


STANDARD_WEBHOOKS = Scheme(
    name="standard-webhooks",
    list_sep=" ",
    pair_sep=",",
    sig_keys=("v1",),
    signed="{header:webhook-id}.{timestamp}.{body}",
    secret_prefix="whsec_",  # noqa: S106  the prefix is public
    secret_encoding="base64",  # noqa: S106
    timestamp="header:webhook-timestamp",
    dedupe="id",
)

PRESETS: dict[str, Scheme] = {scheme.name: scheme for scheme in (STANDARD_WEBHOOKS,)}


@dataclass(frozen=True)
class Verified:
    """A delivery that fits: by which secret, and the time it was signed at (if the scheme has one)."""

    secret: Secret
    timestamp: float | None


def verify(
    scheme: Scheme, *, secrets: Sequence[Secret], headers: Headers, body: bytes, now: float, url: str = ""
) -> Verified:
    """Check a delivery's signature over its raw bytes, or raise Rejected."""
    raw = _signature_header(scheme, headers)
    pairs = _pairs(scheme, raw)
    text, moment = _timestamp(scheme, headers, body, pairs)
    content = _signed_content(scheme, headers=headers, body=body, timestamp=text, url=url)
    secret = _first_fit(scheme, secrets, content, _candidates(scheme, pairs))
    _check_time(scheme, moment, now)
    if not secret.live(now):
        raise Rejected("secret-expired", f"signed with {secret.fingerprint}, which has ended")
    return Verified(secret=secret, timestamp=moment)


def sign(scheme: Scheme, *, secret: Secret, headers: Headers, body: bytes, now: float, url: str = "") -> dict[str, str]:
    """The headers a store would add to sign this delivery; what `verify` accepts."""
    added, text = _timestamp_header(scheme, now)
    given = {**headers, **added}
    content = _signed_content(scheme, headers=given, body=body, timestamp=text, url=url)
    mac = hmac.digest(secret.key, content, scheme.digest)
    value = mac.hex() if scheme.encoding == "hex" else b64encode(mac).decode()
    if scheme.sig_keys and scheme.pair_sep:
        value = f"{scheme.sig_keys[0]}{scheme.pair_sep}{value}"
        if scheme.timestamp.startswith("sig:"):
            value = f"{scheme.timestamp[4:]}{scheme.pair_sep}{text}{scheme.list_sep}{value}"
    return {**added, scheme.headers[0].lower(): value}


def read_source(source: str, headers: Headers, document: Any) -> Any:
    """The value at `header:NAME`, `json:a.b` or `body`; None where there is none."""
    kind, _, name = source.partition(":")
    match kind:
        case "header":
            return headers.get(name.lower())
        case "json":
            return follow(document, name)
        case "body":
            return document
        case _:
            return None


def _signature_header(scheme: Scheme, headers: Headers) -> str:
    for name in scheme.headers:
        if value := headers.get(name.lower()):
            if len(value) > MAX_SIGNATURE_HEADER:
                raise Rejected("malformed-signature", f"{name} is {len(value)} characters long")
            return value
    raise Rejected("no-signature", f"no header {' or '.join(scheme.headers)}")


def _pairs(scheme: Scheme, raw: str) -> list[tuple[str, str]]:
    """The header taken apart into (key, value); a plain value has the empty key."""
    items = raw.split(scheme.list_sep) if scheme.list_sep else [raw]
    if not scheme.pair_sep:
        return [("", item.strip()) for item in items]
    split = (item.strip().partition(scheme.pair_sep) for item in items)
    return [(key, value) for key, _, value in split]


def _candidates(scheme: Scheme, pairs: Iterable[tuple[str, str]]) -> list[bytes]:
    wanted = [value for key, value in pairs if not scheme.sig_keys or key in scheme.sig_keys]
    decode = _strict_hex if scheme.encoding == "hex" else _strict_base64
    size = hashlib.new(scheme.digest).digest_size
    found: list[bytes] = []
    for value in wanted[:MAX_CANDIDATES]:
        try:
            mac = decode(value)
        except ValueError:
            continue
        if len(mac) == size:
            found.append(mac)
    if not found:
        raise Rejected("malformed-signature", f"no {scheme.encoding} signature of {size} bytes in the header")
    return found


def _first_fit(scheme: Scheme, secrets: Sequence[Secret], content: bytes, candidates: Sequence[bytes]) -> Secret:
    """The secret that made one of the candidates. Every pair is compared, so time tells nothing."""
    fit: Secret | None = None
    for secret in secrets[:MAX_CANDIDATES]:
        expected = hmac.digest(secret.key, content, scheme.digest)
        for candidate in candidates:
            if hmac.compare_digest(expected, candidate) and fit is None:
                fit = secret
    if fit is None:
        raise Rejected("signature-mismatch", "the signature fits none of the store's secrets")
    return fit


def _timestamp(
    scheme: Scheme, headers: Headers, body: bytes, pairs: Iterable[tuple[str, str]]
) -> tuple[str, float | None]:
    """The delivery's time, as the text that was signed and as a number."""
    if not scheme.timestamp:
        return "", None
    kind, _, name = scheme.timestamp.partition(":")
    if kind == "sig":
        text: Any = next((value for key, value in pairs if key == name), None)
    else:
        text = read_source(scheme.timestamp, headers, _document(body) if kind == "json" else None)
    if text is None or text == "":
        raise Rejected("no-timestamp", f"no timestamp at {scheme.timestamp}")
    return str(text), _moment(scheme, str(text))


def _moment(scheme: Scheme, text: str) -> float:
    if scheme.timestamp_unit == "rfc3339":
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is not None and moment.tzinfo is not None:
            return moment.timestamp()
    elif _DIGITS.fullmatch(text):
        return int(text) / (1000 if scheme.timestamp_unit == "ms" else 1)
    raise Rejected("malformed-timestamp", f"the timestamp is not {scheme.timestamp_unit}")


def _check_time(scheme: Scheme, moment: float | None, now: float) -> None:
    if moment is None or not scheme.tolerance:
        return
    if moment < now - scheme.tolerance:
        raise Rejected("too-old", f"signed {now - moment:.0f} s ago, limit {scheme.tolerance} s")
    if moment > now + scheme.tolerance:
        raise Rejected("too-new", f"signed {moment - now:.0f} s ahead, limit {scheme.tolerance} s")


def _timestamp_header(scheme: Scheme, now: float) -> tuple[dict[str, str], str]:
    match scheme.timestamp_unit:
        case "s":
            text = str(int(now))
        case "ms":
            text = str(int(now * 1000))
        case "rfc3339":
            text = datetime.fromtimestamp(int(now)).astimezone().isoformat()
    kind, _, name = scheme.timestamp.partition(":")
    return ({name.lower(): text}, text) if kind == "header" else ({}, text)


def _signed_content(scheme: Scheme, *, headers: Headers, body: bytes, timestamp: str, url: str) -> bytes:
    content = bytearray()
    for part in scheme.template:
        if isinstance(part, bytes):
            content += part
            continue
        kind, name = part
        if kind == "body":
            content += body
            continue
        value: Any = {"timestamp": timestamp, "url": url}.get(kind)
        if kind in ("header", "json"):
            value = read_source(f"{kind}:{name}", headers, _document(body) if kind == "json" else None)
        if value is None:
            raise Rejected("incomplete", f"{kind}:{name} is signed, and missing")
        content += str(value).encode("latin-1" if kind == "header" else "utf-8", "replace")
    return bytes(content)


def _parse_template(signed: str) -> Iterable[bytes | tuple[str, str]]:
    end = 0
    for match in _PLACEHOLDER.finditer(signed):
        if literal := signed[end : match.start()]:
            yield literal.encode()
        kind, _, name = match.group(1).partition(":")
        yield kind, name
        end = match.end()
    if literal := signed[end:]:
        yield literal.encode()


def _document(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _strict_hex(text: str) -> bytes:
    if not _HEX.fullmatch(text) or len(text) % 2:
        raise ValueError("it is not hex")
    return bytes.fromhex(text)


def _strict_base64(text: str) -> bytes:
    """Standard alphabet, full padding, nothing else; what Python's decoder lets through is refused."""
    try:
        decoded = b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, Base64Error):
        raise ValueError("it is not base64") from None
    if b64encode(decoded).decode() != text:
        raise ValueError("it is not canonical base64")
    return decoded
