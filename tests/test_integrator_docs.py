"""The pages for integrators: every sample on them is written to a file and run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness import ROOT
from tests.test_testing_kit import run_pytest

PAGES = sorted((ROOT / "docs/how-to").glob("*.md"))
_FILE = re.compile(r"# ([\w/.-]+\.(?:py|toml))\n")


def files_of(page: Path) -> dict[str, str]:
    """Each Python sample by the name on its first line."""
    found = {}
    for text in re.findall(r"```(?:python|toml)\n(.*?)```", page.read_text(), flags=re.DOTALL):
        named = _FILE.match(text)
        assert named, f"{page.name}: the first line of a sample names its file: {text[:60]!r}"
        found[named[1]] = text
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_samples_of_a_page_pass_their_own_tests(page: Path, tmp_path: Path) -> None:
    files = files_of(page)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tests = [name for name in files if Path(name).name.startswith("test_")]
    assert tests, "a page without a test proves nothing"
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target
