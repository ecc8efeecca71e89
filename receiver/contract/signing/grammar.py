"""Grammar: a scheme as data, and what may not be written in it. Nothing here looks at a delivery."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

PLACEHOLDERS = ("body", "timestamp", "url", "header:NAME", "json:a.b")
Part = tuple[str, str]
"""A placeholder or a source, taken apart: ("header", "x-topic"), ("json", "data.id"), ("body", "")."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TOPIC = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_HEX = re.compile(r"[0-9a-fA-F]*")


class SchemeError(ValueError):
    """A scheme that is insecure or means nothing. `key` is the key to mend; the text says how."""

    def __init__(self, key: str, fix: str) -> None:
        super().__init__(fix)
        self.key = key


@dataclass(frozen=True)
class Secret:
    """One signing secret of a store. It knows its bytes and shows only its fingerprint."""

    key: bytes = field(repr=False)
    origin: str = field(default="", compare=False)
    not_after: datetime | None = None

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(b"storehooks fingerprint\0" + self.key).hexdigest()[:6]

    def is_active(self, now: float) -> bool:
        return self.not_after is None or now <= self.not_after.timestamp()


@dataclass(frozen=True)
class Sources:
    """Where an event's parts stand in a delivery; tried in order."""

    topic: tuple[str, ...] = ("json:type",)
    id: tuple[str, ...] = ("header:webhook-id",)
    resource_id: tuple[str, ...] = ("json:data.id", "json:id")
    data: tuple[str, ...] = ("json:data", "body")
    occurred: tuple[str, ...] = ("json:timestamp",)
    store: tuple[str, ...] = ()

    @cached_property
    def parts(self) -> dict[str, tuple[Part, ...]]:
        """Every source taken apart once, so that reading a delivery splits no text."""
        return {item.name: tuple(take_apart(source) for source in getattr(self, item.name)) for item in fields(self)}


@dataclass(frozen=True)
class Scheme:
    """How a store signs and what its deliveries look like. Building one that is unsafe raises SchemeError."""

    name: str
    headers: tuple[str, ...] = ("webhook-signature",)
    algorithm: Literal["hmac-sha256", "hmac-sha512"] = "hmac-sha256"
    encoding: Literal["hex", "base64"] = "hex"
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
    configured: frozenset[str] = field(default=frozenset(), compare=False)
    """Those of `topics` that the operator wrote; the others come with the preset."""

    def __post_init__(self) -> None:
        for check in CHECKS:
            check(self)

    @cached_property
    def header_names(self) -> tuple[str, ...]:
        return tuple(name.lower() for name in self.headers)

    @cached_property
    def reads(self) -> frozenset[str]:
        """Every header that says something under this scheme."""
        sources = (part for parts in self.event.parts.values() for part in parts)
        named = (name for kind, name in (*self.signed_parts, self.time_source, *sources) if kind == "header")
        return frozenset((*self.header_names, *named))

    @cached_property
    def template(self) -> tuple[bytes | Part, ...]:
        """`signed`, taken apart once: literal bytes, and placeholders as (kind, name)."""
        return tuple(_parse_template(self.signed))

    @cached_property
    def signed_parts(self) -> frozenset[Part]:
        return frozenset(part for part in self.template if not isinstance(part, bytes))

    @cached_property
    def time_source(self) -> Part:
        """`timestamp`, taken apart; ("", "") where the scheme has none."""
        return take_apart(self.timestamp)

    @cached_property
    def digest(self) -> str:
        return self.algorithm.removeprefix("hmac-")

    @cached_property
    def digest_size(self) -> int:
        return hashlib.new(self.digest).digest_size

    def signs(self, source: str) -> bool:
        """Whether the signature covers what stands at `source`, so that nobody else can have written it."""
        kind, name = take_apart(source)
        if kind == "header":
            timed = ("timestamp", "") in self.signed_parts and self.time_source == (kind, name)
            return timed or (kind, name) in self.signed_parts
        if kind == "sig":
            return ("timestamp", "") in self.signed_parts
        return ("body", "") in self.signed_parts or (kind, name) in self.signed_parts

    def key_of(self, text: str) -> bytes:
        """The key bytes in a secret as the store shows it. ValueError says what is wrong with it."""
        key = decode_secret(text.removeprefix(self.secret_prefix), self.secret_encoding)
        if not key:
            raise ValueError("it is empty")
        return key


def extend(
    parent: Scheme | None,
    *,
    name: str,
    changes: Mapping[str, Any],
    event: Mapping[str, tuple[str, ...]],
    topics: Mapping[str, str],
) -> Scheme:
    """A scheme that says something else than its parent; without a parent, than the grammar's defaults."""
    if parent is None and not changes.get("headers"):
        raise SchemeError("headers", "name the header that holds the signature, or set extends to a preset")
    base = parent or Scheme(name)
    scheme = replace(
        base,
        **changes,
        name=name,
        event=replace(base.event, **event),
        topics={**base.topics, **topics},
        configured=base.configured | set(topics),
    )
    if changes.get("tolerance") and not scheme.timestamp:
        raise SchemeError(
            "tolerance", 'tolerance needs a timestamp: set timestamp = "header:NAME", or take tolerance away'
        )
    return scheme


def take_apart(source: str) -> Part:
    """`header:X-Topic` as ("header", "x-topic"); header names do not mind their case."""
    kind, _, name = source.partition(":")
    return kind, name.lower() if kind == "header" else name


def _parse_template(signed: str) -> Iterator[bytes | Part]:
    end = 0
    for match in _PLACEHOLDER.finditer(signed):
        if literal := signed[end : match.start()]:
            yield literal.encode()
        yield take_apart(match[1])
        end = match.end()
    if literal := signed[end:]:
        yield literal.encode()


# Strict decoding: what Python's decoders let through (spaces, junk, missing padding) is refused


def strict_hex(text: str) -> bytes:
    if not _HEX.fullmatch(text) or len(text) % 2:
        raise ValueError("it is not hex")
    return bytes.fromhex(text)


def strict_base64(text: str) -> bytes:
    """Standard alphabet, full padding, no stray bits in the last character, nothing else."""
    try:
        decoded = b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, Base64Error):
        raise ValueError("it is not base64") from None
    if b64encode(decoded).decode() != text:
        raise ValueError("it is not canonical base64")
    return decoded


def decode_secret(text: str, encoding: str) -> bytes:
    """The bytes of a secret; stores show base64 secrets with and without padding."""
    if encoding == "utf8":
        return text.encode()
    if encoding == "hex":
        return strict_hex(text)
    bare = text.rstrip("=")
    return strict_base64(bare + "=" * (-len(bare) % 4))


# Checks: each refuses one kind of unsafe or meaningless scheme, and says the fix


def _check_headers(scheme: Scheme) -> None:
    if not scheme.headers:
        raise SchemeError("headers", "headers is empty: name the header that holds the signature")
    for name in scheme.headers:
        if not _HEADER_NAME.fullmatch(name):
            raise SchemeError("headers", f"{name!r} cannot be the name of a header")


def _check_form(scheme: Scheme) -> None:
    if scheme.sig_keys and not scheme.pair_sep:
        raise SchemeError("sig_keys", 'sig_keys needs pair_sep, the text between key and signature, such as "="')
    if scheme.pair_sep and not scheme.sig_keys:
        raise SchemeError("pair_sep", 'pair_sep needs sig_keys, the keys that hold signatures, such as ["v1"]')
    if scheme.list_sep and scheme.list_sep == scheme.pair_sep:
        raise SchemeError("list_sep", "list_sep and pair_sep are the same; a header cannot be split by both")
    if "" in scheme.sig_keys:
        raise SchemeError("sig_keys", "sig_keys holds an empty key; write the text before pair_sep")


def _check_signed(scheme: Scheme) -> None:
    if set("{}") & set(_PLACEHOLDER.sub("", scheme.signed)):
        raise SchemeError("signed", "signed has a brace without its partner; write placeholders like {body}")
    for kind, name in scheme.signed_parts:
        if (kind, bool(name)) not in _KNOWN_PLACEHOLDERS:
            written = f"{{{kind}:{name}}}" if name else f"{{{kind}}}"
            known = " ".join(f"{{{known}}}" for known in PLACEHOLDERS)
            raise SchemeError("signed", f"signed has {written}, which is unknown; there are {known}")
    if ("body", "") in scheme.signed_parts:
        return
    if not scheme.allow_unsigned_body:
        raise SchemeError(
            "signed",
            "signed leaves out {body}, so anybody could change the content; add it, or, where the store "
            "really does not sign it, set allow_unsigned_body = true",
        )
    if not scheme.signed_parts:
        raise SchemeError("signed", "signed is the same for every delivery; it must hold something of it")


_KNOWN_PLACEHOLDERS = {
    ("body", False),
    ("timestamp", False),
    ("url", False),
    ("header", True),
    ("json", True),
}


def _check_timestamp(scheme: Scheme) -> None:
    uses = ("timestamp", "") in scheme.signed_parts
    kind, name = scheme.time_source
    if not scheme.timestamp:
        if uses:
            raise SchemeError("timestamp", 'signed has {timestamp}; say where it stands: timestamp = "header:NAME"')
        return
    if kind not in ("header", "sig", "json") or not name:
        raise SchemeError("timestamp", 'timestamp is "header:NAME", "sig:KEY" or "json:a.b"')
    if kind == "sig":
        _check_time_in_signature(scheme, name)
    if not scheme.signs(scheme.timestamp):
        raise SchemeError(
            "timestamp",
            f"nothing signs {scheme.timestamp}, so anybody could set it; add {{timestamp}} to signed, or set "
            'timestamp = ""',
        )


def _check_time_in_signature(scheme: Scheme, name: str) -> None:
    if not scheme.pair_sep or not scheme.list_sep:
        raise SchemeError(
            "timestamp",
            f'timestamp = "sig:{name}" reads it from the signature header; that needs list_sep and pair_sep, '
            'such as "," and "="',
        )
    if name in scheme.sig_keys:
        raise SchemeError("timestamp", f"{name} is in sig_keys; it cannot be both signature and timestamp")


def _check_sources(scheme: Scheme) -> None:
    for what, parts in scheme.event.parts.items():
        for kind, name in parts:
            wanted = ("json", "body") if what == "data" else ("header", "json")
            if kind not in wanted or bool(name) != (kind != "body"):
                forms = ' or "body"' if what == "data" else ' or "header:NAME"'
                written = f"{kind}:{name}" if name else kind
                raise SchemeError(f"event.{what}", f'{written!r} is no source of it; write "json:a.b"{forms}')


def _check_dedupe(scheme: Scheme) -> None:
    if scheme.dedupe != "id":
        return
    for source in scheme.event.id:
        if not scheme.signs(source):
            raise SchemeError(
                "dedupe",
                f'dedupe = "id" trusts {source}, which is not signed: whoever sends an old delivery under a '
                'new id could hide an update; use dedupe = "id+body"',
            )


def _check_topics(scheme: Scheme) -> None:
    for theirs, ours in scheme.topics.items():
        if not _TOPIC.fullmatch(ours):
            raise SchemeError("topics", f'{theirs!r} maps to {ours!r}; write it like "order.created"')


def _check_numbers(scheme: Scheme) -> None:
    if not 200 <= scheme.success <= 299:
        raise SchemeError("success", "success is an answer that stores take as yes: 200 to 299")
    if scheme.tolerance < 0:
        raise SchemeError("tolerance", "tolerance is a number of seconds; 0 turns it off")


CHECKS = (
    _check_headers,
    _check_form,
    _check_signed,
    _check_timestamp,
    _check_sources,
    _check_dedupe,
    _check_topics,
    _check_numbers,
)
