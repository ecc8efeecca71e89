"""docs/event-files.md: its files and commands work, and its tables list every field."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable

import pytest

from tests.docs.test_commands_in_docs import documented_system
from tests.support.harness import System
from tests.support.page_reader import PageReader
from tests.support.programs import ROOT
from workers.operations import event_export

PAGE = ROOT / "docs/event-files.md"


def fields_in_table(head: str) -> set[str]:
    table = PAGE.read_text().split(head)[1].split("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


@pytest.mark.full
def test_the_page_can_be_followed(make_system: Callable[..., System]) -> None:
    system = make_system()
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace('plugins = ["shop.py"]', 'plugins = ["points.py"]'))
    points = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert points
    (system.folder / "points.py").write_text(points[1])
    documented_system(system)
    reader = PageReader(system.folder, {"STOREHOOKS_CONFIG": str(system.config_file)})
    printed = reader.follow(PAGE)
    assert "42 points for order 7001" in printed["storehooks handlers run points.award --event order.json"]
    assert "19 points for order 7002" in printed["storehooks send order.paid --data paid.json"]
    assert "19 points for order 7002" in printed["storehooks handlers run points.award --event event.json"]
    assert "not valid" in printed['storehooks verify --request request.txt || echo "not valid"']
    exported = json.loads((system.folder / "event.json").read_text())
    assert fields_in_table("| Field | Content |\n") == set(exported)


def test_the_fields_of_a_file_written_by_hand_are_listed() -> None:
    read = set(re.findall(r'given(?:\.get\(|\[)"(\w+)"', inspect.getsource(event_export.read_event)))
    assert fields_in_table("| Field | Meaning | Default |\n") == read
