"""Plugin code is checked by mypy --strict as its author would have it checked."""

from __future__ import annotations

import re

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
