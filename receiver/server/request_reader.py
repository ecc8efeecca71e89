"""Request reader: turns the bytes of a connection into requests, one after another, with one llhttp parser.

The same bytes give the same result however they are cut. A head is given to the parser when it is complete. The limits
of a chunked body are checked only at places that the bytes themselves define. The parser is never given bytes of the
next request: a body with a length ends there, and every other request ends with a blank line.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

import httptools

from receiver.server.request_rules import (
    MAX_FIELDS,
    NOT_IN_TRAILERS,
    ONCE,
    UPGRADE,
    fault_of_headers,
    fault_of_part,
    read_line,
)

PIECE_BYTES = 16 * 1024
"""Bytes of a chunked body that are parsed at once, between two checks of its limits."""
MAX_CHUNKS = 10_000
MAX_CHUNK_OVERHEAD = 64 * 1024
"""Bytes of a chunked body that are not content: sizes, extensions, trailers."""
BLANK_LINE = b"\r\n\r\n"


class HttpRequest(NamedTuple):
    method: str
    target: str
    minor: int
    """The second digit of HTTP/1.1."""
    headers: dict[str, str]
    """Names in lower case, repeated ones joined, without Content-Length."""
    body: bytes
    keep_alive: bool


class RequestReader:
    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self.fault: HTTPStatus | None = None
        """Why the request is refused. Nothing more can be read then."""
        self.request: HttpRequest | None = None
        """The request, once it is complete."""
        self.expects_continue = False
        """The sender waits for 100 Continue before it sends the body."""
        self._head = bytearray()
        """The bytes of a head that is not complete."""
        self._skipped_line = self._in_body = self._chunked = self._complete = self._keep_alive = False
        self._fields: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._left = 0
        """Bytes of a body with a length that have not arrived."""
        self._allowed_chunks = bytearray()
        # The parser calls these for each chunk: built-in methods, because thousands of calls of ours would take long.
        self.on_body = self._pieces.append
        self.on_chunk_header = self._allowed_chunks.pop  # raises when it is empty

    @property
    def begun(self) -> bool:
        return self._in_body or self._skipped_line or bool(self._head)

    def take_request(self) -> HttpRequest:
        """The complete request. The next bytes begin another one."""
        request, self.request = self.request, None
        assert request
        if self._in_body or self._head or self._skipped_line:
            self._skipped_line = self._in_body = self._chunked = self.expects_continue = False
            self._head, self._left = bytearray(), 0
        return request

    def read(self, data: bytes, at: int) -> int:
        """Read bytes from this position; return the position after the last one read. The work is bounded."""
        if not self._in_body:
            return self._read_head(data, at)
        return self._read_chunks(data, at) if self._chunked else self._read_body(data, at)

    # The head

    def _read_head(self, data: bytes, at: int) -> int:
        end = -1 if self._head or data[at] == ord("\r") else data.find(BLANK_LINE, at)
        if end >= 0:
            self._on_head(data[at : end + 4])
            return self._read_body(data, end + 4) if self._left else end + 4
        searched = len(self._head)
        self._head += data[at:]
        if not self._skipped_line and self._head.startswith(b"\r\n"):  # one empty line before a request is allowed
            self._skipped_line, searched = True, 0
            del self._head[:2]
        end = self._head.find(BLANK_LINE, max(0, searched - 3))
        if end >= 0:
            rest = len(self._head) - end - 4
            self._on_head(bytes(self._head[: end + 4]))
            return len(data) - rest
        if self._skipped_line or self._head != b"\r":
            self.fault = fault_of_part(self._head, searched)
        return len(data)

    def _on_head(self, head: bytes) -> None:
        line = read_line(head)
        if isinstance(line, HTTPStatus):
            self.fault = line
            return
        self._parser, self._complete = httptools.HttpRequestParser(self), False
        self._feed(UPGRADE.sub(b"", head) if b"pgrade" in head else head)
        self._line, self._headers = line, self._read_fields()
        self.fault = fault_of_headers(self._headers, line[2], self._max_body) or self.fault
        if self.fault:
            return
        self._left = int(self._headers.pop("content-length", 0))
        if self._left:
            self._in_body = True
        elif "transfer-encoding" in self._headers:
            self._in_body = self._chunked = True
            self._content, self._taken, self._tail = bytearray(), 0, b""
            self._allowed_chunks[:] = bytes(MAX_CHUNKS)
        else:
            self._finish(b"")
        self.expects_continue = self._in_body and "expect" in self._headers and line[2] > 0

    def _finish(self, body: bytes) -> None:
        del self._parser  # it refers to this object: without the cycle, both are freed with the connection
        self.request = HttpRequest(*self._line, self._headers, body, self._keep_alive)

    def _read_fields(self) -> dict[str, str]:
        """Names in lower case; values of repeated names are joined."""
        if len(self._fields) > MAX_FIELDS:
            self.fault = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        fields = [(lower_case(name), value.decode("latin-1").rstrip(" \t")) for name, value in self._fields]
        self._fields.clear()
        headers = dict(fields)
        if len(headers) < len(fields):
            headers = {}
            for name, value in fields:
                if name in headers and name in ONCE:
                    self.fault = HTTPStatus.BAD_REQUEST
                headers[name] = f"{headers[name]},{value}" if name in headers else value
        headers.pop("", None)
        return headers

    # The body

    def _read_body(self, data: bytes, at: int) -> int:
        """Read a body with a length: the parser would do no more than count."""
        piece = data[at : at + self._left]
        self._left -= len(piece)
        if self._left:
            self._pieces.append(piece)
        else:
            self._finish(b"".join((*self._pieces, piece)) if self._pieces else piece)
            self._pieces.clear()
        return at + len(piece)

    def _read_chunks(self, data: bytes, at: int) -> int:
        end = self._next_check(data, at)
        piece = data[at:end]
        self._taken += len(piece)
        self._feed(piece)
        last = self._tail + piece[-4:]
        is_blank = last.endswith(BLANK_LINE)
        self._tail = b"" if is_blank else last[-3:]
        if not self.fault and (is_blank or self._taken % PIECE_BYTES == 0):
            self._check_limits()
        return end

    def _next_check(self, data: bytes, at: int) -> int:
        """The end of the next blank line, or of PIECE_BYTES if that is nearer. Blank lines may have been cut."""
        end = min(len(data), at + PIECE_BYTES - self._taken % PIECE_BYTES)
        for size in (3, 2, 1):
            if self._tail.endswith(BLANK_LINE[:size]) and data.startswith(BLANK_LINE[size:], at):
                return min(end, at + 4 - size)
        found = data.find(BLANK_LINE, at, end)
        return found + 4 if found >= 0 else end

    def _check_limits(self) -> None:
        for piece in self._pieces:
            self._content += piece
        self._pieces.clear()
        if len(self._content) > self._max_body or self._taken - len(self._content) > MAX_CHUNK_OVERHEAD:
            self.fault = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        elif self._complete and not NOT_IN_TRAILERS.isdisjoint(lower_case(name) for name, _ in self._fields):
            self.fault = HTTPStatus.BAD_REQUEST
        elif self._complete:
            self._fields.clear()
            self._finish(bytes(self._content))

    # llhttp

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # CONNECT: the bytes after it would be of another protocol
            self._keep_alive = False
        except httptools.HttpParserError as error:
            too_large = "overflow" in str(error) or (self._chunked and not self._allowed_chunks)
            self.fault = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if too_large else HTTPStatus.BAD_REQUEST

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for each header and trailer."""
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._keep_alive = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        self._complete = True


@lru_cache(maxsize=4096)
def lower_case(name: bytes) -> str:
    """Empty for a name with an underscore: WSGI could not tell it from one with a hyphen, so it is ignored."""
    return "" if b"_" in name else name.decode("ascii").lower()
