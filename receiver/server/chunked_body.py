"""Chunked body: the content of a body in chunks, as it arrives, read by llhttp.

Chunk extensions are refused: no sender of webhooks uses them, and proxies do not agree on where they end.
"""

from __future__ import annotations

from http import HTTPStatus

import httptools

PIECE_BYTES = 16 * 1024
"""Bytes that the parser gets at once, at most."""
STEP_BYTES, STEP_PIECES = 512, 64
"""A step ends after these bytes, or this number of pieces of the size that they have had so far: after a tenth of a
millisecond."""
MAX_CHUNKS = 10_000
"""Also of blank lines in the content: each ends a piece, see `read`."""
MAX_OVERHEAD = 64 * 1024
"""Bytes of a body that are not content: sizes and trailers."""
_HEAD = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
_BLANK_LINE = b"\r\n\r\n"
_NOT_IN_TRAILERS = frozenset((b"host", b"trailer", b"authorization", b"te"))  # nor what llhttp refuses itself


class ChunkedBody:
    def __init__(self, max_body: int) -> None:
        self.fault: HTTPStatus | None = None
        """Why it is refused: the first byte that breaks a rule decides, however the bytes are cut."""
        self.content = bytearray()
        self.is_complete = False
        self._max_body = max_body
        self.taken = self._chunks = self._blank_lines = self._semicolons = 0

    def parser(self) -> httptools.HttpRequestParser:
        """The parser for `read`. It refers to this object, which so must not refer to it: a cycle stays in memory."""
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(_HEAD)
        return parser

    def read(self, data: bytes, parser: httptools.HttpRequestParser) -> int:
        """Read some of these bytes; return how many, 0 if more must arrive first.

        The parser must not get bytes of the next request, and a body ends with a blank line. So it gets the bytes up to
        the next blank line. If there is none, the last three bytes are left: a blank line may begin there.
        """
        at = 0
        while at < STEP_BYTES and not (self.fault or self.is_complete):
            size = self._read_piece(data, at, parser)
            if not size:
                break
            at += size
        return at

    def _read_piece(self, data: bytes, at: int, parser: httptools.HttpRequestParser) -> int:
        to_mark = PIECE_BYTES - self.taken % PIECE_BYTES
        usual = STEP_PIECES * self.taken // (self._chunks + self._blank_lines + 1)
        room = min(to_mark, max(STEP_BYTES, usual))
        blank = data.find(_BLANK_LINE, at, at + room + 3)
        size = blank + 4 - at if blank >= 0 else max(0, min(len(data) - at - 3, room))
        self.taken += size
        self._blank_lines += blank >= 0
        self._semicolons += data.count(b";", at, at + size)
        try:
            parser.feed_data(data[at : at + size])
        except httptools.HttpParserError:
            self.fault = self.fault or HTTPStatus.BAD_REQUEST
        if self._blank_lines > MAX_CHUNKS:
            self.fault = self.fault or HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        if size >= to_mark and self.taken - len(self.content) > MAX_OVERHEAD:  # not where bytes were cut by chance
            self.fault = self.fault or HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return size

    # Called by llhttp. What they raise ends its work at that byte.

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > MAX_CHUNKS:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def on_body(self, piece: bytes) -> None:
        self.content += piece
        if len(self.content) > self._max_body:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A trailer. It is read and not used."""
        self._semicolons -= value.count(b";")
        if name.lower() in _NOT_IN_TRAILERS:
            self._refuse(HTTPStatus.BAD_REQUEST)

    def on_message_complete(self) -> None:
        self.is_complete = True
        if self._semicolons > self.content.count(b";"):
            self._refuse(HTTPStatus.BAD_REQUEST)

    def _refuse(self, status: HTTPStatus) -> None:
        self.fault = status
        raise ValueError
