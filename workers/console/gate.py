"""The gate in front of every route: unknown hosts are refused, the path prefix is removed, and the headers that keep a
browser from running or loading anything but our own files are added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from workers.console.visible_text import visible

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
MAX_HOST = 100
"""Characters of an unknown host that are shown."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Robots-Tag": "noindex",
}


class Gate:
    """A WSGI application around another one."""

    def __init__(self, app: Any, origins: Mapping[str, str], url: str) -> None:
        self._app, self._origins = app, origins
        self._prefix = urlsplit(url).path.rstrip("/")

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            ours = [(name, value) for name, value in headers if name not in HEADERS]
            return start_response(status, [*ours, *HEADERS.items()], *more)

        host, path = environ.get("HTTP_HOST", "").lower(), environ.get("PATH_INFO", "")
        origin = self._origins.get(host)
        if origin is None:
            received = visible(host, MAX_HOST) or "none"
            sentence = f"Unknown Host: {received}. Open the console at the URL of [console] url."
            return _plain(start, "400 Bad Request", sentence)
        if path != self._prefix and not path.startswith(f"{self._prefix}/"):
            return _plain(start, "404 Not Found", f"The console is at {self._prefix}/.")
        if "HTTP_TRANSFER_ENCODING" in environ:  # no browser sends a form in chunks, and some chunks are costly to read
            return _plain(start, "411 Length Required", "A form needs a Content-Length.")
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = self._prefix, path[len(self._prefix) :] or "/"
        environ["wsgi.url_scheme"] = origin.partition(":")[0]
        environ["console.origin"] = origin
        app: Iterable[bytes] = self._app(environ, start)
        return app


def _plain(start: Any, status: str, sentence: str) -> list[bytes]:
    body = f"{sentence}\n".encode()
    start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
    return [body]
