"""The end of `make soak`: how each slow test ended, how long it took, and the figures it printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest


def mark_slow_tests(items: Iterable[pytest.Item]) -> None:
    """Copy the `slow` mark into a property of the item: test reports carry properties, and no marks."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.user_properties.append(("slow", True))


def lines(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """The lines of the summary; none if no slow test was run."""
    slow = [
        one
        for one in reports
        if dict(getattr(one, "user_properties", ())).get("slow") and (one.when == "call" or one.failed)
    ]
    for one in sorted(slow, key=lambda one: one.start):
        name = one.nodeid.partition("::test_")[2].replace("_", " ")
        yield f"{one.outcome:<7}{one.duration:5.0f} s  {name}"
        yield from (f"{'':16}{line}" for line in one.capstdout.splitlines() if line.strip())
    if slow:
        yield f"{len(slow)} slow tests, {sum(one.failed for one in slow) or 'none'} failed"
