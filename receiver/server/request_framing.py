"""Framing: has a request arrived whole? Bytes in, a yes or no out; nothing is judged that a parser judges.

It errs on one side only: `ready` is also true for what no parser would take, so that it is refused at
once. `complete` is true only where the end of the request is certain; what is not complete, or too long,
must be the last request of its connection.
"""

from __future__ import annotations

import re

MAX_HEAD = 64 * 1024
MAX_CHUNK_LINE = 1024
MAX_TRAILERS = 8 * 1024
MAX_BESIDE = 64 * 1024
"""Bytes of a chunked body that are none of its content: sizes, extensions. Each chunk costs a parser some time."""
MAX_DIGITS = 18
CRLF = b"\r\n"
_HEAD_END = b"\r\n\r\n"
_FIRST_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r")
# Blanks around a value are stripped afterwards: a pattern that did so would go over a long run of them again and again.
_LENGTH = re.compile(rb"\r\ncontent-length:([^\r\n]*)(?=\r\n)", re.IGNORECASE)
_CODING = re.compile(rb"\r\ntransfer-encoding:([^\r\n]*)(?=\r\n)", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:[ \t]*100-continue[ \t]*(?=\r\n)", re.IGNORECASE)
_NUMBER = re.compile(rb"[0-9]+")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})([ \t]*;[^\r\n]*)?")


class Framing:
    """One request that is arriving. A body longer than `limit` is not waited for."""

    def __init__(self, data: bytes = b"", *, limit: int) -> None:
        self.limit = limit
        self.buffer = bytearray()
        self.ready = False
        self.complete = False
        self.too_long = False
        self.expects_continue = False
        """The sender waits to be told to go on, and has not been told."""
        self._looked = 0
        self._chunk = -1
        """Where the next line with a chunk's size begins; -1 where the body is not chunked."""
        self._payload = 0
        self._body = 0
        """Where the body begins."""
        self._end = -1
        """Where the request ends; -1 while that is not known."""
        if data:
            self.feed(data)

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def chunked(self) -> bool:
        """The end was found by following chunks; whether they are good ones, trailers too, a parser must say."""
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
        """The request, and what came after it."""
        end = self._end if self.complete else len(self.buffer)
        return bytes(self.buffer[:end]), bytes(self.buffer[end:])

    def _find_head(self) -> None:
        if self.buffer[0] not in _FIRST_BYTES:
            self.ready = True
            return
        at = self.buffer.find(_HEAD_END, max(0, self._looked - 3))
        if at >= 0:
            self._read_head(bytes(self.buffer[: at + 2]), at + 4)
        elif len(self.buffer) > MAX_HEAD or self._has_a_bare_line_feed():
            self.ready = True  # it will not become a request any more
        self._looked = len(self.buffer)

    def _has_a_bare_line_feed(self) -> bool:
        """Whether a line of the new bytes ends with a line feed alone."""
        new = self.buffer[max(0, self._looked - 1) :]
        if self._looked and new.startswith(b"\n"):
            del new[:1]  # judged before
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
        """Go from size to size, never twice over the same bytes."""
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
                self._look_at_the_chunk()
        self._look_at_the_chunk()

    def _look_at_the_chunk(self) -> None:
        """One that is here must end where it says; what is here of all of them must not be too much."""
        missing = self._chunk - len(self.buffer)
        beside = self._chunk - self._body - self._payload
        if self._payload - max(0, missing) > self.limit or beside > MAX_BESIDE:
            self.ready = self.too_long = True
        elif self._payload and missing <= 0 and self.buffer[self._chunk - 2 : self._chunk] != CRLF:
            self.ready = True

    def _find_end_of_trailers(self, last_chunk_line: int) -> None:
        """The blank line after the last chunk; trailers may stand before it."""
        at = self.buffer.find(_HEAD_END, last_chunk_line)
        if at >= 0:
            self._end = at + 4
        elif len(self.buffer) - last_chunk_line > MAX_TRAILERS:
            self.ready = True


def _values(field: re.Pattern[bytes], head: bytes) -> list[bytes]:
    return [value.strip(b" \t") for value in field.findall(head)]
