"""Plugin code is checked by mypy --strict as its author would have it checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

from tests.support.programs import ROOT

PLUGIN = ROOT / "tests/docs/type_check/plugin.py"


@pytest.mark.full
def test_mypy_says_what_the_file_expects_and_nothing_else() -> None:
    cache = str(ROOT / ".mypy_cache")
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", cache, "--no-error-summary"]
    out, errors, _ = api.run([*options, str(PLUGIN)])
    assert not errors
    said = {int(line): text for line, text in re.findall(r"plugin\.py:(\d+): (?:error|note): (.*)", out)[::-1]}
    expected = {
        number: match[1]
        for number, line in enumerate(PLUGIN.read_text().splitlines(), 1)
        if (match := re.search(r"# expect: (.*)", line))
    }
    assert said.keys() == expected.keys(), out
    assert len(expected) >= 8
    for number, text in expected.items():
        assert text in said[number]


@pytest.mark.full
def test_the_plugin_of_the_page_is_checked_outside_of_the_checkout_as_the_page_says(tmp_path: Path) -> None:
    section = (ROOT / "docs/plugins.md").read_text().partition("## Types")[2].partition("## ")[0]
    (sample,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    (command,) = re.findall(r"`MYPYPATH=CHECKOUT mypy (.*?)`", section)
    (tmp_path / "totals.py").write_text(sample)
    mypy = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), *command.split()]
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(mypy, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
