"""An upgrade from the last release, and back, under load. Old and new processes work on one server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from receiver import __version__
from receiver.inbox import keys
from receiver.inbox.redis.data_format import FORMAT
from receiver.spool import REFUSED_FILE
from tests.support.harness import Server, System, eventually
from tests.support.load import Load
from tests.support.programs import Process
from tests.support.releases import commits, installed, needs_release

LAST = next(version for version in commits() if version != __version__)
NEW_PROGRAMS = Path(sys.executable).parent
PLUGIN = """
import os
from receiver import __version__
from storehooks import Router

router = Router("shop")
handled = os.open(os.environ["HANDLED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@router.on("*", retries=(0.1,) * 20)
def note(event, ctx):
    os.write(handled, f"{event.id} {__version__}\\n".encode())
"""
ON_SOCKET = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
    "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); "
    "os.execv(sys.executable, [sys.executable, '-m', 'receiver.server.web', '--config', sys.argv[2]])"
)
pytestmark = [pytest.mark.full, pytest.mark.timeout(900), needs_release(LAST)]


class InstalledHost:
    """A host with a config and a data directory of its own, on which either version is started."""

    def __init__(self, folder: Path, url: str, listener: socket.socket, handled: Path, more: str = "") -> None:
        (folder / "data").mkdir(mode=0o700, parents=True)
        self.system = System(folder, url, plugin=PLUGIN, port=listener.getsockname()[1], more=more)
        self.folder, self.handled, self._listener = folder, handled, listener
        self.running: list[Process] = []

    def start(self, programs: Path) -> None:
        descriptor = os.dup(self._listener.fileno())
        os.set_inheritable(descriptor, True)
        config = str(self.system.config_file)
        web = [str(programs / "python"), "-c", ON_SOCKET, str(descriptor), config]
        worker = [str(programs / "storehooks"), "worker", "--config", config]
        environ = {"HANDLED": str(self.handled), "STOREHOOKS_WORKERS__PROCESSES": "1"}
        self.running = [
            Process(web, log=self.folder / "web.log", cwd=self.folder, keep=(descriptor,)),
            Process(worker, log=self.folder / "worker.log", cwd=self.folder, env=environ),
        ]
        os.close(descriptor)
        self.system.processes += self.running

    def receives(self) -> bool:
        """Whether its web process has reported. One that stops with an empty spool takes its report back."""
        report = self.system.ledger.spools().get(keys.host_of(self.system.config.data_dir))
        return report is not None and report.state == "receiving"

    def stop(self) -> None:
        for process in self.running:
            assert process.stop(60) == 0, process.output()[-2000:]

    def said(self, *command: str, programs: Path = NEW_PROGRAMS) -> str:
        words = [str(programs / "storehooks"), *command, "--config", str(self.system.config_file)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.folder, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def open_port() -> Iterator[socket.socket]:
    """It stays open while web processes are replaced, as a proxy's port does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        yield listener


def versions_of(handled: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in handled.read_text().splitlines() if handled.exists() else ():
        event_id, version = line.split()
        found.setdefault(event_id, set()).add(version)
    return found


def test_two_hosts_are_upgraded_and_put_back_one_after_the_other_under_load(tmp_path: Path, own_redis: Server) -> None:
    handled, old = tmp_path / "handled", installed(LAST)
    with open_port() as listener:
        hosts = [InstalledHost(tmp_path / name, own_redis.url, listener, handled) for name in ("a", "b")]
        try:
            for host in hosts:
                host.start(old)
            system = hosts[0].system
            eventually(lambda: all(host.receives() for host in hosts), 120)
            with Load(system, 2, pause=0.05) as kept, Load(system, 1, keep_alive=False, pause=0.05) as closing:
                work_goes_on(handled, kept, closing)
                for programs in (NEW_PROGRAMS, old):
                    for host in hosts:
                        host.stop()
                        host.start(programs)
                        eventually(host.receives, 120)
                        work_goes_on(handled, kept, closing)
            eventually(lambda: system.ledger.counters().total["open"] == 0, 120, what="all events are settled")
            answered, found = kept.ids | closing.ids, versions_of(handled)
            by_version = Counter(version for versions in found.values() for version in versions)
            twice = sum(len(versions) > 1 for versions in found.values())
            print(f"\n{kept}\n{closing}\nhandled: {dict(by_version)}, by both {twice}, lost {len(answered - {*found})}")
            for load in (kept, closing):
                assert (load.others, load.failed) == ([], [])
            assert answered - {*found} == set()
            assert min(by_version[LAST], by_version[__version__]) > 20
            assert system.ledger.counters().total["failed"] == 0
            assert system.identity_holds()
            assert system.client.get(keys.FORMAT) == str(FORMAT).encode()
        finally:
            for host in hosts:
                host.system.close()


def work_goes_on(handled: Path, *loads: Load) -> None:
    """Each sender gets answers, and what is answered from now on is handled."""
    before, runs = [len(load.answered) for load in loads], len(versions_of(handled))
    eventually(lambda: all(len(load.answered) > count + 15 for load, count in zip(loads, before, strict=True)), 120)
    eventually(lambda: len(versions_of(handled)) > runs + 30, 120, what="runs are performed")


def refused_so_far(system: System) -> int:
    return system.refusals().count() if (system.config.data_dir / REFUSED_FILE).exists() else 0


def test_each_version_reads_the_spool_the_refusals_and_the_history_of_the_other(
    tmp_path: Path, own_redis: Server
) -> None:
    """On one host. The first of each pair is stopped while Redis is away, with deliveries in its spool."""
    handled, old = tmp_path / "handled", installed(LAST)
    own_redis.client.config_set("appendonly", "yes")
    more = '[history]\nurl = "sqlite"\nafter = "1s"\n'
    with open_port() as listener:
        host = InstalledHost(tmp_path / "a", own_redis.url, listener, handled, more)
        system = host.system
        try:
            for first, second in ((old, NEW_PROGRAMS), (NEW_PROGRAMS, old)):
                host.start(first)
                eventually(system.web_answers, 120)
                past, number = system.deliver(), refused_so_far(system)
                eventually(lambda past=past: system.ledger.event(past) is None, 120, what="it is in the history")
                forged = system.http.post("/webhooks/north", content=b"{}", headers={"webhook-signature": "v1,x"})
                assert forged.status_code in (400, 401)
                system.refused(number + 1)
                own_redis.kill()
                spooled = [system.deliver() for _ in range(3)]
                host.stop()
                own_redis.start()
                assert not set(spooled) & {*versions_of(handled)}
                host.start(second)
                eventually(lambda ids=spooled: {*ids} <= {*versions_of(handled)}, 120, what="the spool was drained")
                assert past in host.said("events", "show", past, programs=second)
                assert host.said("refused", "list", "--json", programs=second).count('"reason"') >= number + 1
                host.said("events", "replay", past, "--yes", programs=second)
                eventually(lambda past=past: len(versions_of(handled)[past]) == 2, 120, what="both versions ran it")
                host.stop()
        finally:
            system.close()
