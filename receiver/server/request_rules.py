"""Request rules: what llhttp lets through and this server refuses. No rule depends on how the bytes were cut.

A head must satisfy llhttp and the grammar here. Refused besides: bare line feeds, folded lines, other protocols and
versions, limits, two lengths or hosts or transfer codings, a length with a transfer coding, HTTP/1.1 without Host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus

MAX_LINE = 4094
MAX_FIELDS = 100
MAX_FIELD = 8190
"""Bytes of one header with its line end."""
MAX_HEAD = 64 * 1024
SMALL_HEAD = 4000
"""A head of this size is within the limits of lines, too."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TARGET = rb"/[!-~]*|[A-Za-z]+://[!-Z^-~]+|(?<=OPTIONS )\*|(?<=CONNECT )[A-Za-z0-9.-]+:[0-9]+"
_LINE = rb"([A-Z]{3,20}) (" + _TARGET + rb") HTTP/1\.([01])\r\n"
_HEAD = re.compile(_LINE + rb"(?:" + _TOKEN + rb":[\t -~\x80-\xff]*\r\n)*\r\n")
UPGRADE = re.compile(rb"(?<=\r\n)upgrade:[^\r]*\r\n", re.IGNORECASE)
"""Upgrades are ignored, as RFC 9110 allows. llhttp would take the body for the other protocol."""
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_CODINGS = frozenset(("chunked", "identity", "gzip", "x-gzip", "compress", "deflate"))
ONCE = frozenset(("host", "content-type", "content-length", "transfer-encoding"))
NOT_IN_TRAILERS = frozenset(("host", "content-length", "transfer-encoding", "trailer", "authorization", "te"))


def fault_of_part(head: bytes | bytearray, searched: int = 0) -> HTTPStatus | None:
    """Why a head will be refused, by its first bytes alone: more bytes never change it.

    `searched` bytes were given before, and had no fault.
    """
    if head and not b"A" <= head[:1] <= b"Z":
        return HTTPStatus.BAD_REQUEST
    line_feed = _BARE_LINE_FEED.search(head, max(0, searched - 1))
    at = line_feed.start() if line_feed else len(head)
    limits = [(MAX_LINE + 2, HTTPStatus.REQUEST_URI_TOO_LONG)] if head.find(b"\r\n", 0, MAX_LINE + 2) < 0 else []
    for limit, status in (*limits, (MAX_HEAD, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)):
        if at > limit:
            return status
    return HTTPStatus.BAD_REQUEST if line_feed else None


def read_line(head: bytes) -> tuple[str, str, int] | HTTPStatus:
    """Method, target and minor version of a whole head; the status if it is refused, whatever its headers mean."""
    line = _HEAD.fullmatch(head)
    if not line or len(head) > SMALL_HEAD:
        if fault := fault_of_part(head):
            return fault
        if max(map(len, head.split(b"\r\n")[1:])) + 2 > MAX_FIELD:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        if not line:
            return HTTPStatus.BAD_REQUEST
    return line[1].decode(), line[2].decode(), int(line[3])


def fault_of_headers(headers: Mapping[str, str], minor: int, max_body: int) -> HTTPStatus | None:
    """Why a request is refused by its headers; None if it is not."""
    if coding := headers.get("transfer-encoding"):
        if not {one.strip(" \t") for one in coding.lower().split(",")} <= _CODINGS:
            return HTTPStatus.NOT_IMPLEMENTED
        if coding.lower() != "chunked" or "content-length" in headers or not minor:
            return HTTPStatus.BAD_REQUEST
    if (minor and "host" not in headers) or headers.get("expect", "100-continue").lower() != "100-continue":
        return HTTPStatus.BAD_REQUEST
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > max_body:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return None
