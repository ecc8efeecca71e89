"""Request head: reads the head of an ordinary delivery with llhttp, a parser in C; returns None for everything else.

gunicorn's parser decides what a valid request is. It is written in Python and takes half as long as all other work on a
delivery. So requests that can be read in only one way are read here: a plain POST to `/webhooks`, names and values in
plain ASCII, no name twice, nothing that changes the framing or the end of the connection. A test compares both parsers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import httptools

PATH = r"/webhooks(?:/([a-z0-9][a-z0-9_-]{0,62}))?"
"""Matches every valid store name, configured or not: the time of an answer must not reveal which ones are."""
MAX_HEAD_BYTES = 4000
"""A head of this size is within all of gunicorn's limits, however it is divided into fields."""
MAX_FIELDS = 64
"""As many as are stored of a delivery, so that the stored ones do not depend on their order."""

KEEP_ALIVE = "keep-alive"
"""The only value of `Connection` that is read here. Many clients send it, and it is the default."""

_END = b"\r\n\r\n"
_ORDINARY = re.compile(rb"POST [!-~]+ HTTP/1\.1(?:\r\n[A-Za-z0-9-]+:[ -~]*)+")
_TARGET = re.compile(PATH.encode())
_CHANGES_FRAMING = frozenset(("transfer-encoding", "expect", "upgrade", "te", "trailer", "http2-settings"))


class Head(NamedTuple):
    store: str
    """Empty at the common URL of all stores."""
    headers: dict[str, str]
    """Names in lower case, without Content-Length."""
    length: int


class _Fields:
    """The callbacks of llhttp for one head."""

    def __init__(self) -> None:
        self.target = b""
        self.found: dict[str, str] = {}
        self.count = 0

    def on_url(self, target: bytes) -> None:
        self.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        self.found[name.decode().lower()] = value.decode().strip()
        self.count += 1


def read_head(request: bytes) -> Head | None:
    """The head of a complete request with a Content-Length."""
    end = request.find(_END, 0, MAX_HEAD_BYTES)
    if end < 0 or not _ORDINARY.fullmatch(request, 0, end):
        return None
    fields = _Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(request[: end + 4])
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # unrelated exception types
        return None
    found = fields.found
    target, length = _TARGET.fullmatch(fields.target), found.pop("content-length", "")
    if not target or not length.isdigit() or fields.count != len(found) + 1 or fields.count > MAX_FIELDS:
        return None
    if not _CHANGES_FRAMING.isdisjoint(found) or len(request) != end + 4 + int(length):
        return None
    if found.get("connection", KEEP_ALIVE).lower() != KEEP_ALIVE:
        return None
    if content_type := found.pop("content-type", ""):
        found["content-type"] = content_type  # last, as in the Flask view
    return Head((target[1] or b"").decode(), found, int(length))
