"""Processes with their CPU time, and Redis servers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from receiver.inbox import Housekeeping, connect, server_url
from receiver.inbox.redis import embedded_server
from workers.processes import die_with_parent
from workers.testing.local_system import wait_until

ROOT = Path(__file__).parent.parent
TICK = os.sysconf("SC_CLK_TCK")
OUR_PYTHON = ROOT / ".venv" / "bin" / "python"
PEERS_PYTHON = ROOT / "benchmarks" / ".venv" / "bin" / "python"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Process:
    """A process in its own session, so that it can be paused and stopped together with its children."""

    def __init__(self, command: list[str], *, folder: Path, name: str, env: dict[str, str] | None = None) -> None:
        self.log = folder / f"{name}.log"
        environ = {
            name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "PORT", "WEB_CONCURRENCY")
        }
        parent = os.getpid()
        with open(self.log, "ab") as output:
            self.popen = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**environ, **(env or {})},
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509  this process has one thread
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def tree(self) -> list[int]:
        return [self.pid, *_descendants(self.pid)]

    def cpu(self) -> float:
        """CPU seconds of this process and its descendants, including those that have ended."""
        return sum(cpu_of(pid) for pid in self.tree())

    def signal_all(self, number: signal.Signals) -> None:
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        tree = self.tree()
        if self.popen.poll() is None:
            self.signal_all(signal.SIGCONT)
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(5)
        for pid in tree:  # children in other sessions may outlive it
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.popen.wait(5)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-600:]


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from _descendants(child)


def cpu_of(pid: int) -> float:
    """User and system time, including children that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICK


class Server:
    """A separate Valkey server on a unix socket, started as `storehooks dev` does except for `appendfsync`."""

    def __init__(self, folder: Path, name: str, *, fsync: str = "everysec") -> None:
        self.folder = folder / f"redis-{name}"
        self.folder.mkdir(parents=True)
        self.url = server_url("", self.folder)
        self.socket = self.url.removeprefix("unix://")
        self.client: Redis = connect(self.url, timeout=60)
        command = [*embedded_server.command(embedded_server.binary(), self.folder), "--appendfsync", fsync]
        self.process = Process(command, folder=folder, name=f"redis-{name}")
        wait_until(self._answers, within=10, what=f"the Redis server answers; {self.process.tail()}")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False

    def set_appendfsync(self, value: str) -> None:
        self.client.config_set("appendfsync", value)

    def memory(self) -> int:
        return int(self.client.info("memory")["used_memory"])

    def empty(self) -> None:
        """Delete all data and compact the append-only file.

        Otherwise a rewrite of the file could start during the next turn. It takes a core for 0.15 s, about every
        20,000 events.
        """
        self.client.execute_command("FLUSHALL", "SYNC")  # an asynchronous flush would cost CPU in the next turn
        self.wait_for_rewrite()
        self.client.bgrewriteaof()
        self.wait_for_rewrite()

    def wait_for_rewrite(self) -> None:
        """Wait until no rewrite of the append-only file is in progress. One starts when the file has grown."""
        wait_until(self._has_rewritten, within=300, what="the append-only file is rewritten")

    def _has_rewritten(self) -> bool:
        return not self.client.info("persistence")["aof_rewrite_in_progress"]

    def trim(self) -> None:
        """Delete settled events, as the housekeeper does after the retention time."""
        housekeeping = Housekeeping(self.client)
        while any(housekeeping.trim(bodies=-1, records=-1)):
            pass

    def stop(self) -> None:
        self.client.close()
        self.process.stop()
