"""A stand-in for systemd: it runs the unit files of docs/how-to/deploy.md as processes of the test."""

from __future__ import annotations

import configparser
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.harness import eventually
from tests.support.notify_socket import NotifySocket
from tests.support.programs import Process

NOTIFY_SECONDS = 60
ACTIVATED = """import os, sys
os.dup2(int(sys.argv[1]), 3, inheritable=True)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Passes a listening socket to a program, as systemd does."""


class Services:
    """What `systemctl` does, with the unit files of a folder. The processes end with the test."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.environ = environ
        self.running: dict[str, Process] = {}
        self.sockets: dict[str, socket.socket] = {}
        """By service: what its .socket unit listens on, also while the service is stopped."""
        self.wait_until_ready: dict[str, Callable[[], bool]] = {}
        """By service: whether it can be used. Starting it waits for that, as a person would."""

    def systemctl(self, line: str) -> None:
        _, verb, *words = shlex.split(line)
        names = [word for word in words if not word.startswith("-")]
        if verb == "enable":
            assert "--now" in words, line
            verb = "start"
        if verb != "daemon-reload":
            for name in names:
                getattr(self, verb)(name)

    def unit(self, name: str, kind: str = "service") -> configparser.SectionProxy:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        assert parser.read(self.folder / f"{name}.{kind}"), name
        return parser[kind.capitalize()]

    def start(self, name: str) -> None:
        if name.endswith(".socket"):
            self._listen(name.removesuffix(".socket"))
            return
        unit = self.unit(name)
        if name in self.running and self.running[name].alive:
            return
        given = dict(word.split("=", 1) for word in shlex.split(unit.get("Environment", "")))
        log, folder = self.folder / f"{name}.log", Path(unit.get("WorkingDirectory", "/"))
        command = shlex.split(unit["ExecStart"])
        keep: tuple[int, ...] = ()
        if (self.folder / f"{name}.socket").exists():
            keep = (self._listen(name),)
            command = [sys.executable, "-c", ACTIVATED, str(keep[0]), *command]
        notify = NotifySocket(self.folder, abstract=True)  # the paths of tests are too long for a socket
        notifies = unit.get("Type") == "notify"
        environ = {**self.environ, **given, **(notify.environ() if notifies else {})}
        self.running[name] = Process(command, log=log, env=environ, cwd=folder, keep=keep)
        if notifies:
            eventually(lambda: "READY=1" in notify.said, NOTIFY_SECONDS, what=f"{name} says that it is ready")
        notify.close()
        eventually(self.wait_until_ready.get(name, lambda: True), 60, what=f"{name} is ready")

    def _listen(self, name: str) -> int:
        """The descriptor of the service's socket, which is created once."""
        if name not in self.sockets:
            host, _, port = self.unit(name, "socket")["ListenStream"].rpartition(":")
            self.sockets[name] = socket.create_server((host, int(port)))
        return self.sockets[name].fileno()

    def stop(self, name: str) -> None:
        self.running[name].stop(float(self.unit(name).get("TimeoutStopSec", "15")))

    def restart(self, name: str) -> None:
        if name in self.running:
            self.stop(name)
        self.start(name)

    def reload(self, name: str) -> None:
        before = self.running[name].output().count('"reloaded"')
        command = self.unit(name)["ExecReload"].replace("$MAINPID", str(self.running[name].pid))
        subprocess.run(shlex.split(command), check=True)
        if name.endswith("worker"):
            eventually(lambda: self.running[name].output().count('"reloaded"') > before, 60, what=f"{name} reloaded")

    def close(self) -> None:
        for process in reversed(self.running.values()):
            if process.alive:
                process.stop(40)
        for listening in self.sockets.values():
            listening.close()
