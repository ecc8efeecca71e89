"""A started console for tests: a browser's view of it over HTTP, and a store's view of the receiver."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx2

from receiver.config import Config
from tests.support.harness import System, eventually, free_port, own_server

PASSWORD, VIEWER = "the operator's password", "the viewer's password"
PLUGIN = """
import os
from workers import Router
router = Router("erp")

@router.on("order.*", retries=0)
def export(event, ctx):
    if not os.path.exists(event.data.get("needs", "/")):
        raise KeyError("vat_id")
    return "exported"

@router.on("order.created", when={"total": "> 100"})
def vip(event, ctx):
    return "vip"
"""


class Browser:
    """One person's browser: it keeps cookies and sends forms as a browser does."""

    def __init__(self, url: str, *, address: str | None = None, forwarded_for: str | None = None) -> None:
        self.url = url
        headers = {} if forwarded_for is None else {"X-Forwarded-For": forwarded_for}
        transport = httpx2.HTTPTransport(local_address=address)
        self.http = httpx2.Client(
            base_url=url, headers=headers, transport=transport, timeout=30, follow_redirects=False
        )
        self.page = ""

    def get(self, path: str, **headers: str) -> httpx2.Response:
        answer = self.http.get(path, headers=headers)
        self.page = answer.text
        return answer

    def answers(self, path: str) -> bool:
        try:
            return self.get(path).status_code == 200
        except httpx2.HTTPError:
            return False

    @property
    def token(self) -> str:
        found = re.search(r'name="token" value="([0-9a-f]{32})"', self.page)
        assert found, self.page[:500]
        return found[1]

    def post(self, path: str, *, origin: str | None = None, token: str | None = None, **fields: str) -> httpx2.Response:
        """Send a form. The origin and the token are those of the page that was loaded last."""
        form = {"token": self.token if token is None else token, **fields}
        return self.http.post(path, data=form, headers={"Origin": self.url if origin is None else origin})

    def press(self, path: str, **fields: str) -> str:
        """Send a form and follow it to the page with the result."""
        answer = self.post(path, **fields)
        assert answer.status_code == 303, f"{answer.status_code} {plain(answer.text)[:500]}"
        assert self.get(answer.headers["location"]).status_code == 200
        return plain(self.page)

    def log_in(self, password: str = PASSWORD) -> Browser:
        self.get("/login")
        assert self.post("/login", password=password).status_code == 303
        assert self.get("/").status_code == 200
        return self

    def text(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status_code == 200, plain(answer.text)[:500]
        return plain(answer.text)


def plain(page: str) -> str:
    """A page as a person reads it."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page.replace("<wbr>", ""))))


class RunningConsole:
    def __init__(self, system: System, port: int) -> None:
        self.system = system
        self.url = f"http://127.0.0.1:{port}"

    @property
    def config(self) -> Config:
        return self.system.config

    def browser(self, *, address: str | None = None, forwarded_for: str | None = None) -> Browser:
        """One that calls from an address of the loopback network, perhaps through a proxy there."""
        return Browser(self.url, address=address, forwarded_for=forwarded_for)

    def broken_order(self, **more: Any) -> dict[str, Any]:
        """The data of an order whose export fails until `mend` is called."""
        return {"id": 1002, "total": "42.00", "needs": str(self.system.folder / "mended"), **more}

    def mend(self) -> None:
        (self.system.folder / "mended").touch()

    def break_again(self) -> None:
        (self.system.folder / "mended").unlink(missing_ok=True)

    def answers(self) -> bool:
        return self.browser().answers("/login")

    def contents(self) -> dict[bytes, Any]:
        """Every key of the server with its value. What processes write all the time is left out."""
        client = self.system.client
        return {key: client.dump(key) for key in client.keys("sh:*")}


@contextmanager
def running_console(
    folder: Path, *names: str, console: str = "", receiver: str = "", more: str = "", plugin: str = PLUGIN
) -> Iterator[RunningConsole]:
    """A server, a console, and the named processes: web, worker, housekeeper."""
    (folder / "server").mkdir()
    (folder / "system" / "data").mkdir(mode=0o700, parents=True)
    port = free_port()
    settings = console or f'password = "{PASSWORD}"\nviewer_password = "{VIEWER}"'
    with own_server(folder / "server") as server:
        system = System(folder / "system", server.url, plugin=plugin, more=more)
        text = system.config_file.read_text()
        text = text.replace('127.0.0.1:0"', f'127.0.0.1:{port}"\n{settings}', 1)
        system.config_file.write_text(text.replace("[receiver]", f"[receiver]\n{receiver}", 1))
        found = RunningConsole(system, port)
        try:
            system.start(*names, "console")
            eventually(found.answers, 20, what=f"the console answers; {system.log('console')[-1000:]}")
            yield found
        finally:
            system.close()
