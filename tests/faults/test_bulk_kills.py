"""Housekeepers and the console are killed while a bulk action replays many failures: each run is replayed once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from benchmarks.console_pages import COPY
from receiver.inbox import keys
from receiver.inbox.bulk_actions import BulkAction, BulkActions
from receiver.inbox.queries.failures import FailureQueries
from tests.receiver.inbox.test_bulk_actions import fail_many, replays
from tests.support.console import Browser, RunningConsole, running_console
from tests.support.harness import System, eventually, kill_with_children


def start(console: RunningConsole, browser: Browser, **fields: str) -> str:
    """Start a bulk replay in the console; returns its id."""
    browser.get("/failures/actions/new?group=a1f3aaaa")
    browser.press("/failures/actions/start", action="replay", group="a1f3aaaa", **fields)
    return BulkActions(console.system.client).newest(1)[0].id


def the(console: RunningConsole, action_id: str) -> BulkAction:
    found = BulkActions(console.system.client).find(action_id)
    assert found
    return found


def copy_failure(system: System, number: int) -> list[str]:
    """A failed run, and copies of it, which take less time than runs of their own."""
    items = fail_many(system, 1)
    event_id, handler = keys.split_item(items[0])
    copy, began = system.client.register_script(COPY), int((time.time() - 3600) * 1e6)
    for start in range(0, number - 1, 2_000):
        many = min(2_000, number - 1 - start)
        copy(args=(event_id, start, many, 1, began, 1_000, "a1f3aaaa", handler))
    return items + [f"copy{at:022d}|{handler}" for at in range(number - 1)]


@pytest.mark.parametrize(
    ("number", "kills"),
    [
        pytest.param(1_500, 2, marks=pytest.mark.full),
        pytest.param(200_000, 12, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
    ids=["1,500", "200,000"],
)
def test_each_run_is_replayed_once_whatever_is_killed(tmp_path: Path, number: int, kills: int) -> None:
    with running_console(tmp_path) as console:
        system, chance = console.system, random.Random(24)
        items = fail_many(system, number) if number < 10_000 else copy_failure(system, number)
        system.client.slowlog_reset()
        browser = console.browser().log_in()
        # Without a rate the small one would be over before the first kill.
        action_id = start(console, browser, **({"rate": "1000/s"} if number < 10_000 else {}))
        (web,) = (one for one in system.processes if "workers.console" in one.command)
        started = time.monotonic()
        for kill in range(kills):
            (housekeeper,) = system.start("housekeeper")
            goal = number * (kill + 1) // (kills + 2)
            eventually(lambda goal=goal: the(console, action_id).changed > goal, 120, what=f"{goal} are replayed")
            time.sleep(chance.uniform(0, 0.05))  # at any moment of a step
            housekeeper.kill()
            if kill == kills // 2:
                kill_with_children(web)
            assert the(console, action_id).state == "running"
        system.start("housekeeper")
        ended = eventually(lambda: (one := the(console, action_id)).state == "done" and one, 300, what="it is done")
        took = time.monotonic() - started
        assert (ended.changed, ended.examined) == (number, number)
        assert [one for one, many in zip(items, replays(system, items), strict=True) if many != 1] == []
        assert FailureQueries(system.client).groups().entries == []
        assert system.identity_holds()
        slowest = max((one["duration"] for one in system.client.slowlog_get(128)), default=0)
        print(
            f"{number:,} runs, {kills} housekeepers and the console killed, {took:.0f} s; slowest command {slowest} us"
        )


@pytest.mark.timed
def test_a_stop_in_the_console_ends_it_within_two_seconds(tmp_path: Path) -> None:
    with running_console(tmp_path, "housekeeper") as console:
        items = fail_many(console.system, 3_000)
        browser = console.browser().log_in()
        action_id = start(console, browser, rate="500/s")
        eventually(lambda: the(console, action_id).changed > 0, what="the first step")
        began = time.monotonic()
        assert "stopped" in browser.press(f"/failures/actions/{action_id}/stop")
        assert time.monotonic() - began < 2
        replayed = sum(replays(console.system, items))
        assert 0 < replayed < 3_000
        stopped = time.monotonic()
        eventually(lambda: time.monotonic() - stopped > 2)  # four rounds of the housekeeper
        assert sum(replays(console.system, items)) == replayed
