"""The packages of the locked requirements, and the licence of each by requirements/licences.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements/run.txt", "requirements/dev.txt", "requirements/docs.txt", "benchmarks/requirements.txt")
RUN = LOCKS[0]
LICENCES = "requirements/licences.toml"
_PACKAGE = re.compile(
    r"^(?P<name>[\w.-]+)(?:\[[\w,.-]+\])?==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]+?))? \\\n", re.MULTILINE
)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class LockedPackage(NamedTuple):
    name: str
    version: str
    marker: str
    """Where it is installed, such as `sys_platform == 'linux'`; empty for everywhere."""
    hashes: tuple[str, ...]


def locked(path: Path) -> list[LockedPackage]:
    text = path.read_text()
    found = list(_PACKAGE.finditer(text))
    ends = [*(one.start() for one in found[1:]), len(text)]
    packages = [
        LockedPackage(
            normal(one["name"]), one["version"], one["marker"] or "", tuple(_HASH.findall(text[one.end() : end]))
        )
        for one, end in zip(found, ends, strict=True)
    ]
    if len(packages) != len(re.findall(r"^\S+==", text, re.MULTILINE)) or not all(one.hashes for one in packages):
        raise SystemExit(f"{path}: a line is not a locked package with its hashes; make it anew with `make lock`")
    return packages


def all_locked(root: Path = ROOT, locks: Iterable[str] = LOCKS) -> list[LockedPackage]:
    return sorted({(one.name, one.version): one for lock in locks for one in locked(root / lock)}.values())


def licences(root: Path = ROOT) -> dict[str, str]:
    """By package: its licence, in SPDX's notation."""
    return dict(tomllib.loads((root / LICENCES).read_text())["licences"])


def allowed(root: Path = ROOT, *, outside_of_run: bool) -> set[str]:
    """The licences that a package may have; more for one that is not installed with storehooks."""
    lists = tomllib.loads((root / LICENCES).read_text())
    return {*lists["allowed"], *(lists["allowed_outside_of_run"] if outside_of_run else ())}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
