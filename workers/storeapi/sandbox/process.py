"""Run: the sandbox as a process. gunicorn serves it; the sender and the shopper are threads beside it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flask import Flask
from gunicorn.app.base import BaseApplication

from receiver.config import Config
from receiver.ports import refuse_a_taken_port
from workers.processes import die_with_parent
from workers.storeapi.catalogue import configured_catalogue
from workers.storeapi.sandbox.misbehaviour import Misbehaviour
from workers.storeapi.sandbox.server import create_app
from workers.storeapi.sandbox.shop import Shop
from workers.storeapi.sandbox.shopper import Shopper, stock_the_shelves
from workers.storeapi.sandbox.state import SandboxState
from workers.storeapi.sandbox.tokens import Registration, Tokens
from workers.storeapi.sandbox.webhook_sender import Sender

THREADS = 16


@dataclass(frozen=True)
class SandboxOptions:
    """How one run of the sandbox differs from another."""

    store: str
    every: float | None = 2.0
    """Seconds between two steps of the shopper; None without one."""
    events: int | None = None
    products: int = 40
    subscribe: bool = True
    file: Path | None = None


class SandboxServer(BaseApplication):
    """One process: the state, the sender and the shopper are there once."""

    def __init__(self, config: Config, options: SandboxOptions) -> None:
        self._config = config
        self._options = options
        self._threads: list[Sender | Shopper] = []
        self._state: SandboxState | None = None
        super().__init__()

    def load_config(self) -> None:
        assert self.cfg is not None
        parent = os.getpid()
        settings: dict[str, Any] = {
            "bind": [self._config.sandbox.bind],
            "workers": 1,
            "worker_class": "gthread",
            "threads": THREADS,
            "keepalive": 30,
            "graceful_timeout": 6,
            "timeout": 120,
            "accesslog": None,
            "loglevel": "warning",
            "control_socket_disable": True,
            "proc_name": "storehooks sandbox",
            "post_fork": lambda _server, _worker: die_with_parent(parent, signal.SIGTERM),
            "worker_exit": lambda _server, _worker: self._stop(),
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """Called in the process that serves, so that files and threads are its own."""
        config, options = self._config, self._options
        path = options.file or config.data_dir / f"sandbox-{options.store}.sqlite3"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._state = SandboxState(path)
        shop = make_shop(config, options.store, self._state)

        def open_shop(products: int | None = None) -> None:
            stock_the_shelves(shop, options.products if products is None else products)
            if options.subscribe:
                shop.subscribe()

        open_shop()
        self._start(shop)
        registration = registration_of(config, options.store)
        return create_app(shop, Tokens(shop, registration), registration.path, open_shop)

    def _start(self, shop: Shop) -> None:
        settings, options = self._config.sandbox, self._options
        self._threads = [Sender(shop, retries=settings.retries, disable_after=settings.disable_after)]
        if options.every is not None:
            self._threads.append(Shopper(shop, every=options.every, most=options.events))
        for thread in self._threads:
            thread.start()

    def _stop(self) -> None:
        for thread in reversed(self._threads):
            thread.stop()
        if self._state is not None:
            self._state.close()


def make_shop(config: Config, store: str, state: SandboxState) -> Shop:
    given = config.stores[store].signing_secrets
    secret = given[0].value.get_secret_value() if given else ""
    pathologies = Misbehaviour(config.sandbox.seed, config.sandbox.misbehave)
    return Shop(state, configured_catalogue(config, store), config.known_stores[store], pathologies, secret=secret)


def registration_of(config: Config, store: str) -> Registration:
    """What the store's own `auth` says; without one, the sandbox's own credentials."""
    auth = config.stores[store].auth
    if not auth.client_id:
        return Registration(token=auth.token.get_secret_value())
    path = urlsplit(auth.url).path or Registration.path
    return Registration(auth.client_id, auth.client_secret.get_secret_value(), auth.token.get_secret_value(), path)


def run(config: Config, options: SandboxOptions) -> None:
    """Until a signal comes."""
    Misbehaviour(config.sandbox.seed, config.sandbox.misbehave)  # a wrong one is said here, not in a child
    configured_catalogue(config, options.store)
    refuse_a_taken_port(config.sandbox.bind, key="[sandbox] bind")
    SandboxServer(config, options).run()
