"""docs/security.md: each promise names a test, and that test exists."""

from __future__ import annotations

import ast
import re

from tests.support.programs import ROOT

PAGE = (ROOT / "docs/security.md").read_text()
PROMISES = re.findall(r"^\| (.+?) \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", PAGE, re.MULTILINE)


def test_each_promise_names_a_test_that_exists() -> None:
    assert [f"{file}::{name}" for _, file, name in PROMISES if name not in functions_in(file)] == []


def functions_in(file: str) -> set[str]:
    if not (ROOT / file).exists():
        return set()
    return {one.name for one in ast.parse((ROOT / file).read_text()).body if isinstance(one, ast.FunctionDef)}


def test_each_row_of_the_table_of_promises_is_read() -> None:
    table = PAGE.split("## Promises, and the test of each")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(PROMISES) == len(rows) > 30
    assert len({promise for promise, _, _ in PROMISES}) == len(rows)
