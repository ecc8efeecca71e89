"""Captures: the values of a captured delivery with their sources, and what a name and a value look like."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from receiver.contract.event import form_fields
from receiver.contract.intake import read_document
from receiver.contract.signing.signatures import MAX_SIGNATURE_HEADER, Headers
from receiver.contract.signing.sources import written
from receiver.contract.stored_headers import NOT_STORED, omitted_headers

OMITTED = "headers that may hold credentials are stored without their value: "
MAX_DEPTH = 4
MAX_KEYS = 64
"""Levels of a document, and keys of an object, whose values are searched."""

Unit = Literal["s", "ms", "rfc3339"]
# Headers that every HTTP client or proxy may send. Of these, only Authorization may hold a signature.
_COMMON_HEADERS = re.compile(
    r"host|user-agent|accept.*|connection|content-(?!sha|md5|digest).*|transfer-encoding|via|forwarded|x-forwarded-.*"
    r"|x-real-ip|cf-.*|cdn-.*|te|trailer|upgrade|expect|cache-control|pragma|origin|referer|cookie"
    r"|traceparent|tracestate|sec-.*|server|from|keep-alive|proxy-.*|range|if-.*|max-forwards|priority"
)
_RFC3339 = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:]{8}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
_UNITS: tuple[tuple[Unit, re.Pattern[str]], ...] = (
    ("s", re.compile("[12][0-9]{9}")),
    ("ms", re.compile("[12][0-9]{12}")),
    ("rfc3339", re.compile(_RFC3339)),
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_COMPOUND = re.compile(
    r"(event|message|delivery|notification|webhook|order|product|shop|store)(id|type|name|time)(?![a-z])"
)


@dataclass(frozen=True)
class Capture:
    """A captured delivery: headers and query fields, the raw body, and the URL if the captured request shows it."""

    headers: Headers
    body: bytes
    url: str = ""

    @cached_property
    def document(self) -> Any:
        """The JSON of the body; None for a form."""
        return None if self.form else read_document(self.body)[0]

    @cached_property
    def form(self) -> dict[str, str]:
        """The fields of a form body; none for another body."""
        return form_fields(self.body) or {}

    @cached_property
    def custom_headers(self) -> dict[str, str]:
        """The headers that a scheme could use."""
        return {
            name: value
            for name, value in self.headers.items()
            if value not in ("", NOT_STORED)
            and len(value) <= MAX_SIGNATURE_HEADER
            and not _COMMON_HEADERS.fullmatch(name)
        }

    @cached_property
    def values(self) -> dict[str, str]:
        """Every value that a scheme could use, as text, by its source."""
        return {
            **{written(("header", name)): value for name, value in self.custom_headers.items()},
            **{f"form:{name}": value for name, value in self.form.items()},
            **dict(_scalars(self.document, "json:")),
        }


def omitted(headers: Headers) -> list[str]:
    """Return the headers that a scheme could use, but whose values are not stored with a refusal."""
    return [name for name in omitted_headers(headers) if not _COMMON_HEADERS.fullmatch(name)]


def _scalars(document: Any, prefix: str, depth: int = MAX_DEPTH) -> Iterator[tuple[str, str]]:
    if not isinstance(document, dict):
        return
    for key, value in list(document.items())[:MAX_KEYS]:
        if not key or "." in key or "}" in key:
            continue  # no source can name it
        if isinstance(value, dict) and depth > 1:
            yield from _scalars(value, f"{prefix}{key}.", depth - 1)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            yield f"{prefix}{key}", str(value)


def words(name: str) -> list[str]:
    """The words of a name in lower case: `X-Event-Type`, `eventType` and `eventtype` have event and type."""
    return [word.lower() for word in _WORD.findall(_COMPOUND.sub(r"\1-\2", name))]


def unit_of(text: str) -> Unit | None:
    """Return the unit of a timestamp, or None for a text that does not look like one."""
    return next((unit for unit, pattern in _UNITS if pattern.fullmatch(text)), None)


def is_time(text: str) -> bool:
    """Whether a text is a time in any form that an event's time may have."""
    if unit_of(text):
        return True
    try:
        return len(text) >= 10 and "-" in text and bool(datetime.fromisoformat(text))
    except ValueError:
        return False
