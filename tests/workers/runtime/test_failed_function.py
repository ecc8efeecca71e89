"""`@router.failed`: called once when a run fails for good, and not while it is retried."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from receiver.inbox.effect_store import EffectStore
from tests.support.harness import System, eventually

PLUGIN = """
import asyncio, json, os, time
from storehooks import Fail, Router

router = Router("shop")
path = os.path.join(os.path.dirname(__file__), "failed")

@router.startup
def connect(settings):
    if os.path.exists(path + ".broken"):
        raise OSError("startup is broken")
    return "connected"

@router.failed
{define} tell(event, ctx, error):
    raised = f"{{type(error).__name__}}: {{error}}"
    with open(path, "a") as file:
        file.write(json.dumps([event.data["id"], ctx.handler, ctx.attempt, ctx.resource, raised]) + "\\n")
    {body}

def swallow_timeouts():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@router.on("order.created", retries=(0.01, 0.01))
def export(event, ctx):
    raise OSError("unreachable")

@router.on("order.paid")
def refuse(event, ctx):
    raise Fail("no customer")

@router.on("order.slow", timeout=0.3, retries=0)
def hang(event, ctx):
    time.sleep(60)

@router.on("order.fine", retries=(0.01,))
def fine(event, ctx):
    if ctx.attempt == 1:
        raise OSError("once")
"""


def make(make_system: Callable[..., System], define: str = "def", body: str = "pass") -> System:
    system = make_system(plugin=PLUGIN.format(define=define, body=body), child_processes=1)
    system.start("worker", "housekeeper")
    return system


def calls(system: System) -> list[Any]:
    path = system.folder / "failed"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_it_is_called_once_with_the_event_the_context_and_the_error(make_system: Callable[..., System]) -> None:
    system = make(make_system, "async def", "await asyncio.sleep(0)")
    for topic, number in (("created", 1), ("paid", 2), ("slow", 3)):
        assert system.settled(system.accept(f"order.{topic}", data={"id": number})) == "failed"
    assert calls(system) == [
        [1, "shop.export", 3, "connected", "OSError: unreachable"],
        [2, "shop.refuse", 1, "connected", "Fail: no customer"],
        [3, "shop.hang", 1, "connected", "RunTimeout: the handler's timeout has passed"],
    ]


def test_it_is_not_called_for_an_attempt_that_is_retried(make_system: Callable[..., System]) -> None:
    system = make(make_system)
    event_id = system.accept("order.fine", data={"id": 1})
    assert system.settled(event_id) == "settled"
    assert system.run_of(event_id, "shop.fine").attempts == 2
    assert calls(system) == []


def test_it_is_not_called_again_if_it_was_called_and_the_outcome_was_lost(make_system: Callable[..., System]) -> None:
    """As after a power cut between its call and the end of the run: the run begins again, and fails again."""
    system = make_system(plugin=PLUGIN.format(define="def", body="pass"), child_processes=1)
    event_id = system.accept("order.paid", data={"id": 2})
    effects = EffectStore(system.client, keep=60, at_work=1)
    effects.begin(f"o:{event_id}", "shop.refuse|@router.failed 0", "a run", in_doubt="run")
    effects.end(f"o:{event_id}", "shop.refuse|@router.failed 0", "a run", b"null")
    system.start("worker", "housekeeper")
    assert system.settled(event_id) == "failed"
    assert calls(system) == []


def test_a_replay_that_fails_again_calls_it_again(make_system: Callable[..., System]) -> None:
    system = make(make_system)
    event_id = system.accept("order.paid", data={"id": 2})
    assert system.settled(event_id) == "failed"
    assert system.run_cli("events", "replay", event_id, "--yes").returncode == 0
    assert eventually(lambda: len(calls(system)) == 2)


RAISED, NOT_RETURNED = "the function of @router.failed raised", "the function of @router.failed did not return"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("raise OSError('chat is down')", RAISED),
        ("time.sleep(60)", RAISED),
        ("os._exit(3)", NOT_RETURNED),
        ("swallow_timeouts()", NOT_RETURNED),
    ],
)
def test_what_it_does_changes_nothing_of_the_failure(make_system: Callable[..., System], body: str, line: str) -> None:
    """It may raise, take as long as its handler may, and no longer, or kill its process."""
    system = make(make_system, body=body)
    event_id = system.accept("order.slow", data={"id": 3})
    assert system.settled(event_id, within=20) == "failed"
    assert len(calls(system)) == 1
    run = system.run_of(event_id, "shop.hang")
    assert (run.error, run.attempts) == ("RunTimeout: the handler's timeout has passed", 1)
    assert line in system.log("worker")
    assert "chat is down" not in system.log("worker")


def test_a_handler_that_gave_up_is_not_called_again_if_it_ends_its_process(make_system: Callable[..., System]) -> None:
    system = make(make_system, body="os._exit(3)")
    event_id = system.accept("order.paid", data={"id": 2})
    assert system.settled(event_id) == "failed"
    run = system.run_of(event_id, "shop.refuse")
    assert (run.error, run.attempts, len(calls(system))) == ("Fail: no customer", 1, 1)


def test_it_is_called_without_a_resource_where_the_startup_failed(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=PLUGIN.format(define="def", body="pass"), child_processes=1)
    (system.folder / "failed.broken").touch()
    system.start("worker", "housekeeper")
    assert system.settled(system.accept("order.created", data={"id": 1})) == "failed"
    assert calls(system) == [[1, "shop.export", 3, None, "OSError: startup is broken"]]
