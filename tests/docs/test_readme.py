"""The README is true: its commands run, its sample is a plugin, its links and targets exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from tests.support.harness import System
from tests.support.programs import ROOT, typed

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def tour() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith(".venv/bin/storehooks")]


@pytest.fixture
def running(make_system: Callable[..., System]) -> System:
    """What `make run` has running: the example's store and plugin."""
    system = make_system()
    text = (ROOT / "config.example.toml").read_text()
    own = system.config_file.read_text()
    url = re.search(r'url = "(.*)"', own)
    assert url
    text = text.replace('url = ""', f'url = "{url[1]}"', 1).replace("127.0.0.1:8000", f"127.0.0.1:{system.port}")
    text = text.replace('"examples/hello.py"', f'"{ROOT / "examples/hello.py"}"')
    text = text.replace('data_dir = ""', f'data_dir = "{system.folder / "data"}"')
    system.config_file.write_text(text)
    system.start("web", "worker", "housekeeper")
    return system


def test_every_command_of_the_tour_works(running: System) -> None:
    assert len(tour()) >= 7
    for line in tour():
        done = typed(line, env={"STOREHOOKS_CONFIG": str(running.config_file)})
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if "--tamper" in line:
            assert "401 Unauthorized" in done.stdout
            assert "refused" in done.stdout
            running.refused()
        if "verify" in line:
            assert "NOT VALID  signature-mismatch" in done.stdout
        if "--twice" in line:
            assert "200 accepted" in done.stdout
            assert "200 duplicate" in done.stdout


def test_the_sample_plugin_handles_an_event(make_system: Callable[..., System]) -> None:
    (sample,) = blocks("python")
    system = make_system(plugin=sample)
    system.start("worker", "housekeeper")
    event_id = system.accept("order.paid", data={"id": 1, "total": "42.00"})
    assert system.settled(event_id) == "settled"
    assert system.run_of(event_id, "loyalty.award_points").result == "42 points"


def test_make_targets_named_in_the_readme_exist() -> None:
    shown = subprocess.run(["make", "help"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    for target in set(re.findall(r"make ([a-z-]+)", README)) - {"help"}:
        assert f"make {target}" in shown
    for target in ("run", "setup", "test", "check", "soak", "lock"):
        assert f"make {target}" in shown


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_no_committed_file_names_a_registry_or_a_path_of_one_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, cwd=ROOT, check=True).stdout.decode()
    registry = re.compile(r"https?://[^\s\"']*/simple\b|--(?:extra-)?index-url")
    for name in listed.strip("\0").split("\0"):
        path = ROOT / name
        if (
            path.suffix in (".py", ".txt", ".toml", ".md", "")
            and path.is_file()
            and name != "tests/docs/test_readme.py"
        ):
            assert not registry.search(path.read_text(errors="replace")), name
