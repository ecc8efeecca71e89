"""A thousand sandbox stores in one process: one application, and a state for each first segment of the path.

python -m tests.support.many_stores PORT CONFIG     GET /requests returns the time and store of each request
"""

from __future__ import annotations

import contextvars
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
from werkzeug.serving import WSGIRequestHandler, make_server

from receiver import config as config_room
from workers.storeapi.catalogue import configured_catalogue
from workers.storeapi.sandbox.misbehaviour import Misbehaviour
from workers.storeapi.sandbox.server import create_app
from workers.storeapi.sandbox.shop import Shop
from workers.storeapi.sandbox.state import SandboxState
from workers.storeapi.sandbox.tokens import AppRegistration, TokenIssuer

TOKEN = "a token for every store"
_store: contextvars.ContextVar[str] = contextvars.ContextVar("store")


class StatePerStore:
    """Used in place of a SandboxState: forwards to the state of the current request's store."""

    def __init__(self) -> None:
        self.states: dict[str, SandboxState] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.states[_store.get()], name)


class ManyStores:
    """The web application of all stores."""

    def __init__(self, config: config_room.Config) -> None:
        first = next(iter(config.stores))
        self.state, self.requests = StatePerStore(), list[tuple[float, str]]()
        shop = Shop(
            self.state,  # type: ignore[arg-type]
            configured_catalogue(config, first),
            config.known_stores[first],
            Misbehaviour(1),
            secret=config.stores[first].signing_secrets[0].value.get_secret_value(),
        )
        for name in config.stores:
            _store.set(name)
            self.state.states[name] = SandboxState(":memory:")
            self.state.insert("webhook", shop.subscription("order.paid", config.public_url_of(name)))
        self.app = create_app(shop, TokenIssuer(shop, AppRegistration(token=TOKEN)), "/oauth/token", lambda _: None)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        _, store, *rest = environ["PATH_INFO"].split("/")
        if store == "requests":
            start_response("200 OK", [("content-type", "application/json")])
            return [orjson.dumps(self.requests)]
        self.requests.append((time.time(), store))
        _store.set(store)
        environ["PATH_INFO"] = "/" + "/".join(rest)
        return self.app(environ, start_response)


class QuietRequestHandler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: Any) -> None:
        pass


def main(port: int, config_file: str) -> None:
    stores = ManyStores(config_room.load(Path(config_file), {}))
    make_server("127.0.0.1", port, stores, threaded=True, request_handler=QuietRequestHandler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
