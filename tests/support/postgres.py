"""A throw-away PostgreSQL cluster of Debian's package, on a unix socket, for the tests that need one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg
import pytest

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None)
needs_postgres = pytest.mark.skipif(not PROGRAMS, reason="Debian's package postgresql is not installed")
SETTINGS = ("fsync=off", "listen_addresses=", "max_connections=30", "shared_buffers=64MB")


class Postgres:
    """A running server. It refuses to run as root, so that it then runs as the user of Debian's package."""

    def __init__(self, folder: Path) -> None:
        assert PROGRAMS
        self.folder = folder
        self.data = folder / "data"
        self._as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self._numbers = count(1)
        if self._as_user:
            shutil.chown(folder, "postgres", "postgres")
        self._run(
            "initdb", "-D", str(self.data), "-U", "storehooks", "-A", "trust", "-E", "UTF8", "-N", "--locale=C.UTF-8"
        )
        self.start()

    def start(self) -> None:
        options = " ".join(f"-c {setting}" for setting in (*SETTINGS, f"unix_socket_directories={self.folder}"))
        self._run("pg_ctl", "-D", str(self.data), "-l", str(self.folder / "log"), "-w", "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")

    @property
    def pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def cpu_seconds(self) -> float:
        """CPU time of the server and its processes, also of those that have ended."""
        fields = (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in (self.pid, *self._children())
        )
        return sum(sum(map(int, one[11:15])) for one in fields) / os.sysconf("SC_CLK_TCK")

    def signal_all(self, number: signal.Signals) -> None:
        """To the server and its processes, such as SIGSTOP: then it accepts connections and answers nothing."""
        for pid in (self.pid, *self._children()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _children(self) -> list[int]:
        return list(map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()))

    def url(self, database: str = "postgres", user: str = "storehooks") -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"history{next(self._numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def _run(self, program: str, *arguments: str) -> None:
        assert PROGRAMS
        command = [*self._as_user, str(PROGRAMS.with_name(program)), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="storehooks-postgres-", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder))
        try:
            yield server
        finally:
            with suppress(AssertionError, FileNotFoundError):
                server.stop()
