"""docs/how-to/deploy.md and production.md, followed from an empty machine to handled events."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from receiver.config import load
from scripts import deploy_page
from tests.support.deployment import PAGE, Deployment
from tests.support.page_reader import steps
from tests.support.programs import ROOT

PRODUCTION = ROOT / "docs/how-to/production.md"
CONSOLE = ROOT / "docs/operating/console.md"
DEPLOY = ROOT / "deploy"


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_pages_lead_from_an_empty_machine_to_handled_events(tmp_path: Path) -> None:
    machine = Deployment(tmp_path)
    (tmp_path / "bin/python3").symlink_to(Path(sys.executable).resolve())
    machine.environ["PATH"] = os.pathsep.join([str(tmp_path / "bin"), "/usr/bin", "/bin"])
    for name in ("requirements", "receiver", "storehooks", "workers"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    machine.edit("north.secret", "the client secret of the app at Shopify\n")
    subprocess.run([sys.executable, "-m", "storehooks", "new-plugin", "loyalty"], cwd=tmp_path, check=True)
    try:
        said = machine.follow(PAGE)
        assert '"stores_in":"redis"' in re.sub(r"\s", "", next(text for line, text in said.items() if "curl" in line))
        assert "0 problems" in said["storehooks doctor"] or "no problems" in said["storehooks doctor"]
        listed = machine.follow(PRODUCTION)
    finally:
        machine.services.close()
    assert "loyalty.award" in listed["storehooks handlers"]
    assert "points for order 7001" in listed["storehooks send order.paid --store north --set id=7001"]
    assert "orders/paid" in listed["storehooks topics --store north"]
    assert json.loads((tmp_path / "doctor.json").read_text())
    assert not (tmp_path / "var/lib/storehooks").stat().st_mode & 0o077


def files_of_the_page() -> dict[str, str]:
    return {step.file: step.text for step in steps(PAGE) if step.kind == "write"}


def test_the_page_shows_the_files_of_deploy() -> None:
    text = PAGE.read_text()
    assert deploy_page.page(text) == text, "run `make reference`"
    shown = files_of_the_page()
    for name in (
        "systemd/storehooks-web.socket",
        "systemd/storehooks-web.service",
        "systemd/storehooks-worker.service",
    ):
        assert shown[f"/etc/systemd/system/{Path(name).name}"] == (DEPLOY / name).read_text()
    assert shown["/etc/redis/redis.conf"] == (DEPLOY / "redis/redis.conf").read_text()
    assert shown["/etc/nginx/conf.d/storehooks.conf"] == (DEPLOY / "nginx/storehooks.conf").read_text()
    assert deploy_page.page(text.replace("client_max_body_size 2m", "client_max_body_size 9m")) == text


def test_the_page_names_every_folder_of_deploy() -> None:
    table = PAGE.read_text().partition("## What is in deploy/")[2]
    for folder in DEPLOY.iterdir():
        assert f"`{folder.name}`" in table, folder


def test_the_parts_of_the_deployment_fit_together(tmp_path: Path) -> None:
    files = files_of_the_page()
    config = files["/etc/storehooks/config.toml"]
    (tmp_path / "config.toml").write_text(config)
    receiver = load(tmp_path / "config.toml", {}).receiver
    name = receiver.public_url.removeprefix("https://")
    assert f"ListenStream={receiver.bind}\n" in files["/etc/systemd/system/storehooks-web.socket"]
    nginx, haproxy, caddy = (
        (DEPLOY / one).read_text() for one in ("nginx/storehooks.conf", "haproxy/haproxy.cfg", "caddy/Caddyfile")
    )
    for proxy in (nginx, haproxy, caddy):
        assert receiver.bind in proxy
        assert name in proxy
    assert "client_max_body_size 2m;" in nginx
    assert receiver.max_body < 2 * 10**6  # else nginx would answer 413 in our place


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_nginx_accepts_its_config_with_the_console(tmp_path: Path) -> None:
    text = (DEPLOY / "nginx/storehooks.conf").read_text()
    text = re.sub(r"listen 443 ssl;|ssl_certificate\w* \S+;", "", text)
    (console,) = re.findall(r"```nginx\n(.*?)```", CONSOLE.read_text(), re.DOTALL)
    text = text.replace("location / {", f"{console}\nlocation / {{")
    assert console in text
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid; events {{}} http {{ {text} }}")
    subprocess.run(["nginx", "-t", "-c", tmp_path / "nginx.conf"], check=True)
