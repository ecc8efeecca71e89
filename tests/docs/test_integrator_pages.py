"""The pages for integrators: every sample on them is written to a file and run; the reference is what the code says."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from receiver import config as config_room
from tests.support.programs import ROOT
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("name", ["reference", "topics_page"])
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    script = importlib.import_module(f"scripts.{name}")
    assert script.PAGE.read_text() == script.page(), "run `make reference`"
