"""The pages for integrators: every sample on them is written to a file and run; the reference is what the code says."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from receiver import config as config_room
from tests.docs.test_commands_in_docs import commands
from tests.support.programs import ROOT, storehooks
from tests.workers.testing.test_kit import run_pytest

DEPLOYMENT = ("deploy", "production")  # followed by test_deploy_pages.py
PAGES = sorted(path for path in (ROOT / "docs/how-to").glob("*.md") if path.stem not in DEPLOYMENT)
TOPICS = {
    "idempotency",
    "slow-targets",
    "order",
    "forward",
    "echoes",
    "money",
    "time-zones",
    "testing",
    "packaging",
    "upgrading",
}
_FILE = re.compile(r"# ([\w/.-]+\.(?:py|toml))\n")


def files_of(page: Path) -> dict[str, str]:
    """Each sample by the name on its first line."""
    found = {}
    for text in re.findall(r"```(?:python|toml)\n(.*?)```", page.read_text(), flags=re.DOTALL):
        named = _FILE.match(text)
        assert named, f"{page.name}: the first line of a sample names its file: {text[:60]!r}"
        found[named[1]] = text
    return found


@pytest.mark.full
def test_the_samples_of_all_pages_pass_their_tests(tmp_path: Path) -> None:
    assert {page.stem for page in PAGES} == TOPICS
    written: dict[str, str] = {}
    for page in PAGES:
        files = files_of(page)
        assert not written.keys() & files.keys(), "each file's name is on one page only: they are run together"
        assert any(name.startswith("test_") for name in files), f"{page.name} proves nothing"
        written |= files
    for name, text in written.items():
        (tmp_path / name).write_text(text)
        if name.endswith(".toml") and name != "pyproject.toml":
            config_room.load(tmp_path / name, {})
    done = run_pytest(tmp_path, "-rA")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    for name in written:
        assert not name.startswith("test_") or f"PASSED {name}::" in done.stdout, name


@pytest.mark.full
@pytest.mark.parametrize("source", ["page", "new-plugin"])
def test_the_command_of_the_page_builds_a_wheel(source: str, tmp_path: Path) -> None:
    page = ROOT / "docs/how-to/packaging.md"
    folder = tmp_path / "points"
    if source == "page":
        folder.mkdir()
        for name, text in files_of(page).items():
            (folder / name).write_text(text)
    else:
        assert storehooks("new-plugin", "points", cwd=tmp_path).returncode == 0
        project = folder / "pyproject.toml"
        project.write_text(project.read_text().replace('"0.1.0"', '"1.4.2"'))
    (command,) = commands(page)
    assert command.startswith("python ")
    subprocess.run([sys.executable, *shlex.split(command)[1:]], cwd=folder, check=True)
    (wheel,) = (folder / "dist").iterdir()
    assert wheel.name == "storehooks_points-1.4.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        points = opened.read("storehooks_points-1.4.2.dist-info/entry_points.txt").decode()
    assert points.split() == ["[storehooks.handlers]", "points", "=", "points"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("name", ["reference", "topics_page"])
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    script = importlib.import_module(f"scripts.{name}")
    assert script.PAGE.read_text() == script.page(), "run `make reference`"
