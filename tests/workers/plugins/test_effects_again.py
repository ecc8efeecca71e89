"""Replays with --again: which calls of ctx.once are made again, by which runs, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from receiver.inbox import keys
from receiver.inbox.effect_store import EffectStore
from tests.support.harness import System, eventually

PLUGIN = """
import os
from pathlib import Path
from workers import Fail, Router

router = Router("shop")
here = Path(__file__).parent

def is_set(name):
    return (here / name).exists()

def called(event, ctx, key):
    with open(here / "calls", "a") as calls:
        calls.write(f"{ctx.handler} {key} {event.id}\\n")
    if is_set("die"):
        os._exit(9)
    if is_set("refuse"):
        raise OSError("refused")

def pay(event, ctx):
    if is_set("broken early"):
        raise Fail("broken")
    for key in ("payout", "mail"):
        ctx.once(key, called, event, ctx, key, in_doubt="fail", scope=event.data["scope"])
    if is_set("broken") and ctx.attempt < 3:
        raise OSError("broken")

@router.on("order.paid", retries=(0.05, 0.05))
def pay_out(event, ctx):
    pay(event, ctx)

@router.on("order.paid", retries=(0.05, 0.05))
def pay_tax(event, ctx):
    pay(event, ctx)
"""
HANDLER = "shop.pay_out"
SCOPES = ("event", "resource", "store")


class Shop:
    def __init__(self, system: System) -> None:
        self.system = system

    def paid(self, scope: str) -> str:
        event_id = self.system.accept("order.paid", data={"id": 7, "scope": scope})
        self.system.settled(event_id)
        return event_id

    def replay(self, *arguments: str) -> str:
        done = self.system.run_cli("events", "replay", *arguments, "--yes")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def replayed(self, event_id: str, *arguments: str) -> Any:
        """The run after it was replayed once more."""
        self.replay(event_id, "--handler", HANDLER, *arguments)
        self.system.settled(event_id)
        return self.system.run_of(event_id, HANDLER)

    def set(self, name: str) -> None:
        (self.system.folder / name).touch()

    def unset(self, name: str) -> None:
        (self.system.folder / name).unlink()

    def calls(self, *, key: str = "payout", handler: str = HANDLER) -> Counter[str]:
        """How often a call was made for each event."""
        lines = (self.system.folder / "calls").read_text().splitlines()
        return Counter(line.split()[2] for line in lines if line.startswith(f"{handler} {key} "))


@pytest.fixture
def shop(make_system: Callable[..., System]) -> Shop:
    system = make_system(plugin=PLUGIN)
    system.start("worker", "housekeeper")
    return Shop(system)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_replay_with_again_repeats_what_is_done_in_every_scope(shop: Shop, scope: str) -> None:
    event_id = shop.paid(scope)
    assert shop.replayed(event_id).status == "done"
    assert shop.calls() == {event_id: 1}, "not without --again"
    assert shop.replayed(event_id, "--again").status == "done"
    assert shop.calls() == shop.calls(key="mail") == {event_id: 2}
    assert shop.calls(handler="shop.pay_tax") == {event_id: 1}, "the other handler was not replayed"
    shop.replayed(event_id)
    later = shop.paid(scope)
    assert shop.calls() == {event_id: 2, **({later: 1} if scope == "event" else {})}, "only the replayed run"


@pytest.mark.parametrize("scope", SCOPES)
def test_the_proposed_command_repairs_a_run_in_doubt(shop: Shop, scope: str) -> None:
    shop.set("die")
    event_id = shop.paid(scope)
    shop.unset("die")
    assert "--again" in shop.system.run_of(event_id, HANDLER).error
    assert "in doubt" in shop.replayed(event_id).error, "not without --again"
    groups = shop.system.run_cli("failures").stdout
    group = next(line.split()[0] for line in groups.splitlines() if HANDLER in line)
    shown = shop.system.run_cli("failures", "show", group).stdout
    assert "failures replay" not in groups + shown, "it would fail again"
    assert "handlers run" not in groups + shown, "it would make the call"
    command = ["events", "replay", event_id, "--handler", HANDLER, "--again"]
    assert f"storehooks {' '.join(command)}" in shown
    assert "1 run replayed" in shop.replay(*command[2:])
    eventually(lambda: shop.system.run_of(event_id, HANDLER).status == "done")
    assert shop.calls() == {event_id: 2}
    assert shop.calls(key="mail") == {event_id: 1}
    assert shop.system.run_of(event_id, "shop.pay_tax").status == "failed"


@pytest.mark.parametrize("scope", SCOPES)
def test_a_retry_of_a_replayed_run_does_not_repeat_it_once_more(shop: Shop, scope: str) -> None:
    ids = [shop.paid(scope) for _ in range(3)]
    before = shop.calls()
    shop.set("broken")
    assert "3 runs replayed" in shop.replay("--handler", HANDLER, "--again")
    eventually(lambda: all(shop.system.run_of(one, HANDLER).attempts == 3 for one in ids))
    for one in ids:
        assert shop.system.settled(one) == "settled"
    assert shop.calls() - before == dict.fromkeys(ids, 1), "each run repeats it once"


def test_a_call_that_raises_in_a_replay_is_made_by_the_retry(shop: Shop) -> None:
    event_id = shop.paid("resource")
    shop.set("refuse")
    assert shop.replayed(event_id, "--again").status == "failed"
    assert shop.calls() == {event_id: 4}
    shop.unset("refuse")
    shop.replayed(event_id)
    assert shop.calls() == {event_id: 5}


def test_a_replay_that_failed_too_early_is_continued_without_again(shop: Shop) -> None:
    """As with the marks of an event, which are removed when it is replayed."""
    event_id = shop.paid("resource")
    shop.set("broken early")
    assert shop.replayed(event_id, "--again").status == "failed"
    shop.unset("broken early")
    assert shop.replayed(event_id).status == "done"
    assert shop.calls() == {event_id: 2}
    shop.replayed(event_id)
    assert shop.calls() == {event_id: 2}


def test_a_replayed_run_waits_while_another_run_makes_the_call(system: System) -> None:
    effects, place, mark = EffectStore(system.client, keep=60, at_work=60), f"o:s:north:{HANDLER}|k", f"{HANDLER}|k"
    event_id = system.accept()
    item = keys.run_item(event_id, HANDLER)
    system.client.hset(keys.EVENT + event_id, f"o:{HANDLER}", "")
    effects.begin(place, mark, "other|shop.pay_out", in_doubt="fail")
    assert effects.begin(place, mark, item, in_doubt="fail") == ["busy"]
    effects.end(place, mark, "other|shop.pay_out", b"1")
    assert effects.begin(place, mark, item, in_doubt="fail")[0] == "go"
    assert effects.begin(place, mark, item, in_doubt="fail") == ["doubt"], "it died in the repeated call"
