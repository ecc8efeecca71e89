"""Request reader: turns the bytes of a connection into requests, one after another. llhttp parses them.

The same bytes give the same result however they are cut: a head is judged when it is complete, by rules in a fixed
order. llhttp refuses bare line feeds, folded lines, control characters, two lengths, a length with a transfer coding.
What is refused besides is here.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import NamedTuple

import httptools

from receiver.server.chunked_body import ChunkedBody

MAX_LINE = 4094
MAX_FIELDS = 100
MAX_FIELD = 8190
"""Bytes of one header with its line end."""
MAX_HEAD = 64 * 1024
SMALL_HEAD = 4 * MAX_FIELDS
"""A smaller head has no more fields: one has a name, a colon and a line end."""
MAX_LENGTH_DIGITS = 20
"""Of Content-Length. Python converts no more than 4,300, and llhttp accepts any number of leading zeros."""
MAX_CACHED, MAX_CACHED_NAME = 4096, 64

_HEAD_END = re.compile(rb"\n\r?\n")
_TARGET = rb"/[!-~]*|[A-Za-z]+://[!-Z^-~]+|(?<=OPTIONS )\*|(?<=CONNECT )[A-Za-z0-9.-]+:[0-9]+"
_LINE = re.compile(rb"([A-Z]{3,20}) (" + _TARGET + rb") HTTP/1\.([01])\r\n")
_CODINGS = frozenset(("chunked", "identity", "gzip", "x-gzip", "compress", "deflate"))
_ONCE = frozenset(("host", "content-type", "transfer-encoding"))


class HttpRequest(NamedTuple):
    method: str
    target: str
    minor: int
    """The second digit of HTTP/1.1."""
    headers: dict[str, str]
    """Names in lower case, repeated ones joined, without Content-Length."""
    body: bytes
    keep_alive: bool


class _Names(dict[bytes, str]):
    """Header names in lower case; empty for one with an underscore, which WSGI could not tell from a hyphen."""

    def __missing__(self, name: bytes) -> str:
        text = "" if b"_" in name else name.decode("ascii").lower()
        if len(self) < MAX_CACHED and len(name) <= MAX_CACHED_NAME:
            self[name] = text
        return text


_NAMES = _Names()


class RequestReader:
    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self.fault: HTTPStatus | None = None
        """Why the request is refused. Nothing more can be read then."""
        self.request: HttpRequest | None = None
        """The request, once it is complete. It is taken away before the next bytes are read."""
        self.expects_continue = False
        """The sender waits for 100 Continue before it sends the body."""
        self._searched = 0
        """Bytes of a head that are here and do not end it."""
        self.missing = 0
        """Bytes of a body with a length that have not arrived."""
        self._body = bytearray()
        """What has arrived of it."""
        self._chunks: ChunkedBody | None = None
        self.head_bytes = 0
        """Of the last request."""
        self._headers: dict[str, str] = {}

    @property
    def headers(self) -> dict[str, str]:
        """Of the request whose head has arrived; empty if it has not."""
        return self.request.headers if self.request else self._headers

    @property
    def held_bytes(self) -> int:
        return self.head_bytes + len(self._chunks.content if self._chunks else self._body) if self.in_body else 0

    @property
    def in_body(self) -> bool:
        return self.missing > 0 or self._chunks is not None

    def read(self, data: bytes) -> int:
        """Read from the first of these bytes; return how many were read, 0 if more must arrive first."""
        if self._chunks:
            return self._read_chunks(self._chunks, data)
        return self._read_body(data, 0) if self.missing else self._read_head(data)

    # The head

    def _read_head(self, data: bytes) -> int:
        if data[0] in b"\r\n":  # some senders end a body with an empty line
            return len(data) - len(data.lstrip(b"\r\n"))
        found = _HEAD_END.search(data, max(0, self._searched - 2), MAX_HEAD)
        if not b"A" <= data[:1] <= b"Z":  # TLS, for example
            self.fault = HTTPStatus.BAD_REQUEST
        elif found:
            self._searched, end = 0, found.end()
            self._on_head(data[:end])
            return self._read_body(data, end) if self.missing else end
        elif len(data) >= MAX_HEAD:
            self.fault = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self._searched = len(data)
        return 0

    def _on_head(self, head: bytes) -> None:
        line = _LINE.match(head)
        if not line or line.end() > MAX_LINE + 2:
            is_long = head.index(b"\n") > MAX_LINE + 1
            self.fault = HTTPStatus.REQUEST_URI_TOO_LONG if is_long else HTTPStatus.BAD_REQUEST
            return
        self.fault = fault_of_size(head)
        if self.fault:  # before any other work: a head of thousands of fields takes long to parse
            return
        self._parse(head)
        self._line = line[1].decode(), line[2].decode(), int(line[3])
        self.fault = self._fault_of_headers() or self.fault
        if self.fault:
            return
        self.head_bytes = len(head)
        self.missing = int(self._headers.pop("content-length", 0))
        if "transfer-encoding" in self._headers:
            self._chunks = ChunkedBody(self._max_body)
            self._chunk_parser = self._chunks.parser()
        elif not self.missing:
            self._finish(b"")
        self.expects_continue = "expect" in self._headers and self.in_body and self._line[2] > 0

    def _parse(self, head: bytes) -> None:
        self._fields: list[tuple[bytes, bytes]] = []
        try:
            httptools.HttpRequestParser(self).feed_data(head)
        except httptools.HttpParserUpgrade:  # ignored, as RFC 9110 allows
            pass
        except httptools.HttpParserError as error:
            too_large = "overflow" in str(error)  # of Content-Length
            self.fault = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if too_large else HTTPStatus.BAD_REQUEST
        self._headers = {_NAMES[name]: value.rstrip().decode("latin-1") for name, value in self._fields}
        if len(self._headers) < len(self._fields):
            self._join_repeated()
        self._headers.pop("", None)
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def _join_repeated(self) -> None:
        values: dict[str, list[str]] = {}
        for name, value in self._fields:
            values.setdefault(_NAMES[name], []).append(value.rstrip().decode("latin-1"))
        if any(len(values.get(name, ())) > 1 for name in _ONCE):
            self.fault = HTTPStatus.BAD_REQUEST
        self._headers = {name: ",".join(texts) for name, texts in values.items()}

    def _fault_of_headers(self) -> HTTPStatus | None:
        headers, minor = self._headers, self._line[2]
        if "transfer-encoding" in headers:
            coding = headers["transfer-encoding"].lower()
            if not {one.strip(" \t") for one in coding.split(",")} <= _CODINGS:
                return HTTPStatus.NOT_IMPLEMENTED
            if coding != "chunked" or not minor:
                return HTTPStatus.BAD_REQUEST
        if (minor and "host" not in headers) or ("expect" in headers and headers["expect"].lower() != "100-continue"):
            return HTTPStatus.BAD_REQUEST
        length = headers.get("content-length", "0")
        if len(length) > MAX_LENGTH_DIGITS:
            return self.fault or HTTPStatus.BAD_REQUEST
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if length.isdigit() and int(length) > self._max_body else None

    # The body

    def _read_body(self, data: bytes, at: int) -> int:
        """Read a body with a length. The parser would only count its bytes."""
        piece = data[at : at + self.missing]
        self.missing -= len(piece)
        if self.missing or self._body:
            self._body += piece
        if not self.missing:
            self._finish(bytes(self._body) or piece)
            self._body.clear()
        return at + len(piece)

    def _read_chunks(self, chunks: ChunkedBody, data: bytes) -> int:
        size = chunks.read(data, self._chunk_parser)
        self.fault = chunks.fault
        if chunks.is_complete:
            self._chunks = None
            del self._chunk_parser  # it has the content too
            self._finish(bytes(chunks.content))
        return size

    def _finish(self, body: bytes) -> None:
        method, target, minor = self._line
        self.expects_continue = False  # its sender did not wait, or waits no longer
        self.request = HttpRequest(method, target, minor, self._headers, body, self._keeps_alive())
        self._headers = {}

    def _keeps_alive(self) -> bool:
        method, _, minor = self._line
        if "connection" not in self._headers:
            return minor > 0 and method != "CONNECT"
        options = {one.strip(" \t") for one in self._headers["connection"].lower().split(",")}
        return "close" not in options and (minor > 0 or "keep-alive" in options) and method != "CONNECT"


def fault_of_size(head: bytes) -> HTTPStatus | None:
    if len(head) < SMALL_HEAD:
        return None
    too_many = head.count(b"\n") - 2 > MAX_FIELDS  # first, so that there are few lines to measure
    if too_many or (len(head) > MAX_FIELD and max(map(len, head.split(b"\r\n"))) + 2 > MAX_FIELD):
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    return None
