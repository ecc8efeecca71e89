"""The page of the logs: it lists each line that the product writes, and no other."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.programs import ROOT

PAGE = (ROOT / "docs/logs.md").read_text()
SOURCES = "".join(
    path.read_text() for room in ("receiver", "storehooks", "workers") for path in (ROOT / room).rglob("*.py")
)
WRITTEN = re.compile(
    r"""(?:\blog|_log|_problems|logs\.get\("\w+"\))\.(?:info|warning|error|exception)\(\s*"([^"]+)"  # a line
    |(?:_counted)\.add\(\s*"([^"]+)"
    |(?:begins|ends|more)="([^"]+)"
    |^(?:FAILED|RETRIED)\ =\ "([^"]+)\"""",
    re.VERBOSE | re.MULTILINE,
)


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


def written() -> set[str]:
    return {"".join(found) for found in WRITTEN.findall(SOURCES)}


@pytest.mark.parametrize("event", sorted(set(events())))
def test_a_line_on_the_page_is_one_that_the_product_writes(event: str) -> None:
    assert f'"{event}"' in SOURCES


def test_the_page_lists_every_line_that_the_product_writes() -> None:
    assert len(written()) >= 50
    assert written() - set(events()) == set()


def test_the_line_that_is_shown_is_one_of_them() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    assert json.loads(shown)["event"] in events()
