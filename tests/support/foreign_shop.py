"""A store's API that is not the sandbox: a function answers each request, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class ShopRequest:
    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class ShopAnswer:
    """A body that is bytes is sent as it is, any other as JSON."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class ForeignShop:
    url: str
    answer: Callable[[ShopRequest], ShopAnswer]
    requests: list[ShopRequest] = field(default_factory=list)


@contextmanager
def foreign_shop(answer: Callable[[ShopRequest], ShopAnswer]) -> Iterator[ForeignShop]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # headers and body in one packet
        disable_nagle_algorithm = True

        def answer(self) -> None:
            url = urlsplit(self.path)
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            query = dict(parse_qsl(url.query, keep_blank_values=True))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = ShopRequest(self.command, url.path, query, headers, json.loads(content) if content else None)
            shop.requests.append(request)
            answer = shop.answer(request)
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {"content-length": str(len(body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    shop = ForeignShop(f"http://127.0.0.1:{server.server_address[1]}", answer)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield shop
    finally:
        server.shutdown()
        server.server_close()
