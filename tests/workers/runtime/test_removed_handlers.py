"""A handler that a reload removes: its runs under way end as they would have, and its workers say that it is gone."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.support.harness import System, eventually

PLUGIN = """
import time
from pathlib import Path
from workers import Retry, Router
router = Router("shop")

@router.on("order.*", retries=[1, 1, 1], timeout={timeout})
def push(event, ctx):
    go = Path({go!r})
    if ctx.attempt == 1:
        Path({began!r}).touch()
        while not go.exists():
            time.sleep(0.02)
        {end}
    return "pushed"
"""
WITHOUT = "from workers import Router\nrouter = Router('shop')\n@router.on('*.none')\ndef rest(event, ctx): pass\n"


@pytest.mark.parametrize(
    ("end", "timeout"),
    [
        ("raise ConnectionError('the target is away')", 60),
        ("raise Retry('later')", 60),
        ("import os; os._exit(1)", 60),
        ("time.sleep(60)", 2),
    ],
)
def test_a_run_under_way_keeps_its_retries_and_its_timeout(
    make_system: Callable[..., System], end: str, timeout: int
) -> None:
    """It failed for good at its first error: the worker judged it by the handlers that it had after the reload."""
    system = make_system(plugin="")
    began, go = system.folder / "began", system.folder / "go"
    plugin = PLUGIN.format(began=str(began), go=str(go), end=end, timeout=timeout)
    system.plugin.write_text(plugin)
    system.start("web", "housekeeper")
    (worker,) = system.start("worker")
    event_id = system.deliver("order.created")
    eventually(began.exists)
    system.plugin.write_text(WITHOUT)
    worker.send(signal.SIGHUP)
    eventually(lambda: '"reloaded"' in system.log("worker"))
    assert "handlers are gone after a reload" in system.log("worker")
    go.touch()
    assert eventually(lambda: (run := system.run_of(event_id, "shop.push")) and run.attempts == 1)
    assert system.status(event_id) == "open"
    system.plugin.write_text(plugin)
    worker.send(signal.SIGHUP)
    assert system.settled(event_id) == "settled"
