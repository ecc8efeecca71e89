"""Released versions of storehooks, each in a virtual environment of its own, built from the commit in CHANGELOG.md.

    with closing(Process([str(installed("0.1.0") / "storehooks"), "web", "--config", file], log=log, cwd=folder)): ...

Start its programs in a folder other than this checkout. The first call takes a minute; later calls, also of other
processes and runs, find what is there.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.programs import ROOT

HOME = ROOT / ".venv/releases"
_RELEASE = re.compile(
    r"^## \[(?P<version>[\d.]+)\] - .*\n(?:(?!## ).*\n)*?.*Its commit is (?P<commit>[0-9a-f]{12,40})\.", re.MULTILINE
)


class ReleaseMissing(Exception):
    """A version cannot be built here."""


@cache
def commits() -> dict[str, str]:
    """The commit of each released version, newest first."""
    return {one["version"]: one["commit"] for one in _RELEASE.finditer((ROOT / "CHANGELOG.md").read_text())}


def has_commit(version: str) -> bool:
    """Whether this checkout has the commit of a version. One made by `git archive`, or a shallow one, has not."""
    command = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commits()[version]}^{{commit}}"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def needs_release(version: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has_commit(version), reason=f"git has no commit of storehooks {version} here")


def installed(version: str) -> Path:
    """The folder with `python` and `storehooks` of a version, with the packages that it was locked to."""
    if not has_commit(version):
        raise ReleaseMissing(f"git has no commit of storehooks {version} here")
    commit = commits()[version]
    folder = HOME / f"{version}-{commit[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _install(commit, folder)
            (folder / "ready").touch()
    return folder / "venv/bin"


def _install(commit: str, folder: Path) -> None:
    """Build the wheel of a commit, and install it. What it needs to be built is among its locked requirements."""
    source, venv, wheels = folder / "source", folder / "venv", folder / "wheels"
    source.mkdir(exist_ok=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    _run(sys.executable, "-m", "venv", "--clear", str(venv))
    pip = (str(venv / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    _run(*pip, "install", "--no-compile", "--require-hashes", "-r", str(source / "requirements/run.txt"))
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source))
    (wheel,) = wheels.glob("*.whl")
    _run(*pip, "install", "--no-deps", str(wheel))


def _run(*command: str) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=HOME, check=False)
    if done.returncode:
        raise ReleaseMissing(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
