"""A stand-in for systemd: it runs the unit files of docs/how-to/deploy.md as processes of the test."""

from __future__ import annotations

import configparser
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.harness import eventually
from tests.support.programs import Process


class Services:
    """What `systemctl` does, with the unit files of a folder. The processes end with the test."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.environ = environ
        self.running: dict[str, Process] = {}
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

    def unit(self, name: str) -> configparser.SectionProxy:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        assert parser.read(self.folder / f"{name}.service"), name
        return parser["Service"]

    def start(self, name: str) -> None:
        unit = self.unit(name)
        if name in self.running and self.running[name].alive:
            return
        given = dict(word.split("=", 1) for word in shlex.split(unit.get("Environment", "")))
        log, folder = self.folder / f"{name}.log", Path(unit.get("WorkingDirectory", "/"))
        environ = {**self.environ, **given}
        self.running[name] = Process(shlex.split(unit["ExecStart"]), log=log, env=environ, cwd=folder)
        eventually(self.wait_until_ready.get(name, lambda: True), 60, what=f"{name} is ready")

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
