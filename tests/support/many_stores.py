"""The sandbox as a thousand stores in one process: one application, a state for each first step of the path.

python -m tests.support.many_stores PORT CONFIG     GET /requests gives when each request of any store came
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

TOKEN = "a token of all"
_store: contextvars.ContextVar[str] = contextvars.ContextVar("store")


class States:
    """Stands in for a State: each store's own, by the request under way."""

    def __init__(self) -> None:
        self.each: dict[str, SandboxState] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.each[_store.get()], name)


class Stores:
    """The web application of all stores."""

    def __init__(self, config: config_room.Config) -> None:
        first = next(iter(config.stores))
        self.states, self.came = States(), list[tuple[float, str]]()
        shop = Shop(
            self.states,  # type: ignore[arg-type]
            configured_catalogue(config, first),
            config.known_stores[first],
            Misbehaviour(1),
            secret=config.stores[first].signing_secrets[0].value.get_secret_value(),
        )
        for name in config.stores:
            _store.set(name)
            self.states.each[name] = SandboxState(":memory:")
            self.states.insert("webhook", shop.subscription("order.paid", config.public_url_of(name)))
        self.app = create_app(shop, TokenIssuer(shop, AppRegistration(token=TOKEN)), "/oauth/token", lambda _: None)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        _, store, *rest = environ["PATH_INFO"].split("/")
        if store == "requests":
            start_response("200 OK", [("content-type", "application/json")])
            return [orjson.dumps(self.came)]
        self.came.append((time.time(), store))
        _store.set(store)
        environ["PATH_INFO"] = "/" + "/".join(rest)
        return self.app(environ, start_response)


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: Any) -> None:
        pass


def main(port: int, config_file: str) -> None:
    stores = Stores(config_room.load(Path(config_file), {}))
    make_server("127.0.0.1", port, stores, threaded=True, request_handler=Quiet).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
