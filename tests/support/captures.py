"""Captured requests of providers: tests/receiver/contract/captures, made by make.mjs with the providers' libraries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tomli_w

from receiver.contract.signing.sources import query_fields

FOLDER = Path(__file__).parents[1] / "receiver" / "contract" / "captures"


@dataclass(frozen=True)
class Message:
    """One delivery, and the events that it holds, as the provider documents them."""

    sent: dict[str, str]
    """Its headers, as sent."""
    query: str
    body: bytes
    events: list[dict[str, Any]]

    @cached_property
    def headers(self) -> dict[str, str]:
        """As the contract reads them: in lower case, with the fields of the query."""
        return {**{name.lower(): value for name, value in self.sent.items()}, **query_fields(self.query)}


@dataclass(frozen=True)
class Capture:
    """Two messages of a provider."""

    provider: str
    source: str
    library: bool
    secret: str
    url: str
    preset: str
    settings: dict[str, Any]
    """The keys of its scheme: what differs from the preset, or, if there is none, what its documentation says."""
    unsupported: str
    """Why the grammar cannot express its scheme."""
    unsigned_body: bool
    messages: list[Message]
    signed_at: int

    @property
    def name(self) -> str:
        """The name of a store that sends these messages, from its URL."""
        return urlsplit(self.url).path.rpartition("/")[2]

    def toml(self) -> str:
        """The config of its store. The messages are old, so the scheme has no tolerance."""
        extends = {"extends": self.preset} if self.preset else {}
        scheme = {**extends, **self.settings}
        table = {
            "schemes": {f"captured-{self.name}": {**scheme, "tolerance": 0}},
            "stores": {
                self.name: {
                    "scheme": f"captured-{self.name}",
                    "url": self.url,
                    "signing_secrets": [self.secret],
                }
            },
        }
        return tomli_w.dumps(table)


def load_captures() -> list[Capture]:
    return [_load(path) for path in sorted(FOLDER.glob("*.json"))]


def _load(path: Path) -> Capture:
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Capture(
        provider=raw["provider"],
        source=raw["source"],
        library=raw["library"],
        secret=raw["secret"],
        url=raw["url"],
        preset=raw.get("preset", ""),
        settings=raw.get("settings") or raw.get("scheme") or {},
        unsupported=raw.get("unsupported", ""),
        unsigned_body=raw["unsigned_body"],
        signed_at=raw["signed_at"],
        messages=[
            Message(one["headers"], one.get("query", ""), one["body"].encode(), one["events"])
            for one in raw["messages"]
        ],
    )


CAPTURES = load_captures()
