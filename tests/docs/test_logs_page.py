"""The page of the logs: each line that it lists is one that the product writes."""

from __future__ import annotations

import re

import pytest

from tests.support.programs import ROOT

PAGE = (ROOT / "docs/logs.md").read_text()
SOURCES = "".join(path.read_text() for room in ("receiver", "workers") for path in (ROOT / room).rglob("*.py"))


def events() -> list[str]:
    """The events of all tables: in the first column, and of outages also in the second."""
    found: list[str] = []
    columns = 1
    for line in PAGE.splitlines():
        if line.startswith(("| `event`", "| Begins")):
            columns = 2 if "Begins" in line else 1
        elif line.startswith("| `"):
            for cell in line.split(" | ")[:columns]:
                found += (one or two for one, two in re.findall(r"``(.+?) ``|`([^`]+)`", cell))
    return found


@pytest.mark.parametrize("event", events())
def test_a_line_on_the_page_is_one_that_the_product_writes(event: str) -> None:
    assert f'"{event}"' in SOURCES


def test_the_page_lists_both_ends_of_every_outage() -> None:
    written = re.findall(r'(?:begins|ends)="([^"]+)"', SOURCES)
    assert len(written) >= 16
    assert set(written) <= set(events())
