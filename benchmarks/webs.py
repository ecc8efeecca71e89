"""The receivers that are compared: how each is started, and what one run of load against it gives.

Each has two processes (adnanh/webhook: one with as many threads as there are cores) and a server of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import load
from benchmarks.machine import OUR_PYTHON, ROOT, THEIR_PYTHON, Process, Server, answers
from benchmarks.targets import US
from workers.testing.local_system import free_port, wait_until

CONFIG = """
[redis]
url = "{redis}"
data_dir = "{data}"
[receiver]
bind = "127.0.0.1:{port}"
public_url = "http://127.0.0.1:{port}"
processes = 2
[workers]
plugins = ["plugin.py"]
processes = {workers}
child_processes = {child_processes}
[stores.bench]
signing_secrets = ["{secret}"]
"""
PLUGIN = """
from benchmarks.comparators import counting
from workers import Router

router = Router("bench")
"""
NO_OP = '\n@router.on("*")\ndef note(event, ctx):\n    counting.note()\n'
TIMED = '\n@router.on("*")\ndef note(event, ctx):\n    counting.note_time(event.delivery_id)\n'
SLEEPY = '\n@router.on("*")\ndef note(event, ctx):\n    import time\n    counting.note()\n    time.sleep(0.002)\n'


REST, IDLE = 0.1, 0.2
"""What uses less than that part of a core for so many seconds has come to rest."""
QUIET = ("--no-control-socket", "--log-level", "warning")


def product(
    folder: Path,
    server: Server,
    *,
    port: int = 0,
    handlers: str = NO_OP,
    workers: int = 1,
    child_processes: int = 4,
    name: str = "ours",
) -> Path:
    """A config of the product, with a plugin; gives its file."""
    place = folder / name
    (place / "data").mkdir(parents=True, exist_ok=True)
    (place / "plugin.py").write_text(PLUGIN + handlers)
    filled = CONFIG.format(
        redis=server.url,
        data=place / "data",
        port=port or free_port(),
        workers=workers,
        child_processes=child_processes,
        secret=load.SECRET,
    )
    (place / "config.toml").write_text(filled)
    return place / "config.toml"


class Web:
    """A receiver at work, with its server."""

    def __init__(self, name: str, folder: Path, command: Callable[[Server, int], list[str]], path: str = "") -> None:
        self.name = name
        self.server = Server(folder, f"web-{name}")
        self.port = free_port()
        self._most = 20_000.0
        self.path = path or f"/webhooks/{load.STORE}"
        env = {"BENCH_REDIS": self.server.url, "BENCH_SECRET": load.SECRET, "BENCH_HANDLER": "handle_timed"}
        self.process = Process(command(self.server, self.port), folder=folder, name=name, env=env)
        wait_until(lambda: answers(self.port), within=20, what=f"{name} listens; {self.process.tail()}")

    def run(
        self, *, seconds: float, rate: float = 0.0, connections: int = 64, sent: Path | None = None
    ) -> dict[str, float]:
        """Load for so long; give rate, p50, p99 in ms, and CPU in microseconds for each request."""
        command = [sys.executable, "-m", "benchmarks.load", "--port", str(self.port), "--path", self.path]
        command += ["--seconds", str(seconds), "--rate", str(rate), "--connections", str(connections)]
        command += ["--most", str(int(self._most))] + (["--sent", str(sent)] if sent else [])
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            if client.stdout.readline() != "ready\n":
                raise RuntimeError(f"{self.name} took no load: {self.process.tail()}")
            before = self.process.cpu(), self.server.process.cpu()
            client.stdin.write("go\n")
            client.stdin.flush()
            found = json.loads(client.stdout.readline())
            self._come_to_rest()
            spent = self.process.cpu() - before[0], self.server.process.cpu() - before[1]
        if set(found["statuses"]) != {"200"}:
            raise RuntimeError(f"{self.name} answered {found['statuses']}: {self.process.tail()}")
        if not rate and seconds > 1:
            self._most = found["rate"] * 2 + 1000
        return {
            "rate": found["rate"],
            "p50": found["p50"] * 1000,
            "p99": found["p99"] * 1000,
            "cpu us": spent[0] / found["answers"] * 1e6,
            "redis us": spent[1] / found["answers"] * 1e6,
        }

    def _come_to_rest(self) -> None:
        """Until it does nothing more, so that what it put off is its own cost and slows nobody else's turn:
        adnanh/webhook answers first, and goes on starting programs for seconds."""
        last = self.process.cpu()

        def rests() -> bool:
            nonlocal last
            time.sleep(REST)
            before, last = last, self.process.cpu()
            return last - before < IDLE * REST

        wait_until(rests, within=60, what=f"{self.name} comes to rest")

    def stop(self) -> None:
        self.process.stop()
        self.server.stop()


def ours(folder: Path, **how: object) -> Web:
    """The product's web process, started as the Procfile does."""

    def command(server: Server, port: int) -> list[str]:
        file = product(folder, server, port=port, **how)  # type: ignore[arg-type]
        return [str(OUR_PYTHON), "-m", "receiver.server.web", "--config", str(file)]

    return Web(US, folder, command)


def _gunicorn(app: str) -> Callable[[Server, int], list[str]]:
    def command(_: Server, port: int) -> list[str]:
        return [str(OUR_PYTHON), "-m", "gunicorn", "--workers", "2", "--bind", f"127.0.0.1:{port}", *QUIET, app]

    return command


def naive(folder: Path) -> Web:
    return Web("naive", folder, _gunicorn("benchmarks.comparators.naive:app"))


def hello(folder: Path) -> Web:
    return Web("flask hello", folder, _gunicorn("benchmarks.comparators.naive:hello"))


def fastapi(folder: Path) -> Web:
    def command(_: Server, port: int) -> list[str]:
        app = "benchmarks.comparators.fast:app"
        return [str(THEIR_PYTHON), "-m", "uvicorn", app, "--workers", "2", "--port", str(port), "--no-access-log"]

    return Web("fastapi", folder, command)


def adnanh(folder: Path, *, program: str = "/bin/true", name: str = "adnanh") -> Web:
    """It verifies, answers, and hands the delivery on by starting a program: the smallest there is."""
    rule = {"type": "payload-hmac-sha256", "secret": load.SECRET_BYTES.decode()}
    rule["parameter"] = {"source": "header", "name": "X-Hub-Signature-256"}  # type: ignore[assignment]
    hook = {"id": load.STORE, "execute-command": program, "trigger-rule": {"match": rule}}
    hooks = folder / f"hooks-of-{name}.json"
    hooks.write_text(json.dumps([hook]))

    def command(_: Server, port: int) -> list[str]:
        webhook = shutil.which("webhook")
        assert webhook
        return [webhook, "-hooks", str(hooks), "-ip", "127.0.0.1", "-port", str(port)]

    return Web(name, folder, command, path=f"/hooks/{load.STORE}")


def adnanh_is_here() -> bool:
    return shutil.which("webhook") is not None
