"""The receivers that are compared: how each is started, and the measurement of one load run.

Each has two processes (adnanh/webhook: one process with a thread per core) and its own Redis server.
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
from benchmarks.processes import OUR_PYTHON, PEERS_PYTHON, ROOT, Process, Server, answers
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
{more}
"""
PLUGIN = """
from benchmarks.peers import run_counter
from workers import Router

router = Router("bench")
"""
NO_OP_HANDLER = '\n@router.on("*")\ndef handle(event, ctx):\n    run_counter.count_run()\n'
ORDERED_HANDLER = NO_OP_HANDLER.replace('"*"', '"*", order_by="resource"')
TIMED_HANDLER = '\n@router.on("*")\ndef handle(event, ctx):\n    run_counter.record_start(event.delivery_id)\n'
SLEEPING_HANDLER = (
    '\n@router.on("*")\ndef handle(event, ctx):\n    import time\n    run_counter.count_run()\n    time.sleep(0.002)\n'
)


IDLE_SECONDS, IDLE_CPU = 0.1, 0.2
"""A process is idle if it uses less than this fraction of a core for this many seconds."""
QUIET = ("--no-control-socket", "--log-level", "warning")


def write_config(
    folder: Path,
    server: Server,
    *,
    port: int = 0,
    handlers: str = NO_OP_HANDLER,
    workers: int = 1,
    child_processes: int = 4,
    name: str = "ours",
    more: str = "",
) -> Path:
    """Write a config of the product with a plugin, and return the config file."""
    own_folder = folder / name
    (own_folder / "data").mkdir(parents=True, exist_ok=True)
    (own_folder / "plugin.py").write_text(PLUGIN + handlers)
    filled = CONFIG.format(
        redis=server.url,
        data=own_folder / "data",
        port=port or free_port(),
        workers=workers,
        child_processes=child_processes,
        secret=load.SECRET,
        more=more,
    )
    (own_folder / "config.toml").write_text(filled)
    return own_folder / "config.toml"


class Receiver:
    """A running receiver with its Redis server."""

    def __init__(self, name: str, folder: Path, command: Callable[[Server, int], list[str]], path: str = "") -> None:
        self.name = name
        self.server = Server(folder, f"web-{name}")
        self.port = free_port()
        self._prepared_per_second = 20_000.0
        self.path = path or f"/webhooks/{load.STORE}"
        env = {"BENCH_REDIS": self.server.url, "BENCH_SECRET": load.SECRET, "BENCH_HANDLER": "handle_timed"}
        self.process = Process(command(self.server, self.port), folder=folder, name=name, env=env)
        wait_until(lambda: answers(self.port), within=20, what=f"{name} listens; {self.process.tail()}")

    def run(
        self, *, seconds: float, rate: float = 0.0, connections: int = 64, sent: Path | None = None
    ) -> dict[str, float]:
        """Run load for `seconds`. Return the rate, p50 and p99 in ms, and CPU in microseconds per request."""
        command = [sys.executable, "-m", "benchmarks.load", "--port", str(self.port), "--path", self.path]
        command += ["--seconds", str(seconds), "--rate", str(rate), "--connections", str(connections)]
        command += ["--prepare", str(int(self._prepared_per_second))] + (["--sent", str(sent)] if sent else [])
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            if client.stdout.readline() != "ready\n":
                raise RuntimeError(f"the load generator did not start: {self.process.tail()}")
            before = self.process.cpu(), self.server.process.cpu()
            client.stdin.write("go\n")
            client.stdin.flush()
            found = json.loads(client.stdout.readline())
            self._wait_until_idle()
            spent = self.process.cpu() - before[0], self.server.process.cpu() - before[1]
        if set(found["statuses"]) != {"200"}:
            raise RuntimeError(f"{self.name} answered {found['statuses']}: {self.process.tail()}")
        if not rate and seconds > 1:
            self._prepared_per_second = found["rate"] * 2 + 1000
        return {
            "rate": found["rate"],
            "p50": found["p50"] * 1000,
            "p99": found["p99"] * 1000,
            "cpu us": spent[0] / found["answers"] * 1e6,
            "redis us": spent[1] / found["answers"] * 1e6,
        }

    def _wait_until_idle(self) -> None:
        """Wait for deferred work, so that it counts for this receiver and does not slow the next turn.

        adnanh/webhook answers first and continues to start programs for seconds.
        """
        last = self.process.cpu()

        def is_idle() -> bool:
            nonlocal last
            time.sleep(IDLE_SECONDS)
            before, last = last, self.process.cpu()
            return last - before < IDLE_CPU * IDLE_SECONDS

        wait_until(is_idle, within=60, what=f"{self.name} is idle")

    def stop(self) -> None:
        self.process.stop()
        self.server.stop()


def storehooks(folder: Path, **options: object) -> Receiver:
    """The product's web process, started as in the Procfile."""

    def command(server: Server, port: int) -> list[str]:
        file = write_config(folder, server, port=port, **options)  # type: ignore[arg-type]
        return [str(OUR_PYTHON), "-m", "receiver.server.web", "--config", str(file)]

    return Receiver(US, folder, command)


def _gunicorn(app: str) -> Callable[[Server, int], list[str]]:
    def command(_: Server, port: int) -> list[str]:
        return [str(OUR_PYTHON), "-m", "gunicorn", "--workers", "2", "--bind", f"127.0.0.1:{port}", *QUIET, app]

    return command


def naive(folder: Path) -> Receiver:
    return Receiver("naive", folder, _gunicorn("benchmarks.peers.naive_app:app"))


def hello(folder: Path) -> Receiver:
    return Receiver("flask hello", folder, _gunicorn("benchmarks.peers.naive_app:hello"))


def fastapi(folder: Path) -> Receiver:
    def command(_: Server, port: int) -> list[str]:
        app = "benchmarks.peers.fastapi_app:app"
        return [str(PEERS_PYTHON), "-m", "uvicorn", app, "--workers", "2", "--port", str(port), "--no-access-log"]

    return Receiver("fastapi", folder, command)


def adnanh(folder: Path, *, program: str = "/bin/true", name: str = "adnanh") -> Receiver:
    """It verifies, answers, and passes the delivery on by starting a program: here the smallest one."""
    rule = {"type": "payload-hmac-sha256", "secret": load.SECRET_BYTES.decode()}
    rule["parameter"] = {"source": "header", "name": "X-Hub-Signature-256"}  # type: ignore[assignment]
    hook = {"id": load.STORE, "execute-command": program, "trigger-rule": {"match": rule}}
    hooks = folder / f"hooks-of-{name}.json"
    hooks.write_text(json.dumps([hook]))

    def command(_: Server, port: int) -> list[str]:
        webhook = shutil.which("webhook")
        assert webhook
        return [webhook, "-hooks", str(hooks), "-ip", "127.0.0.1", "-port", str(port)]

    return Receiver(name, folder, command, path=f"/hooks/{load.STORE}")


def adnanh_is_installed() -> bool:
    return shutil.which("webhook") is not None
