"""The releases that CHANGELOG.md names can be built from their commits, and used beside this checkout."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from receiver import __version__
from scripts.release import checked_version
from tests.support.programs import ROOT
from tests.support.releases import commits, installed, needs_release


@needs_release("0.1.0")
def test_each_release_in_the_changelog_names_the_commit_of_its_version() -> None:
    assert list(commits())[-1] == "0.1.0"
    for version, commit in commits().items():
        command = ["git", "-C", str(ROOT), "show", f"{commit}:pyproject.toml"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f'\nversion = "{version}"\n' in found


def test_code_package_and_manifests_have_one_version() -> None:
    assert checked_version(ROOT) == __version__
    named = [re.findall(r"image: storehooks:(\S+)", path.read_text()) for path in (ROOT / "deploy").rglob("*.yaml")]
    assert {version for found in named for version in found} == {__version__}


@pytest.mark.full
@pytest.mark.timeout(600)
@needs_release("0.1.0")
def test_a_release_is_installed_with_the_code_of_its_commit(tmp_path: Path) -> None:
    command = [str(installed("0.1.0") / "storehooks"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert said == "storehooks, version 0.1.0\n"
    where = [str(installed("0.1.0") / "python"), "-c", "import receiver; print(receiver.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert Path(found.strip()).is_relative_to(installed("0.1.0").parent), "not the code of this checkout"
