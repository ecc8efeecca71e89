"""The deployment of docs/how-to/deploy.md in a folder of a test: the page's files with other paths and ports."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from redis import Redis
from redis.exceptions import RedisError

from receiver.config import load
from receiver.contract.compose import compose
from receiver.contract.stores import Store
from receiver.inbox import EventQueries, connect
from receiver.inbox.queries.health import HealthQueries
from receiver.inbox.redis import embedded_server
from tests.support.harness import free_port
from tests.support.page_reader import PageReader, Step, steps
from tests.support.programs import ROOT
from tests.support.services import Services

PAGE = ROOT / "docs/how-to/deploy.md"
OTHER_USERS = ("useradd ", "chown ", "su ")
"""Commands that change the users of the machine: a test runs as its own user."""
REDIS_UNIT = "[Service]\nExecStart={binary} {conf}\n"
EDITOR = """#!/bin/sh
cp {edits}/$(basename "$1") "$1"
"""


class Deployment(PageReader):
    """An administrator who follows pages on a machine of our own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.redis_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.etc, self.data = folder / "etc/storehooks", folder / "var/lib/storehooks"
        self.words |= {
            "/usr/local/bin": str(folder / "bin"),
            "/opt/storehooks": str(folder / "opt/storehooks"),
            "/etc": str(folder / "etc"),
            "/var/lib": str(folder / "var/lib"),
            "127.0.0.1:8000": f"127.0.0.1:{self.port}",
            "https://hooks.example.com": self.url,
            "6379": str(self.redis_port),
        }
        for name in ("bin", "edits", "etc/systemd/system", "var/lib/redis"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        editor = folder / "bin/editor"
        editor.write_text(EDITOR.format(edits=folder / "edits"))
        editor.chmod(0o755)
        self.environ |= {"EDITOR": str(editor)}
        self.services = Services(folder / "etc/systemd/system", self.environ)
        unit = REDIS_UNIT.format(binary=embedded_server.binary(), conf=folder / "etc/redis/redis.conf")
        (folder / "etc/systemd/system/redis-server.service").write_text(unit)
        self.services.wait_until_ready = {
            "redis-server": self.redis_answers,
            "storehooks-worker": self.worker_reports,
        }

    def run(self, line: str) -> str:
        if line.startswith(OTHER_USERS):
            return ""
        if line.startswith("systemctl "):
            self.services.systemctl(line)
            return ""
        return super().run(line)

    def edit(self, name: str, text: str) -> None:
        """What the administrator types in the editor when a page opens this file."""
        (self.folder / "edits" / name).write_text(text)

    # What a store does

    def at_the_store(self, secret: str) -> Store:
        """The store north, with the secret that it really has."""
        (self.folder / "store.toml").write_text(f'[stores.north]\nscheme = "shopify"\nsigning_secrets = ["{secret}"]\n')
        return load(self.folder / "store.toml", {}).known_stores["north"]

    def send(self, store: Store, data: object, topic: str = "order.paid") -> int:
        """A delivery of the store; returns the status of its answer."""
        delivery_id = secrets.token_hex(8)
        request = compose(store, topic=topic, delivery_id=delivery_id, data=data, now=time.time())
        url = f"{self.url}/webhooks/{store.name}"
        return httpx2.post(url, headers=request.headers, content=request.body, timeout=60).status_code

    # What is there

    def count(self, state: str) -> int:
        return EventQueries(self.redis()).counters().total[state]

    def redis(self) -> Redis:
        return connect(f"redis://127.0.0.1:{self.redis_port}/0", timeout=2.0)

    def redis_answers(self) -> bool:
        try:
            return bool(self.redis().ping())
        except RedisError:
            return False

    def worker_reports(self) -> bool:
        health = HealthQueries(self.redis()) if self.redis_answers() else None
        return health is not None and bool(health.workers() and health.housekeeper())

    def web_answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/readyz").status_code in (200, 503)
        except httpx2.HTTPError:
            return False


@contextmanager
def deployed(folder: Path, files: dict[str, str]) -> Iterator[Deployment]:
    """What the page leads to, with the code of this checkout instead of an installed one.

    `files` are files in /etc/storehooks, beside those of the page and instead of them.
    """
    machine = Deployment(folder)
    machine.words["/opt/storehooks"] = str(ROOT / ".venv")
    for step in steps(PAGE):
        if step.kind == "write":
            machine.do(step)
    for name, text in files.items():
        machine.do(Step("write", text, f"/etc/storehooks/{name}"))
        (machine.etc / name).chmod(0o600)
    machine.data.mkdir(exist_ok=True)
    machine.data.chmod(0o700)
    machine.environ["STOREHOOKS_CONFIG"] = str(machine.etc / "config.toml")
    try:
        for name in ("redis-server", "storehooks-web", "storehooks-worker"):
            machine.services.start(name)
        yield machine
    finally:
        machine.services.close()
