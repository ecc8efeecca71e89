"""The summary at the end of `make soak`, and its page."""

from __future__ import annotations

import re
from typing import Literal

import pytest

from tests.support import soak_summary
from tests.support.programs import ROOT


def report(
    name: str,
    *,
    outcome: Literal["passed", "failed"] = "passed",
    when: Literal["setup", "call", "teardown"] = "call",
    printed: str = "",
    start: float = 0,
    slow: bool = True,
) -> pytest.TestReport:
    sections = [("Captured stdout call", printed)]
    properties = [("slow", True)] if slow else []
    keywords = {"slow": 1}  # a folder with this name would give it too
    location = ("", 0, "")
    return pytest.TestReport(
        f"tests/test_x.py::{name}",
        location,
        keywords,
        outcome,
        None,
        when,
        sections,
        61.2,
        start,
        user_properties=properties,
    )


def test_slow_tests_are_listed_with_duration_and_figures_in_the_order_they_ran() -> None:
    summary = soak_summary.lines(
        [
            report("test_late[a-4]", start=2),
            report("test_it_holds", printed="\n4 kills\n0 lost\n", start=1),
            report("test_it_holds", when="setup"),
            report("test_quick", slow=False),
            report("test_no_server", outcome="failed", when="setup", start=3),
        ]
    )
    assert list(summary) == [
        "passed    61 s  it holds",
        "                4 kills",
        "                0 lost",
        "passed    61 s  late[a-4]",
        "failed    61 s  no server",
        "3 slow tests, 1 failed",
    ]


def test_a_test_is_recorded_as_slow_by_its_mark(request: pytest.FixtureRequest) -> None:
    soak_summary.mark_slow_tests([request.node])
    assert request.node.user_properties == []
    request.node.add_marker("slow")
    soak_summary.mark_slow_tests([request.node])
    assert request.node.user_properties == [("slow", True)]
    request.node.user_properties.clear()


def test_there_is_no_summary_without_slow_tests() -> None:
    assert list(soak_summary.lines([report("test_quick", slow=False)])) == []


def test_the_page_lists_exactly_the_files_with_slow_tests() -> None:
    files = {path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"mark\.slow\b", path.read_text())}
    listed = re.findall(r"^\| `(\S+)` \|", (ROOT / "docs/soak.md").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(ROOT / "tests")) for path in files)
