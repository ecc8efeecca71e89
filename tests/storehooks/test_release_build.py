"""`make release`: twice the same bytes, only from a clean tree, and a wheel that works without a checkout."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from receiver import __version__
from scripts.locked_packages import RUN, licences, locked
from tests.support.harness import free_port
from tests.support.programs import ROOT

pytestmark = pytest.mark.full
NAMES = {
    f"storehooks-{__version__}-py3-none-any.whl",
    f"storehooks-{__version__}.tar.gz",
    f"storehooks-{__version__}.cdx.json",
    "SHA256SUMS",
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is committed here, without what is not."""
    folder = tmp_path_factory.mktemp("clone") / "storehooks"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def release(clone: Path) -> dict[str, bytes]:
    return built(clone)


def make_release(clone: Path, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(clone)}
    command = [sys.executable, "-m", "scripts.release"]
    return subprocess.run(
        command, cwd=clone, env=environ, capture_output=True, text=True, umask=umask, check=False, timeout=300
    )


def built(clone: Path, umask: int = 0o022) -> dict[str, bytes]:
    shutil.rmtree(clone / "dist", ignore_errors=True)
    done = make_release(clone, umask)
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in (clone / "dist").iterdir()}


@pytest.mark.timeout(600)
def test_two_builds_have_the_same_bytes(release: dict[str, bytes], clone: Path, tmp_path: Path) -> None:
    """The second one in another folder, later, and by a user with another umask."""
    assert release.keys() == NAMES
    other = tmp_path / "elsewhere"
    subprocess.run(["git", "clone", "--quiet", str(clone), str(other)], check=True)
    again = built(other, umask=0o077)
    assert {name: hashlib.sha256(data).hexdigest() for name, data in again.items()} == {
        name: hashlib.sha256(data).hexdigest() for name, data in release.items()
    }


def test_the_checksums_and_the_bill_of_materials_are_right(release: dict[str, bytes]) -> None:
    sums = dict(line.split("  ")[::-1] for line in release["SHA256SUMS"].decode().splitlines())
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in release.items() if name != "SHA256SUMS"}
    bill = json.loads(release[f"storehooks-{__version__}.cdx.json"])
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", __version__)
    listed = {(one["name"], one["version"], one["licenses"][0]["expression"]) for one in bill["components"]}
    assert listed == {(one.name, one.version, licences()[one.name]) for one in locked(ROOT / RUN)}
    references = [one["bom-ref"] for one in bill["components"]]
    assert len(set(references)) == len(references)


@pytest.mark.parametrize("change", ["changed", "added"])
def test_a_tree_with_changes_is_refused(clone: Path, change: str) -> None:
    file = clone / ("README.md" if change == "changed" else "new.txt")
    before = file.read_text() if file.exists() else None
    file.write_text("not committed")
    try:
        refused = make_release(clone)
    finally:
        file.write_text(before) if before is not None else file.unlink()
    assert refused.returncode == 1
    assert "changes that are not committed" in refused.stderr
    assert file.name in refused.stderr


@pytest.mark.timeout(600)
def test_the_wheel_works_in_an_empty_environment_without_a_checkout(release: dict[str, bytes], tmp_path: Path) -> None:
    wheel = tmp_path / f"storehooks-{__version__}-py3-none-any.whl"
    wheel.write_bytes(release[wheel.name])
    venv.create(tmp_path / "venv", with_pip=True)
    programs, shop = tmp_path / "venv/bin", tmp_path / "shop"
    shop.mkdir()
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)} | {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))
    }

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=shop, env=environ, capture_output=True, text=True, check=False, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = (str(programs / "python"), "-m", "pip", "install", "--quiet", "--no-compile")
    run(*pip, "--require-hashes", "-r", str(ROOT / RUN))
    run(*pip, "--no-deps", str(wheel))
    assert run(str(programs / "storehooks"), "--version") == f"storehooks, version {__version__}\n"
    run(str(programs / "storehooks"), "init")
    move_ports(shop / "config.toml")
    said = run(str(programs / "storehooks"), "dev", "--events", "1")
    assert "hello" in said


def move_ports(config: Path) -> None:
    """Use ports that are free here, and let the console choose one."""
    text = config.read_text()
    web, sandbox = free_port(), free_port()
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{web}").replace("127.0.0.1:8002", f"127.0.0.1:{sandbox}")
    config.write_text(f'{text}\n[console]\nbind = "127.0.0.1:0"\n[sandbox]\nbind = "127.0.0.1:{sandbox}"\n')
