"""The example plugins pass their own tests, can be installed, are found by their entry points, and are certified."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from receiver import config as config_room
from tests.support.programs import ROOT
from tests.workers.testing.test_kit import run_pytest
from workers.plugins.validation_process import validate_plugin
from workers.testing.certify import report
from workers.testing.certify.runner import CertificationRun, target_of

EXAMPLES = ("order-export", "stock-alert", "customer-welcome")


def module(example: str) -> Path:
    return ROOT / "examples" / example / f"{example.replace('-', '_')}.py"


@pytest.mark.full
def test_the_examples_pass_their_own_tests() -> None:
    """They run in one process, to share one sandbox."""
    folders = [str(ROOT / "examples" / example) for example in EXAMPLES]
    settings = ["-c", f"{folders[0]}/pyproject.toml", "--rootdir", str(ROOT / "examples"), "-rA"]
    done = run_pytest(ROOT / "examples", *settings, *folders, env={"PYTHONPATH": os.pathsep.join(folders)})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    for example in EXAMPLES:
        assert f"test_{example.replace('-', '_')}.py::" in done.stdout


@pytest.mark.slow
def test_the_examples_install_and_are_found_by_their_entry_points(tmp_path: Path) -> None:
    for example in EXAMPLES:
        shutil.copytree(ROOT / "examples" / example, tmp_path / example)  # a build leaves files next to the source
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    paths = [str(tmp_path / example) for example in EXAMPLES]
    subprocess.run([*command, "--target", str(tmp_path / "site"), *paths], check=True, timeout=100)
    (tmp_path / "config.toml").write_text("")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}
    shown = subprocess.run(
        [sys.executable, "-m", "workers.cli", "handlers", "--json", "--config", str(tmp_path / "config.toml")],
        capture_output=True,
        text=True,
        env=environ,
        cwd=tmp_path,
        check=True,
    )
    found = {handler["handler"]: handler for handler in json.loads(shown.stdout)}
    assert set(found) == {"order_export.export", "stock_alert.watch", "customer_welcome.welcome"}
    assert {handler["version"] for handler in found.values()} == {"1.0.0"}
    assert found["stock_alert.watch"]["order_by"] == "resource"


def certified(example: str, folder: Path, *only: str) -> dict[str, object]:
    (folder / "config.toml").write_text("")
    config = config_room.load(folder / "config.toml", {})
    source = str(module(example))
    target = target_of(source, validate_plugin(config, source))
    results = CertificationRun(config, target, seed=7, only=only).run()
    lines = list(report.lines(results))
    print(lines[0], *lines[-4:], sep="\n")
    return report.as_json(results)


@pytest.mark.full
def test_the_order_export_passes_the_three_scenarios_that_find_most(tmp_path: Path) -> None:
    result = certified("order-export", tmp_path, "redelivered", "shuffled", "killed")
    assert result["findings"] == []
    assert (result["idempotent"], result["order_safe"]) == (None, None), "three scenarios are not all"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_passes_all_scenarios(example: str, tmp_path: Path) -> None:
    result = certified(example, tmp_path)
    assert result["findings"] == []
    assert (result["idempotent"], result["order_safe"]) == (True, True)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_settings_and_links_in_an_examples_readme_are_valid(example: str, tmp_path: Path) -> None:
    text = (ROOT / "examples" / example / "README.md").read_text()
    stores = "\n".join(f'[stores.{name}]\nsigning_secrets = ["whsec_dGVzdA=="]' for name in ("north",))
    for sample in re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL):
        (tmp_path / "config.toml").write_text(f"{sample}\n{stores}\n")
        assert validate_plugin(config_room.load(tmp_path / "config.toml", {}), str(module(example)))
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / "examples" / example / target).exists(), target
