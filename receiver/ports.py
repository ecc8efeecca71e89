"""Whether we can listen where config says; asked before a server is started, so that the answer is a sentence."""

from __future__ import annotations

import os
import socket

from receiver.contract.errors import ConfigError


def refuse_a_taken_port(bind: str, *, key: str) -> None:
    """Raise ConfigError if the address cannot be listened on. A socket that was passed to us needs no asking."""
    if os.environ.get("LISTEN_FDS"):
        return
    host, _, port = bind.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            raise ConfigError(f"cannot listen on {bind}: {error.strerror}; stop what uses it, or set {key}") from None
