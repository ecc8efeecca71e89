"""Answers: HTTP responses as data and as bytes, their headers such as Retry-After, and the form of errors.

Knows no web framework and no socket.
"""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

JSON = "application/json"
PROBLEM = "application/problem+json"
RETRY_AFTER = "5"
NO_CONTENT = 204

_DETAILS = {
    HTTPStatus.BAD_REQUEST: "Malformed HTTP request.",
    HTTPStatus.REQUEST_TIMEOUT: "Request timed out.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Request body too large.",
    HTTPStatus.REQUEST_URI_TOO_LONG: "Request URL too long.",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "Request headers too large or too many.",
    HTTPStatus.NOT_IMPLEMENTED: "Unsupported Transfer-Encoding.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Too many requests at once. Retry later.",
}


class Answer(NamedTuple):
    status: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def json_answer(content: dict[str, Any], status: int = 200) -> Answer:
    return Answer(status, orjson.dumps(content))


def problem(status: HTTPStatus, detail: str, *headers: tuple[str, str]) -> Answer:
    """An error in the form of RFC 9457."""
    content = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    return Answer(status.value, orjson.dumps(content), PROBLEM, headers)


def unavailable(detail: str) -> Answer:
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, ("Retry-After", RETRY_AFTER))


def protocol_error(status: HTTPStatus) -> bytes:
    """The bytes of an answer to a malformed, oversized or late request. The connection is closed after it."""
    detail = _DETAILS.get(status, status.phrase)
    answer = unavailable(detail) if status == HTTPStatus.SERVICE_UNAVAILABLE else problem(status, detail)
    return to_bytes(answer, now=None, close=True)


def to_bytes(answer: Answer, *, now: float | None, close: bool, minor: int = 1, method: str = "POST") -> bytes:
    """The bytes of an answer, with the headers that gunicorn would send. `minor` is the second digit of HTTP/1.1."""
    head = _head(answer.status, answer.content_type, answer.headers, close, minor)
    date = b"" if now is None else _date(int(now))
    if answer.status == NO_CONTENT:
        return b"%b%b\r\n" % (head, date)
    body = b"" if method == "HEAD" else answer.body
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, date, len(answer.body), body)


@lru_cache(maxsize=256)
def _head(status: int, content_type: str, headers: tuple[tuple[str, str], ...], close: bool, minor: int) -> bytes:
    """The part that many answers share, cached. No header in it contains a sender's text."""
    lines = [f"HTTP/1.{minor} {status} {_reason(status)}", "Server: gunicorn"]
    lines += [f"Connection: {'close' if close else 'keep-alive'}", f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "".join(line + "\r\n" for line in lines).encode("latin-1")


@lru_cache(maxsize=2)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase.upper()
    except ValueError:
        return "UNKNOWN"
