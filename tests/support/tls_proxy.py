"""TLS in front of a server that has none, with a certificate of its own."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest


class TlsProxy:
    """A TLS listener in front of a server without TLS."""

    def __init__(self, folder: Path, upstream: Path, *, dated: str = "", requires_certificate: bool = False) -> None:
        self.certificate, key = folder / "cert.pem", folder / "key.pem"
        dating = ["faketime", dated] if dated else []
        for program in ("openssl", *dating[:1]):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not installed")
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=redis.test"]
        names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run([*dating, *command, *names], check=True, capture_output=True)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, key)
        if requires_certificate:  # its own counts, too
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(self.certificate)
        self._upstream = str(upstream)
        self.closed_early = 0
        """So many connections are closed during the handshake, as if an alert was lost."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url = f"rediss://127.0.0.1:{self.port}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.closed_early:
                self.closed_early -= 1
                client.recv(1 << 16)
                client.close()
                continue
            with contextlib.suppress(OSError):  # a client that does not trust the certificate closes the connection
                inner = self._context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
                try:
                    inner.do_handshake()
                except ssl.SSLError:
                    _close_after_alert(inner)
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                for one, other in ((inner, server), (server, inner)):
                    threading.Thread(target=_forward, args=(one, other), daemon=True).start()


def _close_after_alert(inner: ssl.SSLSocket) -> None:
    """Close it once the client has, as servers do. Closed at once, the alert could be lost: data is still unread."""
    with socket.socket(fileno=inner.detach()) as plain:
        plain.settimeout(2)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(1 << 16):
            pass


def _forward(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := one.recv(1 << 16):
            other.sendall(piece)
        other.shutdown(socket.SHUT_RDWR)
