"""The data of a scheme: how a store signs, where its deliveries hold topic and id, and what follows from that.

`grammar` adds the checks that refuse an unsafe scheme. `signatures` applies a scheme to deliveries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal

from receiver.contract.record_map import RecordMap
from receiver.contract.signing.sources import (
    BODY,
    BODY_HASHES,
    FORM_SORTED,
    SECRET,
    TIMESTAMP,
    Part,
    Reader,
    first_reader,
    joints,
    parse_source,
    parse_template,
    reader,
)


@dataclass(frozen=True)
class Sources:
    """Where the parts of an event are found in a delivery. The sources of a part are tried in order."""

    topic: tuple[str, ...] = ("json:type",)
    id: tuple[str, ...] = ("header:webhook-id",)
    resource_id: tuple[str, ...] = ("json:data.id", "json:id")
    data: tuple[str, ...] = ("json:data", "body")
    occurred: tuple[str, ...] = ("json:timestamp",)
    sequence: tuple[str, ...] = ()
    store: tuple[str, ...] = ()

    @cached_property
    def item_id(self) -> Reader:
        """Reads the id of one event of a batch, which a header cannot have."""
        return first_reader([part for part in self.parts["id"] if part[0] == "json"])

    @cached_property
    def data_readers(self) -> tuple[tuple[str, Reader], ...]:
        return tuple((path, reader((kind, path))) for kind, path in self.parts["data"])

    @cached_property
    def parts(self) -> dict[str, tuple[Part, ...]]:
        """Every source, parsed once, so that reading a delivery parses no text."""
        return {item.name: tuple(parse_source(source) for source in getattr(self, item.name)) for item in fields(self)}


@dataclass(frozen=True)
class SchemeData:
    """The keys of a scheme, and what verification needs to know of them, computed once."""

    name: str
    headers: tuple[str, ...] = ("webhook-signature",)
    signature: tuple[str, ...] = ()
    algorithm: Literal["hmac-sha256", "hmac-sha512", "hmac-sha1", "sha256"] = "hmac-sha256"
    encoding: Literal["hex", "base64", "base64url"] = "hex"
    list_sep: str = ""
    pair_sep: str = ""
    sig_keys: tuple[str, ...] = ()
    sig_index: int = -1
    signed: str = "{body}"
    allow_unsigned_body: bool = False
    secret_prefix: str = ""
    secret_encoding: Literal["utf8", "base64", "hex"] = "utf8"  # noqa: S105
    timestamp: str = ""
    timestamp_unit: Literal["s", "ms", "rfc3339"] = "s"
    tolerance: int = 300
    success: int = 200
    dedupe: Literal["id+body", "id"] = "id+body"
    batch: str = ""
    """Where a delivery holds a list of events: "body" or "json:a.b". Empty if a delivery is one event."""
    event: Sources = Sources()
    topics: Mapping[str, str] = field(default_factory=dict)
    record: RecordMap = field(default_factory=RecordMap)
    """Where the data holds the standard fields of products, orders and customers."""
    configured: frozenset[str] = field(default=frozenset(), compare=False)
    """The keys of `topics` that come from the config; the others come from the preset."""

    # Where the signature is

    @cached_property
    def header_names(self) -> tuple[str, ...]:
        return tuple(name.lower() for name in self.headers)

    @cached_property
    def places(self) -> tuple[tuple[str, Part], ...]:
        """Each place of a signature, as written and parsed."""
        headers = ((name, ("header", name.lower())) for name in self.headers)
        return (*headers, *((source, parse_source(source)) for source in self.signature))

    @cached_property
    def signature_keys(self) -> tuple[str, ...]:
        """The keys of signatures in a header. In a positional one, the key of a part is its position."""
        return (str(self.sig_index),) if self.sig_index >= 0 else self.sig_keys

    @cached_property
    def timestamp_source(self) -> Part:
        """`timestamp`, parsed; ("", "") where the scheme has none."""
        return parse_source(self.timestamp)

    @cached_property
    def reads_form(self) -> bool:
        """Whether it reads a form body."""
        return any(kind in ("form", "form_sorted") for kind, _ in self.read_parts)

    @cached_property
    def read_parts(self) -> tuple[Part, ...]:
        sources = (part for parts in self.event.parts.values() for part in parts)
        places = (part for _, part in self.places)
        return (*places, *self.signed_parts, self.timestamp_source, *sources)

    @cached_property
    def batch_path(self) -> tuple[str, ...]:
        """The keys that lead to the list of events; none if the body is the list."""
        return tuple(name.split(".")) if (name := parse_source(self.batch)[1]) else ()

    # How it is made

    @cached_property
    def digest(self) -> str:
        return self.algorithm.removeprefix("hmac-")

    @cached_property
    def digest_size(self) -> int:
        return hashlib.new(self.digest).digest_size

    @cached_property
    def mac(self) -> str:
        """The name of the function in `Secret.macs` that makes this scheme's signatures."""
        if self.algorithm != "sha256":
            return self.digest
        return "secret+sha256" if self.signed.startswith("{secret}") else "sha256+secret"

    # What it signs

    @cached_property
    def template(self) -> tuple[bytes | Part, ...]:
        """`signed`, parsed once: literal bytes, and placeholders as (kind, name).

        The source of the timestamp is the timestamp, under each of its two names. The secret is left out: it is
        first or last, and `mac` adds it.
        """
        parts = (part for part in parse_template(self.signed) if part != SECRET)
        return tuple(TIMESTAMP if self.timestamp and part == self.timestamp_source else part for part in parts)

    @cached_property
    def signed_parts(self) -> frozenset[Part]:
        return frozenset(part for part in self.template if not isinstance(part, bytes))

    @cached_property
    def signs_time(self) -> bool:
        return TIMESTAMP in self.signed_parts

    @cached_property
    def signs_body(self) -> bool:
        """Whether every byte of the body is signed, as it is or by its hash."""
        return not self.signed_parts.isdisjoint((BODY, *BODY_HASHES))

    @cached_property
    def movable_parts(self) -> frozenset[Part]:
        """The signed parts whose ends are known by the text around them only; fields of a signed body are not."""
        kinds = ("header",) if self.signs_body else ("header", "json", "form")
        return frozenset(part for part in self.signed_parts if part[0] in kinds)

    @cached_property
    def joints(self) -> tuple[tuple[Part, bytes, Part], ...]:
        """Each two placeholders of `signed` that follow one another, with the text between them."""
        return tuple(joints(self.template))

    def signs(self, source: str) -> bool:
        """Whether the signature covers the value at `source`, so that only the store can have written it.

        `{form_sorted}` covers no single field: it does not say where a name or a value ends.
        """
        part = parse_source(source)
        timed = part == self.timestamp_source and self.signs_time
        in_body = part[0] in ("json", "form") and self.signs_body
        return timed or in_body or part[0] == "const" or part in self.signed_parts

    @cached_property
    def signs_content(self) -> bool:
        return self.signs_body or FORM_SORTED in self.signed_parts
