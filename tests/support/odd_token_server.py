"""Odd token endpoints: each path of this server asks a well-behaved endpoint for a token, and changes its answer.

The well-behaved one is a function here, or a third-party server. So the same endpoints are tested without any other
program, and around an OAuth server that others wrote.
"""

from __future__ import annotations

import gzip
import json
import secrets
import threading
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

CLIENT_ID, SECRET = "the app", "s&cret:+% ~"
BODY_CLIENT_ID = "body app"


@dataclass(frozen=True)
class TokenRequest:
    authorization: str
    content_type: str
    form: dict[str, str]
    number: int
    """How many requests this endpoint has had, with this one."""


@dataclass(frozen=True)
class TokenAnswer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})

    def merged(self, **fields: Any) -> TokenAnswer:
        """The same answer with these fields changed; a field that is None is left out."""
        document = {**json.loads(self.body), **fields}
        return replace(self, body=json.dumps({k: v for k, v in document.items() if v is not None}).encode())

    @property
    def token(self) -> str:
        return str(json.loads(self.body)["access_token"])


Ask = Callable[[str, dict[str, str]], TokenAnswer]
Odd = Callable[[Ask, TokenRequest], TokenAnswer | None]


class OwnTokens:
    """A well-behaved token endpoint: two clients, one for HTTP Basic and one for the form, as RFC 6749 says."""

    def __init__(self) -> None:
        self.issued: set[str] = set()

    def ask(self, authorization: str, form: dict[str, str]) -> TokenAnswer:
        if form.get("grant_type") != "client_credentials":
            return error(400, "unsupported_grant_type", "unsupported grant_type requested")
        if authorization:
            name, _, secret = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
            known = (unquote_plus(name), unquote_plus(secret)) == (CLIENT_ID, SECRET)
        else:
            known = (form.get("client_id"), form.get("client_secret")) == (BODY_CLIENT_ID, SECRET)
        if not known:
            return error(401, "invalid_client", "client authentication failed")
        if form.get("scope", "read") not in ("read", "read write"):
            return error(400, "invalid_scope", "requested scope is not allowed")
        token = secrets.token_urlsafe(24)
        self.issued.add(token)
        return answer({"access_token": token, "expires_in": 120, "token_type": "Bearer"})


def answer(document: Any, status: int = 200, **headers: str) -> TokenAnswer:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return TokenAnswer(status, json.dumps(document).encode(), {"content-type": "application/json", **given})


def error(status: int, code: str, description: str = "") -> TokenAnswer:
    return answer({"error": code, **({"error_description": description} if description else {})}, status)


class OddTokenServer:
    """Serves each odd endpoint under its name."""

    def __init__(self, ask: Ask, endpoints: dict[str, Odd]) -> None:
        self.requests: Counter[str] = Counter()
        odd = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                name = self.path.strip("/")
                odd.requests[name] += 1
                content = self.rfile.read(int(self.headers["content-length"] or 0))
                kind = self.headers["content-type"] or ""
                form = json.loads(content) if "json" in kind else dict(parse_qsl(content.decode()))
                request = TokenRequest(self.headers["authorization"] or "", kind, form, odd.requests[name])
                found = endpoints[name](ask, request)
                if found is None:
                    self.close_connection = True
                    return
                self.send_response(found.status)
                for header, value in {**found.headers, "content-length": str(len(found.body))}.items():
                    self.send_header(header, value)
                self.end_headers()
                self.wfile.write(found.body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


# The odd endpoints


def good(ask: Ask, request: TokenRequest) -> TokenAnswer:
    """What the well-behaved endpoint answers."""
    return ask(request.authorization, request.form)


def with_fields(**fields: Any) -> Odd:
    return lambda ask, request: good(ask, request).merged(**fields)


def instead(found: TokenAnswer) -> Odd:
    return lambda ask, request: found


def first(found: TokenAnswer | None) -> Odd:
    """Something else for the first request, and a token for the next one."""
    return lambda ask, request: found if request.number == 1 else good(ask, request)


def raw_expires_in(text: str) -> Odd:
    """An expires_in that json.dumps would not write."""
    marked = with_fields(expires_in="HERE")

    def odd(ask: Ask, request: TokenRequest) -> TokenAnswer | None:
        found = marked(ask, request)
        return found and replace(found, body=found.body.replace(b'"HERE"', text.encode()))

    return odd


def nested(*names: str) -> Odd:
    def odd(ask: Ask, request: TokenRequest) -> TokenAnswer:
        found = good(ask, request)
        document = json.loads(found.body)
        for name in reversed(names):
            document = {name: document}
        return answer(document)

    return odd


def renamed(name: str) -> Odd:
    return lambda ask, request: good(ask, request).merged(access_token=None, **{name: good(ask, request).token})


def only_json(ask: Ask, request: TokenRequest) -> TokenAnswer:
    if "json" not in request.content_type:
        return answer({"title": "Unsupported Media Type"}, 415)
    return ask("", request.form)


def only_form(ask: Ask, request: TokenRequest) -> TokenAnswer:
    """It does not know HTTP Basic, and says what it misses."""
    if request.authorization:
        return error(400, "invalid_request", "The request is missing the client_id parameter.")
    return good(ask, request)


def undecoded_basic(ask: Ask, request: TokenRequest) -> TokenAnswer:
    """It compares the bytes of HTTP Basic without decoding them, so an escaped secret is a wrong one."""
    right = b64encode(f"{CLIENT_ID}:{SECRET}".encode()).decode()
    return answer({}) if request.authorization == f"Basic {right}" else answer({}, 401, www_authenticate="Basic")


def zipped(ask: Ask, request: TokenRequest) -> TokenAnswer:
    found = good(ask, request)
    return replace(found, body=gzip.compress(found.body), headers={**found.headers, "content-encoding": "gzip"})


def as_text(ask: Ask, request: TokenRequest) -> TokenAnswer:
    """A byte order mark, and a content type that is not JSON."""
    return replace(good(ask, request), body=b"\xef\xbb\xbf" + good(ask, request).body, headers={"content-type": "x/y"})


def as_form(ask: Ask, request: TokenRequest) -> TokenAnswer:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    return TokenAnswer(200, f"access_token={good(ask, request).token}&token_type=bearer".encode(), headers)


def echo_secret(ask: Ask, request: TokenRequest) -> TokenAnswer:
    """The secret as it was sent, in every form, and a line that would forge a log line."""
    text = f"no client has the secret {SECRET}\r\nWARNING forged {request.authorization} " + "x" * 10_000
    return error(401, "invalid_client", text)
