"""Heads: the head of an ordinary delivery, read by llhttp, a parser in C. Bytes in; None for everything else.

gunicorn's parser stays the judge of what is a request. It is written in Python and costs half of what else is done with
a delivery, so what nobody could read in two ways is read here: a plain POST to a path of ours, names and values in
plain ASCII, no name twice, nothing that changes how a request is framed or how its connection goes on. A test holds the
two parsers against each other.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import httptools

PATH = r"/webhooks(?:/([a-z0-9][a-z0-9_-]{0,62}))?"
"""Of every store that can be configured, whether it is or not: how long an answer takes must not tell."""
MOST = 4000
"""Bytes of a head that is inside every limit of gunicorn's, however it is divided."""
MOST_FIELDS = 64
"""As many as are kept of a delivery, so that which ones does not depend on their order."""

KEEPS = "keep-alive"
"""All that `Connection` may say here. Many clients say it, and it is so anyway."""

_END = b"\r\n\r\n"
_ORDINARY = re.compile(rb"POST [!-~]+ HTTP/1\.1(?:\r\n[A-Za-z0-9-]+:[ -~]*)+")
_TARGET = re.compile(PATH.encode())
_CHANGES_MUCH = frozenset(("transfer-encoding", "expect", "upgrade", "te", "trailer", "http2-settings"))


class Head(NamedTuple):
    store: str
    """Empty at the URL of all stores."""
    headers: dict[str, str]
    """Names in lower case, without the length."""
    length: int


class _Fields:
    """What llhttp calls, for one head."""

    def __init__(self) -> None:
        self.target = b""
        self.found: dict[str, str] = {}
        self.many = 0

    def on_url(self, target: bytes) -> None:
        self.target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        self.found[name.decode().lower()] = value.decode().strip()
        self.many += 1


def read_head(request: bytes) -> Head | None:
    """The head of a request that has arrived whole and has a body of a known length."""
    end = request.find(_END, 0, MOST)
    if end < 0 or not _ORDINARY.fullmatch(request, 0, end):
        return None
    fields = _Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(request[: end + 4])
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # neither is the other's kind
        return None
    found = fields.found
    target, length = _TARGET.fullmatch(fields.target), found.pop("content-length", "")
    if not target or not length.isdigit() or fields.many != len(found) + 1 or fields.many > MOST_FIELDS:
        return None
    if not _CHANGES_MUCH.isdisjoint(found) or len(request) != end + 4 + int(length):
        return None
    if found.get("connection", KEEPS).lower() != KEEPS:
        return None
    if content_type := found.pop("content-type", ""):
        found["content-type"] = content_type  # the last, as the Flask view has it
    return Head((target[1] or b"").decode(), found, int(length))
