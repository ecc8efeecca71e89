"""Service manager: tells systemd that this process is ready, reloads, stops, or is alive (`sd_notify`).

Without NOTIFY_SOCKET nothing is sent. Its variables are taken out of the environment: the service has one voice, and
plugin code in child processes must not speak for it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress


class ServiceManager:
    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        limit, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        is_ours = limit.isdecimal() and pid in ("", str(os.getpid()))
        self._watchdog_every = int(limit) / 3e6 if is_ours else float("inf")
        """Seconds. A third of the limit: one message may be late."""
        self._alive_at = float("-inf")

    def ready(self) -> None:
        """The process serves: after its start, and after a reload, also after one that was refused."""
        self._send("READY=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Call it again and again while all is well; without it for the time of WatchdogSec=, the service is killed."""
        if (now := time.monotonic()) >= self._alive_at + self._watchdog_every:
            self._alive_at = now
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.settimeout(1.0)
            manager.sendto(message.encode(), address)
