"""The product in a folder of its own, as real processes with a real server: for the test kit and for certification.

Law of this room: what it starts dies with it and leaves nothing but its folder; it listens on loopback only, on
ports that were free; its store is the sandbox, never a real one.
"""

from __future__ import annotations

import contextlib
import datetime
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
import tomli_w
from redis.exceptions import RedisError

from receiver import config as config_room
from receiver.config import SANDBOX_SECRET, Config
from receiver.contract.errors import StorehooksError
from receiver.inbox import EventQueries, Inbox, connect, server_url
from receiver.inbox.redis import embedded_server
from workers.processes import die_with_parent, python_command

T = TypeVar("T")
STORE = "demo"
START_SECONDS = 30.0
STOP_SECONDS = 10.0
_POLL_SECONDS = 0.01
_MODULES = {
    "web": ["receiver.server.web"],
    "workers": ["workers"],
    "sandbox": ["workers.cli", "sandbox", "--no-shopper", "--no-subscriptions"],
}


class LocalSystemError(StorehooksError):
    """A process did not start, or a condition was not met in time."""


def wait_until(condition: Callable[[], T | None], *, what: str, within: float = START_SECONDS) -> T:
    """Poll a condition and return its first true value; raise LocalSystemError after `within` seconds."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise LocalSystemError(f"timed out after {within:g} s: {what}")
        time.sleep(_POLL_SECONDS)
    return value


class LocalSystem:
    """A config file and the processes that run on it."""

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
        """The workers' working directory. Files that handlers write to relative paths are here."""
        self.port, self._sandbox_port = free_port(), free_port()
        self.sandbox_url = api or f"http://127.0.0.1:{self._sandbox_port}"
        self.config_file = folder / "config.toml"
        for path in (self.files, folder / "data"):
            path.mkdir(parents=True, exist_ok=True)
        values = self._config_values(plugins, installed, child_processes)
        if settings:
            values["plugins"] = _plain(settings)
        self.config_file.write_text(f"{tomli_w.dumps(values)}\n{more}")
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.client = connect(server_url("", folder / "data"), timeout=5.0)
        self.inbox, self.events = Inbox(self.client), EventQueries(self.client)

    def _config_values(self, plugins: Sequence[str], installed: bool, child_processes: int) -> dict[str, Any]:
        own_address = f"127.0.0.1:{self.port}"
        store = {
            "base_url": self.sandbox_url,
            "allow_private": True,
            "auth": {"url": "/oauth/token", "client_id": "sandbox", "client_secret": "sandbox-secret"},
            "signing_secrets": [SANDBOX_SECRET],
        }
        return {
            "redis": {"data_dir": str(self.folder / "data")},
            "receiver": {
                "bind": own_address,
                "public_url": f"http://{own_address}",
                "processes": 1,
                "threads": 4,
                "refused": "off",
            },
            "workers": {
                "plugins": list(plugins),
                "installed": installed,
                "child_processes": child_processes,
                "drain": "5s",
            },
            "subscriptions": {"check": "off"},
            "sandbox": {"bind": f"127.0.0.1:{self._sandbox_port}"},
            "stores": {STORE: store},
        }

    @property
    def config(self) -> Config:
        return config_room.load(self.config_file, {})

    def start(self, *names: str, environ: Mapping[str, str] | None = None) -> None:
        """Start processes by name (server, web, workers, sandbox) and wait until they are ready."""
        for name in names:
            self._running[name] = self._popen(name, environ or {})
        for name in names:
            wait_until(lambda name=name: self._is_ready(name), what=f"{name} is ready")  # type: ignore[misc]

    def signal(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    def kill(self, name: str) -> None:
        """Send SIGKILL, to simulate a crash."""
        process = self._running.pop(name)
        process.kill()
        process.wait(STOP_SECONDS)

    def stop(self, *names: str) -> None:
        """Stop these processes in order; without names, all of them, the last started first."""
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

    def log_tail(self, name: str) -> str:
        """The end of a process's log."""
        return self._log(name)[-1500:]

    def _log(self, name: str) -> str:
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
        return python_command(*_MODULES[name], config=self.config_file)

    def _is_ready(self, name: str) -> bool:
        if self._running[name].poll() is not None:
            *earlier, sentence = self.log_tail(name).strip().splitlines() or ["its log is empty"]
            log = "\n".join(("", "The lines before, in its log:", *earlier)) if earlier else ""
            raise LocalSystemError(f"{name} did not start: {sentence}{log}")
        match name:
            case "server":
                with contextlib.suppress(RedisError):
                    return bool(self.client.ping())
            case "web":
                return _answers(f"http://127.0.0.1:{self.port}/healthz")
            case "sandbox":
                return _answers(f"http://127.0.0.1:{self._sandbox_port}/sandbox")
            case "workers":
                return "worker started" in self._log("workers")  # the whole log: a plugin may print a lot after it
        return False


def _plain(value: Any) -> Any:
    """Settings as TOML can express them; a path or another object becomes its text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | datetime.date | datetime.time) else str(value)


def _environment() -> dict[str, str]:
    """This process's environment, without variables that override the config. Modules are found on the same path."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STOREHOOKS_")}
    for name in ("REDIS_URL", "PORT", "WEB_CONCURRENCY"):
        environ.pop(name, None)
    path = [os.path.abspath(entry or ".") for entry in sys.path if not entry.endswith(".zip")]
    return {**environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path))}


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def free_port() -> int:
    """A loopback port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
