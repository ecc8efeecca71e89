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
from tests.support.deployment import PAGE, Deployment
from tests.support.page_reader import steps
from tests.support.programs import ROOT

PRODUCTION = ROOT / "docs/how-to/production.md"
CONSOLE = ROOT / "docs/operating/console.md"


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


def test_the_parts_of_the_deployment_fit_together(tmp_path: Path) -> None:
    files = files_of_the_page()
    config = files["/etc/storehooks/config.toml"]
    (tmp_path / "config.toml").write_text(config)
    receiver = load(tmp_path / "config.toml", {}).receiver
    proxy = files["/etc/nginx/conf.d/storehooks.conf"]
    assert f"proxy_pass http://{receiver.bind};" in proxy
    assert f"server_name {receiver.public_url.removeprefix('https://')};" in proxy
    assert "client_max_body_size 1m;" in proxy
    assert 1_000_000 <= receiver.max_body <= 2**20
    web, worker = (files[f"/etc/systemd/system/storehooks-{name}.service"] for name in ("web", "worker"))
    assert worker == web.replace("the receiver", "the workers").replace("storehooks web", "storehooks worker").replace(
        "LimitNOFILE=8192\n", ""
    )


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_knows_every_line_of_the_units(tmp_path: Path) -> None:
    for name, text in files_of_the_page().items():
        if name.endswith(".service"):
            unit = tmp_path / Path(name).name
            unit.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", text))
            done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
            assert unit.name not in done.stderr, done.stderr


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_nginx_accepts_its_config(tmp_path: Path) -> None:
    text = files_of_the_page()["/etc/nginx/conf.d/storehooks.conf"]
    text = re.sub(r"listen 443 ssl;|ssl_certificate\w* \S+;", "", text)
    (console,) = re.findall(r"```nginx\n(.*?)```", CONSOLE.read_text(), re.DOTALL)
    text = text.replace("location / {", f"{console}\nlocation / {{")
    assert console in text
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid; events {{}} http {{ {text} }}")
    subprocess.run(["nginx", "-t", "-c", tmp_path / "nginx.conf"], check=True)
