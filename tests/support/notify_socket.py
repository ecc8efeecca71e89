"""A socket like systemd's, which notes what a service says about itself."""

from __future__ import annotations

import socket
from pathlib import Path


class NotifySocket:
    def __init__(self, folder: Path, *, abstract: bool = False) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.address = f"@storehooks-test-{id(self)}" if abstract else str(folder / "notify")
        self._socket.bind(self.address.replace("@", "\0") if abstract else self.address)
        self._socket.setblocking(False)
        self._said: list[str] = []

    def environ(self, watchdog: float = 0.0) -> dict[str, str]:
        given = {"NOTIFY_SOCKET": self.address}
        return given | ({"WATCHDOG_USEC": str(int(watchdog * 1e6))} if watchdog else {})

    @property
    def said(self) -> list[str]:
        """What was said until now: the first line of each message."""
        while True:
            try:
                self._said.append(self._socket.recv(4096).decode().splitlines()[0])
            except BlockingIOError:
                return self._said

    @property
    def states(self) -> list[str]:
        """The same without the watchdog's messages."""
        return [one for one in self.said if one != "WATCHDOG=1"]

    def close(self) -> None:
        self._socket.close()
