"""Every block of every page is run by a test: by one for all blocks of its kind, or by one that follows the page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from receiver.config import load
from tests.docs.test_commands_in_docs import TESTED_ELSEWHERE
from tests.support.harness import SECRET
from tests.support.programs import ROOT

TESTS = ROOT / "tests/docs"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
SHOWN = {"text": "what a command prints, or a signature"}
ALL_OF_A_KIND = {
    ("docs", "sh"): "test_commands_in_docs.py",
    ("docs", "python"): "test_samples.py",
    ("docs", "toml"): "test_every_block.py",
    ("docs/how-to", "python"): "test_integrator_pages.py",
    ("docs/how-to", "toml"): "test_integrator_pages.py",
    ("docs/operating", "sh"): "test_commands_in_docs.py",
    ("docs/operating", "toml"): "test_every_block.py",
    (".", "sh"): "test_readme.py",
    (".", "python"): "test_readme.py",
}
"""By folder and language: the test that runs all blocks of the folder's pages."""
BY_PAGE = {
    ("docs/client.md", "python"): "../workers/storeapi/test_pages.py",
    ("docs/logs.md", "json"): "test_logs_page.py",
    ("docs/operating/alerts.md", "json"): "../workers/runtime/test_alerts.py",
    ("docs/operating/console.md", "nginx"): "test_deploy_pages.py",
    ("docs/scaling.md", "nginx"): "test_scaling_page.py",
    ("docs/operating/metrics.md", "yaml"): "../workers/console/test_metrics.py",
    ("docs/history.md", "sql"): "test_history_page.py",
    ("docs/history.md", "sqlite"): "test_history_page.py",
}
FOLLOWED = (
    "test_tutorial.py",
    "test_my_provider.py",
    "test_event_files_page.py",
    "test_deploy_pages.py",
    "test_runbooks.py",
)
"""Tests that also write the files of their pages."""
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^ {4}(?:[A-Z_]+=\S+ )?(storehooks|make|pip|curl|systemctl|python3?) .*$", re.MULTILINE)
INDENTED = {
    "docs/operating/failures.md": "../workers/operations/test_replay_while_paused.py",
    "examples": "test_examples.py",
}
"""Indented commands, which no runner of fenced blocks finds, and the tests that run them."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def runner_of(page: Path, language: str) -> str:
    """The test that runs the blocks of this language on this page."""
    name, folder = name_of(page), str(page.parent.relative_to(ROOT))
    if folder.startswith("examples"):
        return "test_examples.py"
    elsewhere = TESTED_ELSEWHERE.get(name.removeprefix("docs/"), "")
    if elsewhere and (language == "sh" or elsewhere in FOLLOWED):
        return elsewhere
    return BY_PAGE.get((name, language)) or ALL_OF_A_KIND.get((folder, language), "")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_test_that_runs_it(page: Path) -> None:
    for language, text in _FENCED.findall(page.read_text()):
        if language not in SHOWN:
            test = runner_of(page, language)
            assert test, f"{language}: {text[:80]}"
            assert (TESTS / test).exists(), test


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_command_is_hidden_in_an_indented_block(page: Path) -> None:
    rest = _FENCED.sub("", page.read_text())
    found = [line for line in _COMMAND.finditer(rest) if line[1] != "make"]
    if found:
        key = "examples" if name_of(page).startswith("examples") else name_of(page)
        assert (TESTS / INDENTED[key]).exists(), found[0][0]


def test_every_make_target_that_a_page_names_exists() -> None:
    """They start the tests and the benchmarks themselves, so no test runs them."""
    shown = subprocess.run(["make", "help"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    for page in PAGES:
        for target in re.findall(r"(?:^ {4}|^|`)make ([a-z-]+)(?=$|[ `])", page.read_text(), re.MULTILINE):
            assert f"  make {target} " in shown, f"{name_of(page)}: make {target}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=name_of)
def test_a_sample_of_config_loads(page: Path, tmp_path: Path) -> None:
    for language, text in _FENCED.findall(page.read_text()):
        if language == "toml" and runner_of(page, "toml") == "test_every_block.py":
            path = tmp_path / "config.toml"
            for name in re.findall(r'"file:([\w.-]+)"', text):
                (tmp_path / name).write_text(SECRET)
            path.write_text(f'[store_defaults]\nsigning_secrets = ["{SECRET}"]\n{text}')
            load(path, dict.fromkeys(re.findall(r"env:(\w+)", text), "00" * 32))


def test_the_samples_that_are_run_as_plugins_are_plugins() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        for language, text in _FENCED.findall(page.read_text()):
            if language == "python" and runner_of(page, "python") == "test_samples.py":
                assert "Router(" in text, f"{page.name}: {text[:80]}"
