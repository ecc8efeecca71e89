"""The console's web process: gunicorn with one worker process and some threads. HUP loads the config again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

from gunicorn.app.base import BaseApplication

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.config.reloading import adopt
from receiver.contract.errors import StorehooksError
from receiver.contract.sender_address import TrustedProxies
from receiver.process.start_checks import require_new_address
from workers.console.access import require_safe
from workers.console.patient_worker import PatientWorker
from workers.processes import SignOfLife, die_with_parent

THREADS = 8
CONNECTIONS = 256
"""A new one ends the oldest that waits. Many systems allow 1,024 descriptors, and each may hold a form."""

log = logs.get("console")


class ConsoleServer(BaseApplication):
    def __init__(self, config: Config) -> None:
        self._config = config
        self._is_started = False
        super().__init__()

    @property
    def proxies(self) -> TrustedProxies:
        return TrustedProxies(self._config.receiver.trusted_proxies)

    def load_config(self) -> None:
        """Called at the start, and by gunicorn on HUP."""
        assert self.cfg is not None
        if self._is_started:
            self._reload()
        self._is_started = True
        parent = os.getpid()
        settings: dict[str, Any] = {
            "bind": [self._config.console.bind],
            "workers": 1,
            "worker_class": PatientWorker,
            "threads": THREADS,
            "worker_connections": CONNECTIONS,
            "keepalive": 0,  # each connection has one request
            "graceful_timeout": 5,
            "timeout": 60,
            "limit_request_line": 8190,
            "accesslog": None,
            "loglevel": "warning",
            "control_socket_disable": True,
            "proc_name": "storehooks console",
            "when_ready": lambda _server: _begin(),
            "post_fork": lambda _server, _worker: die_with_parent(parent),
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Callable[..., Iterable[bytes]]:
        """Called in the worker process."""
        from workers.console.application import create_app

        return create_app(self._config)

    def serve(self) -> int:
        try:
            self.run()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    def _reload(self) -> None:
        try:
            self._config, left = read_again(self._config)
        except StorehooksError as error:
            log.error("config refused, the old one stays", why=str(error))
            return
        if left:
            log.warning("[redis] has changed; restart `storehooks console` to use it", keys=left)


def read_again(config: Config) -> tuple[Config, list[str]]:
    """The config of now, and the keys that need a restart. Raises StorehooksError for one that is refused."""
    found, left = adopt(config, load_from_environment(str(config.path) if config.path else None))
    require_safe(found.console)
    require_new_address(found.console.bind, old=config.console.bind, key="[console] bind")
    return found, left


def _begin() -> None:
    """It listens. The supervisor has blocked HUP until there is a handler."""
    SignOfLife.show()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
