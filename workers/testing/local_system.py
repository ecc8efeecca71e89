"""The rig: the product in a folder of its own, for the test kit and for certification. Real processes, real server.

Law of this room: what it starts dies with it and leaves nothing but its folder; it listens on loopback only, on
ports that were free; its store is the sandbox, never a real one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import orjson
from redis.exceptions import RedisError

from receiver import config as config_room
from receiver.config import SANDBOX_SECRET, Config
from receiver.contract.errors import StorehooksError
from receiver.inbox import EventQueries, Inbox, connect, server_url
from receiver.inbox.redis import embedded_server
from workers.processes import die_with_parent

T = TypeVar("T")
STORE = "demo"
START_SECONDS = 30.0
STOP_SECONDS = 10.0
_LOOK_EVERY = 0.01
_CONFIG = """
[redis]
data_dir = {data}
[receiver]
bind = "127.0.0.1:{port}"
public_url = "http://127.0.0.1:{port}"
processes = 1
threads = 4
refused = "off"
[workers]
plugins = {plugins}
installed = {installed}
child_processes = {child_processes}
drain = "5s"
[subscriptions]
check = "off"
[sandbox]
bind = "127.0.0.1:{sandbox}"
[stores.{store}]
base_url = {api}
allow_private = true
auth = {{ url = "/oauth/token", client_id = "sandbox", client_secret = "sandbox-secret" }}
signing_secrets = ["{secret}"]
"""
_MODULES = {
    "web": ["receiver.server.web"],
    "workers": ["workers"],
    "sandbox": ["workers.cli", "sandbox", "--no-shopper", "--no-subscriptions"],
}


class LocalSystemError(StorehooksError):
    """Something of it did not start, or did not happen in time."""


def wait_until(condition: Callable[[], T | None], *, what: str, within: float = START_SECONDS) -> T:
    """The first true value of a condition, or RigError."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise LocalSystemError(f"not within {within:g} s: {what}")
        time.sleep(_LOOK_EVERY)
    return value


class LocalSystem:
    """A config, and the processes that live by it."""

    def __init__(
        self,
        folder: Path,
        *,
        plugins: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        installed: bool = False,
        child_processes: int = 2,
        api: str = "",
        more: str = "",
    ) -> None:
        self.folder = folder
        self.files = folder / "files"
        """Where workers run: what a handler writes to a relative path is here."""
        self.port, self._sandbox_port = free_port(), free_port()
        self.sandbox_url = api or f"http://127.0.0.1:{self._sandbox_port}"
        self.config_file = folder / "config.toml"
        for path in (self.files, folder / "data"):
            path.mkdir(parents=True, exist_ok=True)
        text = _CONFIG.format(
            data=toml(str(folder / "data")),
            port=self.port,
            sandbox=self._sandbox_port,
            plugins=toml(list(plugins)),
            installed=toml(installed),
            child_processes=child_processes,
            store=STORE,
            api=toml(self.sandbox_url),
            secret=SANDBOX_SECRET,
        )
        tables = [f"[plugins.{name}]\n{_table(values)}" for name, values in (settings or {}).items()]
        self.config_file.write_text("\n".join([text, *tables, more]))
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.client = connect(server_url("", folder / "data"), timeout=5.0)
        self.inbox, self.ledger = Inbox(self.client), EventQueries(self.client)

    @property
    def config(self) -> Config:
        return config_room.load(self.config_file, {})

    def start(self, *names: str, environ: Mapping[str, str] | None = None) -> None:
        """Start processes by name (server, web, workers, sandbox) and wait until they are of use."""
        for name in names:
            self._running[name] = self._popen(name, environ or {})
        for name in names:
            wait_until(lambda name=name: self._is_ready(name), what=f"{name} is ready")  # type: ignore[misc]

    def signal(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash would be."""
        process = self._running.pop(name)
        process.kill()
        process.wait(STOP_SECONDS)

    def stop(self, *names: str) -> None:
        """Stop processes in order; all of them where none is named."""
        for name in names or tuple(reversed(tuple(self._running))):
            process = self._running.pop(name)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)
        if not self._running:
            self.client.close()

    def said(self, name: str) -> str:
        """The end of what a process has printed."""
        return self._all_said(name)[-1500:]

    def _all_said(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _popen(self, name: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                self._command(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.files,
                env={**_environment(), **environ},
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509  between fork and exec, nothing else
            )

    def _command(self, name: str) -> list[str]:
        if name == "server":
            return embedded_server.command(embedded_server.binary(), self.folder / "data")
        return [sys.executable, "-m", *_MODULES[name], "--config", str(self.config_file)]

    def _is_ready(self, name: str) -> bool:
        if self._running[name].poll() is not None:
            raise LocalSystemError(f"{name} did not start: {self.said(name).strip()}")
        match name:
            case "server":
                with contextlib.suppress(RedisError):
                    return bool(self.client.ping())
            case "web":
                return _answers(f"http://127.0.0.1:{self.port}/healthz")
            case "sandbox":
                return _answers(f"http://127.0.0.1:{self._sandbox_port}/sandbox")
            case "workers":
                return "worker started" in self._all_said("workers")  # a plugin may print much in the same moment
        return False


def toml(value: Any) -> str:
    """A value as TOML: what settings are made of."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml(str(name))} = {toml(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return orjson.dumps(str(value)).decode()


def _table(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{toml(str(name))} = {toml(value)}" for name, value in values.items())


def _environment() -> dict[str, str]:
    """This process's, without what would change the config; modules are found where this process finds them."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STOREHOOKS_")}
    for name in ("REDIS_URL", "PORT", "WEB_CONCURRENCY"):
        kept.pop(name, None)
    path = [os.path.abspath(entry or ".") for entry in sys.path if not entry.endswith(".zip")]
    return {**kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def free_port() -> int:
    """A port of loopback where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
