"""The machine: processes with their cost, free ports, servers, and a folder that is gone afterwards."""

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
THEIR_PYTHON = ROOT / "benchmarks" / ".venv" / "bin" / "python"


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Process:
    """A process in a session of its own, so that it can be paused and ended with all it started."""

    def __init__(self, command: list[str], *, folder: Path, name: str, env: dict[str, str] | None = None) -> None:
        self.log = folder / f"{name}.log"
        kept = {k: v for k, v in os.environ.items() if k not in ("REDIS_URL", "PORT", "WEB_CONCURRENCY")}
        parent = os.getpid()
        with open(self.log, "ab") as output:
            self.popen = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**kept, **(env or {})},
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509  there is one thread here
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def tree(self) -> list[int]:
        return [self.pid, *_below(self.pid)]

    def cpu(self) -> float:
        """Seconds of CPU that it and all below it have used, those that have ended included."""
        return sum(_cpu_of(pid) for pid in self.tree())

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
        for pid in tree:  # children that outlive it, in sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.popen.wait(5)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-600:]


def _below(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from _below(child)


def _cpu_of(pid: int) -> float:
    """User and system time, with that of children it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICK


class Server:
    """A Valkey of its own on a unix socket, as `storehooks dev` starts it but for `appendfsync`."""

    def __init__(self, folder: Path, name: str, *, fsync: str = "everysec") -> None:
        self.folder = folder / f"redis-{name}"
        self.folder.mkdir(parents=True)
        self.url = server_url("", self.folder)
        self.socket = self.url.removeprefix("unix://")
        self.client: Redis = connect(self.url, timeout=60)
        command = [*embedded_server.command(embedded_server.binary(), self.folder), "--appendfsync", fsync]
        self.process = Process(command, folder=folder, name=f"redis-{name}")
        wait_until(self._answers, within=10, what=f"the server answers; {self.process.tail()}")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False

    def sync(self, how: str) -> None:
        self.client.config_set("appendfsync", how)

    def memory(self) -> int:
        return int(self.client.info("memory")["used_memory"])

    def empty(self) -> None:
        """Nothing is in it, and nothing of its file is left to be rewritten beside what the next turn asks: that takes
        a core for 0.15 s, about every 20,000 events."""
        self.client.execute_command("FLUSHALL", "SYNC")  # else what it frees is measured a moment later
        self.settle()
        self.client.bgrewriteaof()
        self.settle()

    def settle(self) -> None:
        """Wait until it no longer rewrites its file beside what it is asked, as it does after it has grown."""
        wait_until(self._has_rewritten, within=300, what="the file is rewritten")

    def _has_rewritten(self) -> bool:
        return not self.client.info("persistence")["aof_rewrite_in_progress"]

    def trim(self) -> None:
        """Forget what is settled, as the housekeeper would after its time."""
        housekeeping = Housekeeping(self.client)
        while any(housekeeping.trim(bodies=-1, records=-1)):
            pass

    def stop(self) -> None:
        self.client.close()
        self.process.stop()
