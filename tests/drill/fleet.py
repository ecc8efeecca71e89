"""An installation of two hosts: each has a receiver, workers, a `data_dir` and ports of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
from redis import Redis
from redis.exceptions import RedisError

from receiver import config as config_room
from receiver.config import Config
from receiver.inbox import EventQueries, connect_to
from receiver.inbox.queries.health import HealthQueries
from receiver.spool import open_events
from tests.drill.front import Front
from tests.support.harness import OTHER_SECRET, SECRET, Process, children_of, comm, eventually
from tests.support.programs import ROOT
from workers.testing.local_system import free_port

CURRENT = Path(sys.executable).parent
"""The programs of this checkout."""
PROCESSES = (2, 1)
"""Worker processes of each host."""
HANDLERS = ("shop.fast", "shop.slow")
START_SECONDS = 60.0
CONFIG = """
[redis]
data_dir = "{data}"
{redis}
[receiver]
bind = "127.0.0.1:{port}"
public_url = "http://127.0.0.1:{front}"
processes = 1
# Short times: else `doctor` warns that this rate, day after day, fills the machine's memory.
dedupe_window = "1h"
spool_age = "1h"
[retention]
bodies = "1h"
records = "1h"
[workers]
plugins = ["{plugin}"]
processes = {processes}
child_processes = {child_processes}
drain = "10s"
"""
STORE = """
[stores.{name}]
signing_secrets = ["{secret}"]
"""
STORES = {"north": SECRET, "south": OTHER_SECRET}
PLUGIN = """
import os, random, time
from storehooks import Router

VERSION = "{version}"
router = Router("shop")
effects = os.open("{effects}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(event, name):
    os.write(effects, f"{{event.id}} shop.{{name}} {{time.time():.3f}} {{VERSION}}\\n".encode())

@router.on("*", retries=(0.1,) * 20)
def fast(event, ctx):
    note(event, "fast")

@router.on("*", retries=(0.1,) * 20)
def slow(event, ctx):
    if random.random() < 0.05:
        time.sleep(0.02)
    note(event, "slow")
"""


class Host:
    """One machine: a receiver and workers, run by a stand-in for systemd."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.programs = programs
        self.port = free_port()
        self.config_file = folder / "config.toml"
        (folder / "data").mkdir(parents=True, mode=0o700)
        self.web: Process | None = None
        self.workers: Process | None = None

    @property
    def config(self) -> Config:
        return config_room.load(self.config_file, {})

    def start(self) -> None:
        self.start_web()
        self.start_workers()

    def start_web(self) -> None:
        self.web = self._start("web")

    def start_workers(self) -> None:
        self.workers = self._start("worker")

    def _start(self, name: str) -> Process:
        command = [str(self.programs / "storehooks"), name, "--config", str(self.config_file)]
        return Process(command, log=self.folder / f"{name}.log", cwd=self.folder)

    def answers(self) -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{self.port}/readyz", timeout=2).status_code == 200
        except httpx2.HTTPError:
            return False

    def restart_web(self) -> None:
        assert self.web
        self.web.stop(40)
        self.start_web()
        eventually(self.answers, START_SECONDS, what=f"{self.folder.name} answers; {self.web.output()[-500:]}")

    def restart_workers(self) -> None:
        assert self.workers
        self.workers.stop(40)
        self.start_workers()

    def processes(self) -> list[Process]:
        return [one for one in (self.web, self.workers) if one]

    def all_pids(self) -> list[int]:
        return [pid for one in self.processes() for pid in (one.pid, *children_of(one.pid))]

    def below(self, process: Process | None, name: str) -> list[int]:
        assert process
        return [pid for pid in children_of(process.pid) if comm(pid).startswith(name)]

    def spooled(self) -> int:
        return open_events(self.config.data_dir).count()

    def signal_all(self, number: signal.Signals) -> None:
        for pid in self.all_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        self.signal_all(signal.SIGCONT)
        for process in self.processes():
            process.send(signal.SIGTERM)
        for process in self.processes():
            with suppress(subprocess.TimeoutExpired):
                process.stop(40)


class Fleet:
    """Both hosts, the proxy in front of them, and what their handlers did."""

    def __init__(
        self,
        folder: Path,
        redis: Sequence[str],
        *,
        programs: Path = CURRENT,
        processes: Sequence[int] = PROCESSES,
        child_processes: int = 2,
        plugin: str = PLUGIN,
        stores: Mapping[str, str] = STORES,
    ) -> None:
        """`redis` has the lines of `[redis]` of each host; `stores` their names and secrets."""
        self.folder = folder
        self.effects = folder / "effects.log"
        self.plugin = folder / "shop.py"
        self._plugin = plugin
        folder.mkdir(parents=True)
        self.effects.touch()
        self.write_plugin("1")
        self.hosts = [Host(folder / f"host-{number}", programs) for number in range(1, len(processes) + 1)]
        self.front = Front(folder / "front", [host.port for host in self.hosts])
        for host, number, lines in zip(self.hosts, processes, redis, strict=True):
            text = CONFIG.format(
                data=host.folder / "data",
                redis=lines,
                port=host.port,
                front=self.front.port,
                plugin=self.plugin,
                processes=number,
                child_processes=child_processes,
            )
            text += "".join(STORE.format(name=name, secret=secret) for name, secret in stores.items())
            host.config_file.write_text(text)
            host.config_file.chmod(0o600)
        self.client: Redis = connect_to(self.hosts[0].config.redis, timeout=5.0)
        self.ledger = EventQueries(self.client)

    def start(self) -> Fleet:
        for host in self.hosts:
            host.start()
        for host in self.hosts:
            assert host.web
            eventually(host.answers, START_SECONDS, what=f"web answers; {host.web.output()[-500:]}")
        number = sum(host.config.workers.processes for host in self.hosts)
        eventually(lambda: self._live_workers() >= number, START_SECONDS, what="all workers report")
        return self

    def _live_workers(self) -> int:
        try:
            return len(HealthQueries(self.client).workers())
        except RedisError:
            return 0

    def write_plugin(self, version: str) -> None:
        self.plugin.write_text(self._plugin.format(version=version, effects=self.effects))

    def is_idle(self) -> bool:
        """Whether every delivery that was accepted has been handled, and none waits in a spool."""
        try:
            waiting = self.ledger.counters().total["open"]
        except RedisError:
            return False
        return waiting == 0 and not any(host.spooled() for host in self.hosts)

    @contextmanager
    def load(self, rate: float, log: Path, stores: str = "") -> Iterator[None]:
        """Deliveries at this rate until the block ends, and until all are answered."""
        host = self.hosts[0]
        command = [sys.executable, "-m", "tests.drill.client", "--config", str(host.config_file), "--rate", str(rate)]
        command += ["--port", str(self.front.port), "--log", str(log), "--stores", stores]
        log.touch()
        sender = Process(command, log=log.with_suffix(".output"), cwd=ROOT)
        try:
            eventually(lambda: log.stat().st_size, 30, what=f"the client sends; {sender.output()}")
            yield
        finally:
            code = sender.stop(60)
        assert code == 0, sender.output()

    def accept_loss(self) -> None:
        """What an operator says once `doctor` has named a loss that cannot be undone."""
        command = [str(CURRENT / "storehooks"), "hosts", "accept", "--yes", "--config", str(self.hosts[0].config_file)]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)

    def start_doctor(self) -> Doctor:
        return Doctor(self.hosts[0].config_file, self.folder)

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        self.front.close()
        self.client.close()


class Doctor:
    """`storehooks doctor`, run on the first host as an operator would."""

    def __init__(self, config_file: Path, folder: Path) -> None:
        command = [str(CURRENT / "storehooks"), "doctor", "--json", "--timeout", "20s", "--config", str(config_file)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
        )

    @cached_property
    def findings(self) -> list[dict[str, Any]]:
        """Warnings and failures. Waits until it has looked at everything."""
        said, _ = self._process.communicate(timeout=180)
        try:
            found = json.loads(said)["findings"]
        except ValueError:
            return [{"level": "fail", "check": "doctor", "text": said.strip()[-200:]}]
        return [one for one in found if one["level"] != "ok"]
