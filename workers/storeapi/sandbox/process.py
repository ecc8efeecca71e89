"""Process: runs the sandbox store. gunicorn serves the API; the webhook sender and the shopper are threads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flask import Flask
from gunicorn.app.base import BaseApplication

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.config.reloading import SANDBOX, adopt
from receiver.config.values import LOOPBACK
from receiver.contract.errors import ConfigError
from receiver.process.start_checks import prepare_data_dir, require_free_port
from workers.processes import die_with_parent
from workers.storeapi.catalogue import configured_catalogue
from workers.storeapi.sandbox.misbehaviour import Misbehaviour
from workers.storeapi.sandbox.server import create_app
from workers.storeapi.sandbox.shop import Shop
from workers.storeapi.sandbox.shopper import Shopper, add_initial_records
from workers.storeapi.sandbox.state import SandboxState
from workers.storeapi.sandbox.tokens import AppRegistration, TokenIssuer
from workers.storeapi.sandbox.webhook_sender import WebhookSender

THREADS = 16


@dataclass(frozen=True)
class SandboxOptions:
    store: str
    interval: float | None = 2.0
    """Seconds between two events of the shopper; None: no shopper."""
    events: int | None = None
    products: int = 40
    subscribe: bool = True
    file: Path | None = None


class SandboxServer(BaseApplication):
    """gunicorn with one worker process, because there is one state, one webhook sender and one shopper."""

    def __init__(self, config: Config, options: SandboxOptions) -> None:
        self._config = config
        self._options = options
        self._threads: list[WebhookSender | Shopper] = []
        self._state: SandboxState | None = None
        self._app: Flask
        self._shop: Shop
        self._serve: Callable[[Config], None]
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
            "when_ready": _pass_on_hup,
            "post_fork": lambda _server, _worker: _begin_worker(parent),
            "post_worker_init": lambda _worker: self._reload_on_hup(),
            "worker_exit": lambda _server, _worker: self._stop(),
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Callable[..., Iterable[bytes]]:
        """Called in the worker process, which must open the files and start the threads itself."""
        config, options = self._config, self._options
        path = options.file or config.data_dir / f"sandbox-{options.store}.sqlite3"
        self._state = SandboxState(path)
        shop = make_shop(config, options.store, self._state)

        def set_up_shop(products: int | None = None) -> None:
            add_initial_records(shop, options.products if products is None else products)
            if options.subscribe:
                shop.subscribe()

        set_up_shop()
        self._start(shop)

        def serve(config: Config) -> None:
            registration = app_registration(config, options.store)
            self._app = create_app(shop, TokenIssuer(shop, registration), registration.path, set_up_shop)

        self._shop, self._serve = shop, serve
        serve(config)
        return self._answer

    def _answer(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        return self._app(environ, start_response)

    def _reload_on_hup(self) -> None:
        signal.signal(signal.SIGHUP, lambda *_: self._reload())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def _reload(self) -> None:
        """Serve the catalogue of the config as it is now. A bad config is refused, and the old one stays."""
        try:
            path = str(self._config.path) if self._config.path else None
            config, left = adopt(self._config, load_from_environment(path), keep=SANDBOX)
            self._shop.catalogue = configured_catalogue(config, self._options.store)
        except (ConfigError, KeyError) as error:
            logs.get("sandbox").error("config refused, the old one stays", why=str(error))
            return
        if left:
            logs.get("sandbox").warning("[sandbox] has changed; restart `storehooks sandbox` to use it", keys=left)
        self._serve(config)
        self._shop.reloads += 1

    def _start(self, shop: Shop) -> None:
        settings, options = self._config.sandbox, self._options
        ca_file = self._config.network.ca_file
        sender = WebhookSender(shop, retries=settings.retries, disable_after=settings.disable_after, ca_file=ca_file)
        self._threads = [sender]
        if options.interval is not None:
            self._threads.append(Shopper(shop, interval=options.interval, max_events=options.events))
        for thread in self._threads:
            thread.start()

    def _stop(self) -> None:
        for thread in reversed(self._threads):
            thread.stop()
        if self._state is not None:
            self._state.close()


def _pass_on_hup(server: Any) -> None:
    """The worker process reloads. gunicorn would start a second one before the first ends: both would send the same
    webhooks."""
    signal.signal(signal.SIGHUP, lambda *_: server.kill_workers(signal.SIGHUP))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


def _begin_worker(parent: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # until it has a handler
    die_with_parent(parent, signal.SIGTERM)


def make_shop(config: Config, store: str, state: SandboxState) -> Shop:
    given = config.stores[store].signing_secrets
    secret = given[0].value.get_secret_value() if given else ""
    misbehaviour = Misbehaviour(config.sandbox.seed, config.sandbox.misbehave)
    return Shop(state, configured_catalogue(config, store), config.known_stores[store], misbehaviour, secret=secret)


def app_registration(config: Config, store: str) -> AppRegistration:
    """The application that the store's `auth` in config describes; without one, the default credentials."""
    auth = config.stores[store].auth
    token = auth.token.get_secret_value()
    if not auth.client_id:
        own = AppRegistration("", "", token) if token else AppRegistration()
        return replace(own, header=auth.header, scheme=auth.scheme)
    path = urlsplit(auth.url).path or AppRegistration.path
    secret = auth.client_secret.get_secret_value()
    return AppRegistration(auth.client_id, secret, token, path, auth.header, auth.scheme, auth.token_path)


def _require_own_credentials(config: Config, store: str) -> None:
    """Refuse credentials that are in this repository, where other hosts can reach the sandbox."""
    host = config.sandbox.bind.rpartition(":")[0].strip("[]")
    if host not in LOOPBACK and app_registration(config, store).client_secret == AppRegistration.client_secret:
        raise ConfigError(
            f"[sandbox] bind is {config.sandbox.bind}, and the credentials of the sandbox are published with "
            f"storehooks; set auth with a client_id and client_secret of your own in stores.{store}, "
            "or bind to 127.0.0.1"
        )


def run(config: Config, options: SandboxOptions) -> None:
    """Run until a signal."""
    Misbehaviour(config.sandbox.seed, config.sandbox.misbehave)  # report a wrong value here, not in the worker process
    configured_catalogue(config, options.store)
    _require_own_credentials(config, options.store)
    require_free_port(config.sandbox.bind, key="[sandbox] bind")
    os.umask(0o077)  # its file contains signing secrets
    if options.file:
        options.file.parent.mkdir(parents=True, exist_ok=True)
    else:
        prepare_data_dir(config.data_dir)
    SandboxServer(config, options).run()
