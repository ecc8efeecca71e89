"""The units of deploy/systemd: systemd's own checkers, its socket activation, and a restart under load."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import httpx2
import pytest

from tests.support.deployment import deployed
from tests.support.harness import System, eventually, free_port, own_server
from tests.support.programs import ROOT, Process

UNITS = ROOT / "deploy/systemd"
SERVICES = ("web", "worker", "console")
SECRET = "the secret of north"
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")


def copies(folder: Path) -> list[Path]:
    """The units with a program that is installed here."""
    found = []
    for unit in sorted(UNITS.iterdir()):
        found.append(folder / unit.name)
        found[-1].write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", unit.read_text()))
    return found


def section(name: str, of: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    assert parser.read(UNITS / f"storehooks-{name}.service")
    return dict(parser[of])


def test_the_services_differ_only_in_what_they_run() -> None:
    web, worker, console = (section(name, "Service") for name in SERVICES)
    for name, unit in zip(SERVICES, (web, worker, console), strict=True):
        assert unit.pop("ExecStart") == f"/opt/storehooks/bin/storehooks {name}"
    assert web.pop("LimitNOFILE")
    restarts = [(unit.pop("RestartSec"), unit.pop("RestartPreventExitStatus", "")) for unit in (web, worker, console)]
    assert restarts == [("1", "2"), ("10", ""), ("1", "2")]  # a plugin may need a server that is not up yet
    assert web == worker == console


@pytest.mark.full
@needs_systemd
def test_systemd_knows_every_line_of_the_units(tmp_path: Path) -> None:
    for unit in copies(tmp_path):
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert "storehooks-" not in done.stderr, done.stderr


@pytest.mark.full
@needs_systemd
def test_the_services_may_do_little(tmp_path: Path) -> None:
    """An exposure of 10 is a service without restrictions."""
    for unit in copies(tmp_path):
        if unit.suffix == ".service":
            check = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", unit]
            done = subprocess.run(check, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("systemd-socket-activate"), reason="systemd-socket-activate is not installed")
def test_web_starts_with_the_socket_of_systemd(tmp_path: Path) -> None:
    """systemd listens; the first delivery starts the program, which answers it."""
    (tmp_path / "server").mkdir()
    port = free_port()
    with own_server(tmp_path / "server") as server:
        system = System(tmp_path, server.url, port=port)
        listen = ["systemd-socket-activate", "-l", f"127.0.0.1:{port}", "-E", f"STOREHOOKS_CONFIG={system.config_file}"]
        command = [*listen, "-E", f"PYTHONPATH={ROOT}", sys.executable, "-m", "storehooks", "web"]
        web = Process(command, log=tmp_path / "web.log")
        try:
            eventually(lambda: "Listening on" in web.output(), what="systemd listens")
            assert "web listens" not in web.output()
            request = system.request()
            url = f"http://127.0.0.1:{port}/webhooks/north"
            answer = httpx2.post(url, headers=request.headers, content=request.body, timeout=60)
            assert (answer.status_code, answer.json()["status"]) == (200, "accepted")
            assert f'"address":"127.0.0.1:{port}"' in web.output().replace('": "', '":"')
        finally:
            web.stop()
            system.close()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_restart_of_web_fails_no_delivery(tmp_path: Path) -> None:
    answers: Counter[object] = Counter()
    stop = threading.Event()
    with deployed(tmp_path, {"north.secret": SECRET}) as machine:
        store = machine.at_the_store(SECRET)

        def send() -> None:
            while not stop.is_set():
                try:
                    answers[machine.send(store, {"id": 1})] += 1
                except httpx2.HTTPError as error:
                    answers[type(error).__name__] += 1

        senders = [threading.Thread(target=send) for _ in range(4)]
        for sender in senders:
            sender.start()
        try:
            for _ in range(2):
                wanted = answers.total() + 20
                eventually(lambda wanted=wanted: answers.total() > wanted, 60, what="20 more answers")
                before = machine.services.running["storehooks-web"].pid
                machine.services.systemctl("systemctl restart storehooks-web")
                assert machine.services.running["storehooks-web"].pid != before
        finally:
            stop.set()
            for sender in senders:
                sender.join()
        assert set(answers) == {200}, answers
