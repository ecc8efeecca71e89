"""The console behind nginx, with the block of docs/operating/console.md."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.console import PASSWORD, Browser, RunningConsole, running_console
from tests.support.front_proxies import start_nginx
from tests.support.harness import free_port
from tests.support.programs import ROOT

pytestmark = [pytest.mark.full, pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")]
OUTSIDER, OPERATOR = "127.0.0.66", "127.0.0.7"
"""Addresses of the loopback network that are not the proxy's own."""


@pytest.fixture
def proxy_port() -> int:
    return free_port()


@pytest.fixture
def console(tmp_path: Path, proxy_port: int) -> Iterator[RunningConsole]:
    settings = f'password = "{PASSWORD}"\nurl = "http://127.0.0.1:{proxy_port}"'
    (block,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs/operating/console.md").read_text(), re.DOTALL)
    with running_console(tmp_path, console=settings, receiver='trusted_proxies = ["127.0.0.1"]') as found:
        for word, other in (("location /console", "location /"), ("http://127.0.0.1:8001", found.url)):
            assert word in block
            block = block.replace(word, other)
        server = f"server {{ listen 127.0.0.1:{proxy_port};\n{block} }}"
        found.system.processes.append(start_nginx(tmp_path, server, port=proxy_port))
        yield found


def test_wrong_passwords_of_an_outsider_delay_no_one_else(console: RunningConsole, proxy_port: int) -> None:
    url = f"http://127.0.0.1:{proxy_port}"
    claims = [f"{OPERATOR}", "127.0.0.1", *(f"198.51.100.{number}" for number in range(20))]
    outsiders = [Browser(url, address=OUTSIDER, forwarded_for=claim) for claim in claims]
    for outsider in outsiders:
        outsider.get("/login")
    statuses = [outsider.post("/login", password="wrong").status_code for outsider in outsiders]
    assert 429 in statuses, "what it claims changes nothing"
    assert Browser(url, address=OPERATOR).log_in()
    assert console.browser().log_in(), "at the port itself"
