"""The grammar of schemes: how a store signs, as data, and the checks that refuse an unsafe scheme.

`signatures` applies a scheme to deliveries.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

from receiver.contract.signing.decoding import decode_secret
from receiver.contract.signing.mac import Mac, keyed
from receiver.contract.signing.sources import (
    PLACEHOLDER,
    Filler,
    Part,
    Reader,
    filler,
    first_reader,
    joints,
    parse_source,
    parse_template,
    reader,
)

PLACEHOLDERS = ("body", "timestamp", "url", "header:NAME", "json:a.b")

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TOPIC = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


class SchemeError(ValueError):
    """A scheme is unsafe or meaningless. `key` is the config key to change; the message says how."""

    def __init__(self, key: str, fix: str) -> None:
        super().__init__(fix)
        self.key = key


@dataclass(frozen=True)
class Secret:
    """One signing secret of a store. Its `repr` never shows the key; people see the fingerprint."""

    key: bytes = field(repr=False)
    origin: str = field(default="", compare=False)
    not_after: datetime | None = None

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(b"storehooks fingerprint\0" + self.key).hexdigest()[:6]

    @cached_property
    def macs(self) -> dict[str, Mac]:
        """For each hash, the function that signs with this key."""
        return {digest: keyed(self.key, digest) for digest in ("sha256", "sha512")}

    def is_active(self, now: float) -> bool:
        return self.not_after is None or now <= self.not_after.timestamp()


@dataclass(frozen=True)
class Sources:
    """Where the parts of an event are found in a delivery. The sources of a part are tried in order."""

    topic: tuple[str, ...] = ("json:type",)
    id: tuple[str, ...] = ("header:webhook-id",)
    resource_id: tuple[str, ...] = ("json:data.id", "json:id")
    data: tuple[str, ...] = ("json:data", "body")
    occurred: tuple[str, ...] = ("json:timestamp",)
    store: tuple[str, ...] = ()

    @cached_property
    def readers(self) -> dict[str, Reader]:
        """For each part of an event, the function that reads it."""
        return {what: first_reader(parts) for what, parts in self.parts.items()}

    @cached_property
    def data_readers(self) -> tuple[tuple[str, Reader], ...]:
        return tuple((path, reader((kind, path))) for kind, path in self.parts["data"])

    @cached_property
    def parts(self) -> dict[str, tuple[Part, ...]]:
        """Every source, parsed once, so that reading a delivery parses no text."""
        return {item.name: tuple(parse_source(source) for source in getattr(self, item.name)) for item in fields(self)}


@dataclass(frozen=True)
class Scheme:
    """How a store signs and where its deliveries hold topic, id and data. An unsafe scheme raises SchemeError."""

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
    """The keys of `topics` that come from the config; the others come from the preset."""

    def __post_init__(self) -> None:
        for check in CHECKS:
            check(self)

    @cached_property
    def header_names(self) -> tuple[str, ...]:
        return tuple(name.lower() for name in self.headers)

    @cached_property
    def reads(self) -> frozenset[str]:
        """Every header that this scheme reads."""
        sources = (part for parts in self.event.parts.values() for part in parts)
        named = (name for kind, name in (*self.signed_parts, self.timestamp_source, *sources) if kind == "header")
        return frozenset((*self.header_names, *named))

    @cached_property
    def template(self) -> tuple[bytes | Part, ...]:
        """`signed`, parsed once: literal bytes, and placeholders as (kind, name).

        The source of the timestamp is the timestamp, under each of its two names.
        """
        parts = parse_template(self.signed)
        return tuple(("timestamp", "") if self.timestamp and part == self.timestamp_source else part for part in parts)

    @cached_property
    def signed_content(self) -> Filler:
        """The function that makes the bytes that the store signed from headers, body, timestamp and URL."""
        return filler(self.template)

    @cached_property
    def signed_parts(self) -> frozenset[Part]:
        return frozenset(part for part in self.template if not isinstance(part, bytes))

    @cached_property
    def signs_time(self) -> bool:
        return ("timestamp", "") in self.signed_parts

    @cached_property
    def id_separators(self) -> tuple[tuple[str, bytes], ...]:
        """Each signed header that holds a delivery id, with each separator between it and another signed part.

        An id that contains the separator could be cut there: the same signed bytes with another id. An empty separator
        is in every id.
        """
        ids = {part for part in self.event.parts["id"] if part[0] == "header"} & self.signed_parts
        joints = self.joints
        return tuple((part[1], between) for left, between, right in joints for part in (left, right) if part in ids)

    @cached_property
    def joined_ids(self) -> dict[Part, tuple[bytes | Part, ...]]:
        """Each signed header that holds a delivery id and is next to other signed headers, with all of these in order.

        Their joined text is the same wherever it is cut into headers.
        """
        grouped = groupby(self.template, key=lambda part: isinstance(part, bytes) or part[0] == "header")
        runs = [tuple(run) for is_run, run in grouped if is_run]
        joined = [run for run in runs if sum(not isinstance(part, bytes) for part in run) > 1]
        return {part: run for run in joined for part in run if part in self.event.parts["id"]}

    @cached_property
    def joints(self) -> tuple[tuple[Part, bytes, Part], ...]:
        """Each two placeholders of `signed` that follow one another, with the text between them."""
        return tuple(joints(self.template))

    @cached_property
    def timestamp_source(self) -> Part:
        """`timestamp`, parsed; ("", "") where the scheme has none."""
        return parse_source(self.timestamp)

    @cached_property
    def digest(self) -> str:
        return self.algorithm.removeprefix("hmac-")

    @cached_property
    def digest_size(self) -> int:
        return hashlib.new(self.digest).digest_size

    def signs(self, source: str) -> bool:
        """Whether the signature covers the value at `source`, so that only the store can have written it."""
        part = parse_source(source)
        timed = part == self.timestamp_source and ("timestamp", "") in self.signed_parts
        in_body = part[0] == "json" and ("body", "") in self.signed_parts
        return timed or in_body or part in self.signed_parts

    def key_of(self, text: str) -> bytes:
        """Decode a secret, as the store shows it, to the key. Raises ValueError with the reason."""
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
    """Return the parent with changes. Without a parent, start from the grammar's defaults."""
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
            "tolerance", 'tolerance needs a timestamp: set timestamp = "header:NAME", or remove tolerance'
        )
    return scheme


def encode_secret(scheme: Scheme, key: bytes) -> str:
    """A key as the text of a secret, in the form that the scheme uses."""
    encoding = scheme.secret_encoding
    return scheme.secret_prefix + (b64encode(key).decode() if encoding == "base64" else key.hex())


# Checks: each refuses one kind of unsafe or meaningless scheme. The message is the fix


def _check_headers(scheme: Scheme) -> None:
    if not scheme.headers:
        raise SchemeError("headers", "headers is empty: name the header that holds the signature")
    for name in scheme.headers:
        if not _HEADER_NAME.fullmatch(name):
            raise SchemeError("headers", f"{name!r} is not a valid header name")


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
    if set("{}") & set(PLACEHOLDER.sub("", scheme.signed)):
        raise SchemeError("signed", "signed has an unmatched brace; write placeholders like {body}")
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
            "signed leaves out {body}, so an attacker could change the content; add it, or, if the store "
            "does not sign the body, set allow_unsigned_body = true",
        )
    if not scheme.signed_parts:
        raise SchemeError("signed", "signed is the same for every delivery; add a placeholder, such as {timestamp}")


_KNOWN_PLACEHOLDERS = {("body", False), ("timestamp", False), ("url", False), ("header", True), ("json", True)}


def _check_timestamp(scheme: Scheme) -> None:
    uses = ("timestamp", "") in scheme.signed_parts
    kind, name = scheme.timestamp_source
    if not scheme.timestamp:
        if uses:
            raise SchemeError("timestamp", 'signed has {timestamp}; set its source: timestamp = "header:NAME"')
        return
    if kind not in ("header", "sig", "json") or not name:
        raise SchemeError("timestamp", 'timestamp is "header:NAME", "sig:KEY" or "json:a.b"')
    if kind == "sig":
        _check_time_in_signature(scheme, name)
    if not scheme.signs(scheme.timestamp):
        raise SchemeError(
            "timestamp",
            f"{scheme.timestamp} is not signed, so an attacker could change it; add {{timestamp}} to signed, or set "
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


def _check_joints(scheme: Scheme) -> None:
    """A single header may touch others: the body fits in one place only, and so does a timestamp that is recent."""
    headers = [part for part in scheme.signed_parts if part[0] == "header"]
    touching = any(not between and (left in headers or right in headers) for left, between, right in scheme.joints)
    if touching and (len(headers) > 1 or (scheme.signs_time and not scheme.tolerance)):
        raise SchemeError(
            "signed",
            "signed has a header and another placeholder with no text between them, so an attacker could move a part "
            "of one to the other; add the text that the store signs between them, or, for a single header next to "
            "{timestamp}, set a tolerance",
        )


def _check_sources(scheme: Scheme) -> None:
    for what, parts in scheme.event.parts.items():
        for kind, name in parts:
            wanted = ("json", "body") if what == "data" else ("header", "json")
            if kind not in wanted or bool(name) != (kind != "body"):
                forms = ' or "body"' if what == "data" else ' or "header:NAME"'
                written = f"{kind}:{name}" if name else kind
                raise SchemeError(f"event.{what}", f'{written!r} is not a source; write "json:a.b"{forms}')


def _check_dedupe(scheme: Scheme) -> None:
    if scheme.dedupe != "id":
        return
    for source in scheme.event.id:
        if not scheme.signs(source):
            raise SchemeError(
                "dedupe",
                f'dedupe = "id" trusts {source}, which is not signed: an attacker could send an old delivery under '
                "a new id, and the event that really has this id would be dropped as a duplicate; "
                'use dedupe = "id+body"',
            )


def _check_topics(scheme: Scheme) -> None:
    for theirs, ours in scheme.topics.items():
        if not _TOPIC.fullmatch(ours):
            raise SchemeError("topics", f'{theirs!r} maps to {ours!r}; write it like "order.created"')


def _check_numbers(scheme: Scheme) -> None:
    if not 200 <= scheme.success <= 299:
        raise SchemeError("success", "success is a 2xx status code: 200 to 299")
    if scheme.tolerance < 0:
        raise SchemeError("tolerance", "tolerance is a number of seconds; 0 turns it off")


CHECKS = (
    _check_headers,
    _check_form,
    _check_signed,
    _check_timestamp,
    _check_joints,
    _check_sources,
    _check_dedupe,
    _check_topics,
    _check_numbers,
)
