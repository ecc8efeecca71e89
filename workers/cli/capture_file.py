"""Captured requests: header lines, a blank line, the raw body. `refused show --raw` writes them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from receiver.contract.errors import ConfigError
from receiver.contract.signing.sources import query_fields

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_REQUEST_LINE = re.compile(r"[A-Z]+ ([^?\s]+(\?\S*)?)( HTTP/[0-9.]+)?")


class Captured(NamedTuple):
    headers: dict[str, str]
    body: bytes
    url: str = ""
    """By the request line and the Host header, if there are both."""


def read_captured(path: str) -> Captured:
    """Read a request from a file, or from standard input if the path is `-`."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    return parse(data, path)


def parse(data: bytes, path: str) -> Captured:
    blank = _BLANK_LINE.search(data)
    if blank is None:
        raise ConfigError(f"{path} has no blank line; it must hold the header lines, a blank line and the raw body")
    lines = [line.decode("latin-1").strip(" \t\r") for line in data[: blank.start()].split(b"\n")]
    headers: dict[str, str] = {}
    target = ""
    if lines and (request_line := _REQUEST_LINE.fullmatch(lines[0])):
        target = request_line[1]
        headers |= query_fields(target.partition("?")[2])
        lines = lines[1:]
    for line in lines:
        name, colon, value = line.partition(":")
        key, value = name.rstrip(" \t"), value.lstrip(" \t")
        key = key if key.startswith("?") else key.lower()  # a query field, as `refused show --raw` writes it
        if not colon or not key:
            raise ConfigError(f"{path}: {line[:60]!r} is not a header line; use NAME: VALUE")
        headers[key] = f"{headers[key]},{value}" if key in headers else value
    url = f"https://{headers['host']}{target}" if target.startswith("/") and "host" in headers else ""
    return Captured(headers, data[blank.end() :], url)


def write(headers: dict[str, str], body: bytes) -> bytes:
    """A request in the form that `parse` reads."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return lines.encode("latin-1", "replace") + b"\r\n" + body
