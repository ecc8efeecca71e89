"""Checks that an address is free before a server is started, so that the error is one sentence."""

from __future__ import annotations

import os
import socket

from receiver.contract.errors import ConfigError


def require_free_port(bind: str, *, key: str) -> None:
    """Raise ConfigError if a server cannot listen on the address. A socket passed by a service manager is trusted."""
    if os.environ.get("LISTEN_FDS"):
        return
    host, _, port = bind.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise ConfigError(f"cannot listen on {bind}: {error.strerror}; stop what uses it, or set {key}") from None
