"""The grammar of schemes: how a store signs, as data. An unsafe scheme is refused.

`signatures` applies a scheme to deliveries.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import groupby
from typing import Any

from receiver.contract.signing.decoding import decode_secret
from receiver.contract.signing.mac import Mac, keyed, secret_first, secret_last
from receiver.contract.signing.scheme_checks import CHECKS, SchemeError
from receiver.contract.signing.scheme_data import SchemeData, Sources
from receiver.contract.signing.sources import (
    Filler,
    Part,
    Reader,
    filler,
    first_reader,
    optional_parts,
    parse_source,
    reader,
)

__all__ = ["Scheme", "SchemeError", "Secret", "Sources", "encode_secret", "extend"]


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
        """For each `Scheme.mac`, the function that signs with this key."""
        hmacs = {digest: keyed(self.key, digest) for digest in ("sha256", "sha512", "sha1")}
        return {**hmacs, "secret+sha256": secret_first(self.key), "sha256+secret": secret_last(self.key)}

    def is_active(self, now: float) -> bool:
        return self.not_after is None or now <= self.not_after.timestamp()


@dataclass(frozen=True)
class Scheme(SchemeData):
    """How a store signs and where its deliveries hold topic, id and data. An unsafe scheme raises SchemeError."""

    def __post_init__(self) -> None:
        for check in CHECKS:
            check(self)

    @cached_property
    def reads(self) -> frozenset[str]:
        """Every header that this scheme reads, and every query field, as `?NAME`."""
        return frozenset(name for kind, name in self.read_parts if kind == "header")

    @cached_property
    def read_from(self) -> dict[str, tuple[Part, ...]]:
        """The sources of each part of an event; of time and sequence, only those that are signed.

        These say which of two events is newer. Who has captured a delivery could send it again with a time far in the
        future, and all later events of the resource would count as older.
        """
        signed = {
            what: tuple(parse_source(source) for source in getattr(self.event, what) if self.signs(source))
            for what in ("occurred", "sequence")
        }
        return {**self.event.parts, **signed}

    @cached_property
    def readers(self) -> dict[str, Reader]:
        """For each part of an event, the function that reads it."""
        return {what: first_reader(parts) for what, parts in self.read_from.items()}

    @cached_property
    def signed_content(self) -> Filler:
        """The function that makes the bytes that the store signed from headers, body, timestamp and URL."""
        return filler(self.template, optional_parts(self.signed))

    @cached_property
    def can_be_extended(self) -> bool:
        """Whether an attacker can add bytes at the end of a signed body: by how SHA-256 works, without the secret."""
        return self.mac == "secret+sha256"

    @cached_property
    def id_separators(self) -> tuple[tuple[str, bytes], ...]:
        """Each signed header that holds a delivery id, with each separator between it and another signed part.

        An id that contains the separator could be cut there: the same signed bytes with another id. An empty separator
        is in every id.
        """
        return tuple((part[1], between) for part, between in self._id_joints if part[0] == "header")

    @cached_property
    def id_field_separators(self) -> tuple[tuple[Reader, bytes], ...]:
        """The same for signed fields of a body that is not signed as a whole."""
        return tuple((reader(part), between) for part, between in self._id_joints if part[0] != "header")

    @cached_property
    def _id_joints(self) -> tuple[tuple[Part, bytes], ...]:
        ids = self.movable_parts.intersection(self.event.parts["id"])
        joints = self.joints
        return tuple((part, between) for left, between, right in joints for part in (left, right) if part in ids)

    @cached_property
    def joined_ids(self) -> dict[Part, tuple[bytes | Part, ...]]:
        """Each signed part that holds a delivery id and is next to other movable parts, with all of these in order.

        Their joined text is the same wherever it is cut into parts.
        """
        movable = self.movable_parts
        grouped = groupby(self.template, key=lambda part: isinstance(part, bytes) or part in movable)
        runs = [tuple(run) for is_run, run in grouped if is_run]
        joined = [run for run in runs if sum(not isinstance(part, bytes) for part in run) > 1]
        return {part: run for run in joined for part in run if part in self.event.parts["id"]}

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
    record: Mapping[str, Any],
) -> Scheme:
    """Return the parent with changes. Without a parent, start from the grammar's defaults."""
    if parent is None and not changes.get("headers") and not changes.get("signature"):
        raise SchemeError("headers", "name the header that holds the signature, or set extends to a preset")
    base = parent or Scheme(name)
    if parent is None:
        changes = {"headers": (), **changes}
    scheme = replace(
        base,
        **changes,
        name=name,
        event=replace(base.event, **event),
        topics={**base.topics, **topics},
        record=base.record.extended(record),
        configured=base.configured | set(topics),
    )
    if not scheme.event.topic:
        raise SchemeError(
            "event.topic",
            'the event has no topic source, so no handler could get it; set topic = ["json:type"] or another source, '
            'or, if every delivery has the same topic, topic = ["const:order.created"]',
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
