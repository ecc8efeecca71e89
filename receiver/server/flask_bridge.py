"""Flask bridge: serves a request with the Flask app in a thread. Health, wrong paths and long batches go this way."""

from __future__ import annotations

import asyncio
import io
from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from flask import Flask
from gunicorn.util import split_request_uri, unquote_to_wsgi_str

from receiver.delivery.answers import Answer
from receiver.server.http_connection import HttpConnection
from receiver.server.request_reader import HttpRequest
from receiver.server.turns import next_in_turn


class FlaskBridge:
    def __init__(self, app: Flask, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._app, self._loop = app, loop
        self._threads, self._free = ThreadPoolExecutor(threads, "flask"), threads
        self._waiting: OrderedDict[str, deque[tuple[HttpConnection, dict[str, Any]]]] = OrderedDict()
        """By sender, for a free thread: a flood of one must not delay the proxy that asks whether we are ready."""

    def serve(self, connection: HttpConnection, request: HttpRequest) -> None:
        variables = environ(request, connection.address)  # first: it may raise
        self._waiting.setdefault(connection.sender, deque()).append((connection, variables))
        self._submit_next()

    def _submit_next(self) -> None:
        if not (self._free and self._waiting):
            return
        self._free -= 1
        connection, variables = next_in_turn(self._waiting, deque.popleft)
        done = self._threads.submit(self._call, variables)
        done.add_done_callback(lambda future: self._loop.call_soon_threadsafe(self._on_done, connection, future))

    def _call(self, variables: dict[str, Any]) -> Answer:
        with self._app.request_context(variables), variables["wsgi.input"]:  # an error of Flask's would keep the body
            response = self._app.full_dispatch_request()
            headers = tuple((name, value) for name, value in response.headers if name not in _OURS)
            return Answer(response.status_code, response.get_data(), response.content_type or "", headers)

    def _on_done(self, connection: HttpConnection, future: Future[Answer]) -> None:
        self._free += 1
        self._submit_next()
        try:
            connection.answer(future.result())
        except Exception:  # noqa: BLE001  logged there
            connection.fail()


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
