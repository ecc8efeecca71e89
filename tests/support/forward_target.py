"""What events are forwarded to: it verifies each with the standardwebhooks library, and fails some.

As a program, which a test can kill, it appends the id of each event that it answers 2xx to a file.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from standardwebhooks import Webhook, WebhookVerificationError


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Target(ThreadingHTTPServer):
    """In the test's own process: records requests, and answers as the test says."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Recorder)
        self.received: list[Received] = []
        self.answer: tuple[int, dict[str, str], bytes] | None = (200, {}, b"")
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """The other side may end a connection before the answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer_to(self, received: Received) -> tuple[int, dict[str, str], bytes] | None:
        """None closes the connection without an answer."""
        self.received.append(received)
        return self.answer


class HangingTarget(Target):
    """Answers no request until the test says so."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        super().__init__()

    def answer_to(self, received: Received) -> tuple[int, dict[str, str], bytes] | None:
        self.received.append(received)
        self.answers.wait(60)
        return self.answer


class _Recorder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        headers = {name.lower(): value for name, value in self.headers.items()}
        server: Target = self.server  # type: ignore[assignment]
        answer = server.answer_to(Received(self.path, headers, body))
        if answer is None:
            self.close_connection = True
            return
        status, more, content = answer
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class FlakyTarget(Target):
    """Answers a share of all requests 500, and appends one line for each other request: id, or what is wrong."""

    def __init__(self, port: int, file: str, secret: str, share: float) -> None:
        self._webhook = Webhook(secret)
        self._file = open(file, "a", buffering=1)  # noqa: SIM115  open as long as the process lives
        self._share = share
        super().__init__(port)

    def answer_to(self, received: Received) -> tuple[int, dict[str, str], bytes] | None:
        if random.random() < self._share:
            return 500, {}, b"out of luck"
        try:
            self._webhook.verify(received.body, received.headers)
            line = received.headers["webhook-id"]
        except WebhookVerificationError as error:
            line = f"invalid: {error}"
        self._file.write(json.dumps(line) + "\n")
        return 204, {}, b""


if __name__ == "__main__":
    FlakyTarget(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
    threading.Event().wait()
