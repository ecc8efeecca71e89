"""A proxy in front of the Redis server that can delay a reply, or cut the connection in its place."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from receiver.inbox.redis.script_runner import ScriptCall


class Proxy:
    """Listens on a unix socket and forwards everything. `cut` and `at_reply` act on one command, once."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.path = str(folder / "proxy.sock")
        self.url = f"unix://{self.path}"
        self.upstream = upstream
        """The server of new connections. Open ones stay with theirs."""
        self._watch: tuple[bytes, Callable[[], bool]] | None = None
        self.fired = threading.Event()
        self._open: list[socket.socket] = []
        self.delay = 0.0
        """Seconds by which each reply is late."""
        self.deaf = False
        """New connections are accepted and never answered. Open ones still work."""
        self._flows = threading.Event()
        self._flows.set()
        self._listen()

    def cut(self, name: str) -> None:
        """Cut the connection in place of the next reply to this script."""
        self.at_reply(str(ScriptCall(name, ()).command[1]).encode(), lambda: False)

    def at_reply(self, pattern: bytes, act: Callable[[], bool]) -> None:
        """Call `act` when the server has answered the next command with this pattern. It returns whether to forward the
        reply."""
        self.fired.clear()
        self._watch = (pattern, act)

    def inject(self, data: bytes) -> None:
        """Send data to every client that the server has not sent."""
        for client in self._open[::2]:
            with contextlib.suppress(OSError):
                client.sendall(data)

    def cut_all(self) -> None:
        """Cut every connection, and accept none any more."""
        _shut_down(self._listener, *self._open)

    def accept_again(self) -> None:
        """Accept connections after `cut_all`."""
        self._listener.close()
        Path(self.path).unlink()
        self._listen()

    def hold(self) -> None:
        """Be a black hole: accept connections and bytes, and forward none until `release`."""
        self._flows.clear()

    def release(self) -> None:
        """Forward what was held and all that follows, as a network does after a fault."""
        self._flows.set()

    def close(self) -> None:
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.close()

    def _listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.socket(socket.AF_UNIX)
                if self.deaf:
                    self._open += [client, server]
                    continue
                try:
                    server.connect(self.upstream)
                except ConnectionRefusedError:  # the server was killed, and may be started again
                    client.close()
                    continue
                self._open += [client, server]
                matched = threading.Event()
                threading.Thread(target=self._forward_commands, args=(client, server, matched), daemon=True).start()
                threading.Thread(target=self._forward_replies, args=(client, server, matched), daemon=True).start()

    def _forward_commands(self, client: socket.socket, server: socket.socket, matched: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(1 << 16):
                if self._watch and self._watch[0] in piece:
                    matched.set()
                self._flows.wait()
                server.sendall(piece)
        _shut_down(client, server)

    def _forward_replies(self, client: socket.socket, server: socket.socket, matched: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while piece := server.recv(1 << 16):
                if matched.is_set() and self._watch:
                    matched.clear()
                    _, act = self._watch
                    self._watch = None
                    forward = act()
                    self.fired.set()
                    if not forward:
                        break
                time.sleep(self.delay)
                self._flows.wait()
                client.sendall(piece)
        _shut_down(client, server)


def _shut_down(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
