"""The console's web process: gunicorn with one worker process and some threads. HUP loads the config again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

from gunicorn.app.base import BaseApplication

from receiver import logs
from receiver.config import Config, load_from_environment
from receiver.contract.errors import StorehooksError
from workers.console.access import require_safe
from workers.processes import die_with_parent

THREADS = 8

log = logs.get("console")


class ConsoleServer(BaseApplication):
    def __init__(self, config: Config) -> None:
        self._config = config
        self._is_started = False
        super().__init__()

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
            "worker_class": "gthread",
            "threads": THREADS,
            "keepalive": 5,
            "graceful_timeout": 5,
            "timeout": 60,
            "limit_request_line": 8190,
            "accesslog": None,
            "loglevel": "warning",
            "control_socket_disable": True,
            "proc_name": "storehooks console",
            "when_ready": lambda _server: _take_hup(),
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
        """A bad config is refused, and the old one stays."""
        try:
            config = load_from_environment(str(self._config.path) if self._config.path else None)
            require_safe(config.console)
        except StorehooksError as error:
            log.error("config refused, the old one stays", why=str(error))
            return
        self._config = config


def _take_hup() -> None:
    """The supervisor has blocked it until there is a handler."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
