"""Framing: finds where a request ends, so that only complete requests are parsed. It does not validate them.

`ready` is also true for bytes that no parser accepts, so that they are refused at once. `complete` is true only where
the end of the request is certain. A request that is not complete, or too long, must be the last of its connection.
"""

from __future__ import annotations

import re

MAX_HEAD = 64 * 1024
MAX_CHUNK_LINE = 1024
MAX_TRAILERS = 8 * 1024
MAX_CHUNK_OVERHEAD = 64 * 1024
"""Bytes of a chunked body that are not content: sizes, extensions. Bounded, because each chunk costs parsing time."""
MAX_DIGITS = 18
CRLF = b"\r\n"
_HEAD_END = b"\r\n\r\n"
_FIRST_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r")
# Blanks around a value are stripped afterwards: a pattern that did it would backtrack over a long run of them.
_LENGTH = re.compile(rb"\r\ncontent-length:([^\r\n]*)(?=\r\n)", re.IGNORECASE)
_CODING = re.compile(rb"\r\ntransfer-encoding:([^\r\n]*)(?=\r\n)", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*(?=\r\n)", re.IGNORECASE)
_NUMBER = re.compile(rb"[0-9]+")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})([ \t]*;[^\r\n]*)?")


class Framing:
    """One request that is being read. A body longer than `limit` is not waited for."""

    def __init__(self, data: bytes = b"", *, limit: int) -> None:
        self.limit = limit
        self.buffer = bytearray()
        self.ready = False
        self.complete = False
        self.too_long = False
        self.expects_continue = False
        """The sender waits for 100 Continue, which has not been sent."""
        self._searched = 0
        """Bytes in which the end of the head was not found."""
        self._chunk = -1
        """Where the next chunk-size line begins; -1 if the body is not chunked."""
        self._payload = 0
        self._body = 0
        """Where the body begins."""
        self._end = -1
        """Where the request ends; -1 while unknown."""
        if data:
            self.feed(data)

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def chunked(self) -> bool:
        """The end was found by following chunks. Whether chunks and trailers are valid is for a parser to check."""
        return self._chunk >= 0

    def feed(self, data: bytes) -> None:
        self.buffer += data
        if not self.ready and self._end < 0 and self._chunk < 0:
            self._find_head()
        if not self.ready and self._chunk >= 0:
            self._follow_chunks()
        if self._end >= 0 and len(self.buffer) >= self._end:
            self.ready = self.complete = True

    def split(self) -> tuple[bytes, bytes]:
        """The request, and the bytes after it."""
        end = self._end if self.complete else len(self.buffer)
        return bytes(self.buffer[:end]), bytes(self.buffer[end:])

    def _find_head(self) -> None:
        if self.buffer[0] not in _FIRST_BYTES:
            self.ready = True
            return
        at = self.buffer.find(_HEAD_END, max(0, self._searched - 3))
        if at >= 0:
            self._read_head(bytes(self.buffer[: at + 2]), at + 4)
        elif len(self.buffer) > MAX_HEAD or self._has_a_bare_line_feed():
            self.ready = True  # it cannot become a valid request
        self._searched = len(self.buffer)

    def _has_a_bare_line_feed(self) -> bool:
        """Whether a line of the new bytes ends with a line feed alone."""
        new = self.buffer[max(0, self._searched - 1) :]
        if self._searched and new.startswith(b"\n"):
            del new[:1]  # checked before
        return new.count(b"\n") != new.count(CRLF)

    def _read_head(self, head: bytes, end: int) -> None:
        lengths, codings = _values(_LENGTH, head), _values(_CODING, head)
        if codings:
            self._start_chunks(codings, bool(lengths), end)
        elif not lengths:
            self._end = end
        elif len(lengths) > 1 or not _NUMBER.fullmatch(lengths[0]):
            self.ready = True
        elif len(lengths[0]) > MAX_DIGITS or int(lengths[0]) > self.limit:
            self.ready = self.too_long = True
        else:
            self._end = end + int(lengths[0])
        waiting = not self.ready and (self._chunk >= 0 or self._end > len(self.buffer))
        self.expects_continue = waiting and bool(_EXPECT.search(head)) and b" HTTP/1.1\r\n" in head

    def _start_chunks(self, codings: list[bytes], has_length: bool, end: int) -> None:
        chunked = len(codings) == 1 and codings[0].lower().rpartition(b",")[2].strip() == b"chunked"
        if chunked and not has_length:
            self._chunk = self._body = end
        else:
            self.ready = True

    def _follow_chunks(self) -> None:
        """Go from chunk size to chunk size, never twice over the same bytes."""
        while not self.ready and self._chunk < len(self.buffer):
            line_end = self.buffer.find(CRLF, self._chunk, self._chunk + MAX_CHUNK_LINE)
            if line_end < 0:
                self.ready = len(self.buffer) - self._chunk >= MAX_CHUNK_LINE
                return
            size = _CHUNK_SIZE.fullmatch(bytes(self.buffer[self._chunk : line_end]))
            if size is None:
                self.ready = True
            elif int(size[1], 16) == 0:
                self._find_end_of_trailers(line_end)
                return
            else:
                self._payload += int(size[1], 16)
                self._chunk = line_end + 2 + int(size[1], 16) + 2
                self._check_chunk()
        self._check_chunk()

    def _check_chunk(self) -> None:
        """A chunk must end where its size says, and what has arrived of all chunks must not exceed the limits."""
        missing = self._chunk - len(self.buffer)
        overhead = self._chunk - self._body - self._payload
        if self._payload - max(0, missing) > self.limit or overhead > MAX_CHUNK_OVERHEAD:
            self.ready = self.too_long = True
        elif self._payload and missing <= 0 and self.buffer[self._chunk - 2 : self._chunk] != CRLF:
            self.ready = True

    def _find_end_of_trailers(self, last_chunk_line: int) -> None:
        """Find the blank line after the last chunk; trailers may precede it."""
        at = self.buffer.find(_HEAD_END, last_chunk_line)
        if at >= 0:
            self._end = at + 4
        elif len(self.buffer) - last_chunk_line > MAX_TRAILERS:
            self.ready = True


def _values(field: re.Pattern[bytes], head: bytes) -> list[bytes]:
    return [value.strip(b" \t") for value in field.findall(head)]
