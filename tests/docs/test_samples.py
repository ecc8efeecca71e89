"""Every code sample of the docs is run, and every command they name exists."""

from __future__ import annotations

import re
from collections.abc import Callable

import click
import pytest

from tests.support.harness import System
from tests.support.programs import ROOT
from workers.cli import storehooks

DOCS = sorted((ROOT / "docs").glob("*.md"))
EVENT = {"order.paid": {"id": 1, "total": "42.00", "customer_id": 7}}


def samples() -> list[tuple[str, str]]:
    found = []
    for path in DOCS:
        texts = re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)
        found += [(path.name, text) for text in texts if "Router(" in text]
    return found


@pytest.mark.parametrize(("name", "text"), samples(), ids=lambda value: value[:20])
def test_a_sample_plugin_of_the_docs_handles_an_event(make_system: Callable[..., System], name: str, text: str) -> None:
    system = make_system(plugin=text)
    system.start("worker", "housekeeper")
    event_id = system.accept("order.paid", data=EVENT["order.paid"])
    assert system.settled(event_id) == "settled", [run.error for run in system.ledger.event(event_id).runs]
    assert system.ledger.event(event_id).reason is None
    assert {run.status for run in system.ledger.event(event_id).runs} == {"done"}


def commands() -> set[tuple[str, ...]]:
    found = set()
    for path in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/*.md"), ROOT / "README.md"]:
        for words in re.findall(r"(?:`|^ {4})storehooks ((?:[a-z][a-z-]*(?: |`|$))+)", path.read_text(), flags=re.M):
            found.add(tuple(words.strip("` ").split()))
    return found


@pytest.mark.parametrize("words", sorted(commands()))
def test_a_command_named_in_the_docs_exists(words: tuple[str, ...]) -> None:
    command: click.Command = storehooks
    for word in words:
        if not isinstance(command, click.Group):
            return
        found = command.get_command(click.Context(command), word)
        assert found, " ".join(words)
        command = found
