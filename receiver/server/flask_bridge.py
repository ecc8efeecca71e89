"""Flask bridge: serves a request with the Flask app in a thread: health, wrong paths, what takes long to judge."""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from flask import Flask
from gunicorn.util import split_request_uri, unquote_to_wsgi_str

from receiver.delivery.answers import Answer
from receiver.server.held_bytes import BodyContent, content_of
from receiver.server.http_connection import HttpConnection, fail
from receiver.server.request_reader import HttpRequest
from receiver.server.turn_lines import TurnLines, is_gone

_Call = tuple[dict[str, Any], BodyContent | None]
"""The request for the app, and what a delivery is known by. Not its body: frames of an error would keep it."""
MOST_OF_STORE = 50
"""Long deliveries of one store that wait for a thread."""


class FlaskBridge:
    def __init__(self, app: Flask, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._app, self._loop = app, loop
        self._threads, self._free = ThreadPoolExecutor(threads, "flask"), threads
        self._waiting: TurnLines[tuple[HttpConnection, _Call]] = TurnLines(MOST_OF_STORE, "long deliveries")
        """For a free thread. A flood of one sender must not delay the proxy that asks whether we are ready."""

    def serve(self, connection: HttpConnection, request: HttpRequest, store: str | None = None) -> None:
        """`store` is that of a delivery, empty if it is not verified: those of a store wait together, because many may
        have one address."""
        call = environ(request, connection.address), None if store is None else content_of(request.body)
        self._waiting.add(store or "", connection.sender, (connection, call))
        self._submit_next()

    def _submit_next(self) -> None:
        while self._free and self._waiting:
            connection, call = item = self._waiting.take()
            if not is_gone(item):  # else it is sent again
                try:
                    self._submit(connection, *call)
                except RuntimeError:  # a limit of threads
                    fail(connection)

    def _submit(self, connection: HttpConnection, variables: dict[str, Any], content: BodyContent | None) -> None:
        done = self._threads.submit(self._call, variables)
        self._free -= 1
        done.add_done_callback(
            lambda future: self._loop.call_soon_threadsafe(self._on_done, connection, content, future)
        )

    def _call(self, variables: dict[str, Any]) -> Answer:
        with self._app.request_context(variables), variables["wsgi.input"]:  # an error of Flask's would keep the body
            response = self._app.full_dispatch_request()
            headers = tuple((name, value) for name, value in response.headers if name not in _OURS)
            return Answer(response.status_code, response.get_data(), response.content_type or "", headers)

    def _on_done(self, connection: HttpConnection, content: BodyContent | None, future: Future[Answer]) -> None:
        self._free += 1
        self._submit_next()
        try:
            answer = future.result()
            if content and _ACCEPTED in answer.body and _NO_IDS not in answer.body:
                connection.known_senders.add_accepted(connection.sender, content)
            elif content and answer.status == HTTPStatus.UNAUTHORIZED:
                connection.known_senders.add_other(connection.sender, connection.request_bytes)
            connection.answer(answer)
        except Exception:  # noqa: BLE001  logged there
            fail(connection)


class LongWorkBridge:
    """Serves deliveries that take long to judge, one at a time: several would take the interpreter and Redis from the
    loop, for seconds. Senders that have a balance have a thread of their own, so that outsiders do not delay them: an
    unsigned delivery may take a second to verify, and anyone may send one again that was captured."""

    def __init__(self, app: Flask, loop: asyncio.AbstractEventLoop) -> None:
        self._known, self._others = FlaskBridge(app, loop, 1), FlaskBridge(app, loop, 1)

    def serve(self, connection: HttpConnection, request: HttpRequest, store: str) -> None:
        is_known = connection.known_senders.balance(connection.sender) > 0
        (self._known if is_known else self._others).serve(connection, request, store)


_ACCEPTED = b'"status":"accepted"'
"""In the answer to a delivery that was new, and to a batch without events."""
_NO_IDS = b'"ids":[]'
_OURS = frozenset(("Content-Type", "Content-Length"))
"""Headers that every answer gets."""


def environ(request: HttpRequest, address: str) -> dict[str, Any]:
    """The request as WSGI defines it, as far as Flask reads it."""
    parts = split_request_uri(request.target)
    variables = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_wsgi_str(parts.path or ""),
        "QUERY_STRING": parts.query or "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "REMOTE_ADDR": address,
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(request.body),
    }
    for name, value in request.headers.items():
        variables["CONTENT_TYPE" if name == "content-type" else "HTTP_" + name.upper().replace("-", "_")] = value
    return variables
