"""A raw TCP server for tests: records what it receives, and answers with fixed bytes, slowly if asked."""

from __future__ import annotations

import socket
import threading
import time


class RawServer:
    """`pause`: seconds between two bytes of the answer."""

    def __init__(self, answer: bytes = b"HTTP/1.1 204 No Content\r\n\r\n", *, pause: float = 0.0) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.received: list[bytes] = []
        self.connections = 0
        self.answer = answer
        self.pause = pause
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer_connection, args=(connection,), daemon=True).start()

    def _answer_connection(self, connection: socket.socket) -> None:
        with connection:
            try:
                self.received.append(connection.recv(65536))
                if not self.pause:
                    connection.sendall(self.answer)
                    return
                for at in range(len(self.answer)):
                    connection.sendall(self.answer[at : at + 1])
                    time.sleep(self.pause)
            except OSError:
                return

    def close(self) -> None:
        self._socket.close()
