"""The stable: real child processes, and no server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from receiver.inbox import Run
from receiver.inbox.model import StoredEvent
from receiver.inbox.outcomes import RunResult
from tests.support.harness import System, eventually
from workers.runtime.pool.pool import ChildPool

SLOW = """
import os, time
from workers import Router
router = Router("shop")
@router.on("order.created")
def greet(event, ctx):
    open(os.path.join(os.path.dirname(__file__), "begun-" + event.id), "w").close()
    time.sleep(30)
"""
VALUES = [b"north", b"order.created", b"d", b"1", b"1700000000000", b"", b"test", b"data"]


def runs_of(*ids: str) -> list[Run]:
    return [
        Run(f"{one}|shop.greet", "shop.greet", "token", 0, 0, StoredEvent(one, VALUES, b'{}\n{"data":{}}'))
        for one in ids
    ]


@contextmanager
def one_horse(system: System, runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildPool]:
    """A stable whose one child process is at the first of these runs."""
    stable = ChildPool(system.config, 1)
    try:
        monkeypatch.setattr(logging.root, "handlers", [])  # a child process closes the files that pytest writes to
        stable.fill()
        eventually(lambda: stable.poll() and stable.idle, 20, what="the child process is ready")
        assert stable.give(runs)
        eventually((system.folder / f"begun-{runs[0].kept.id}").exists)
        yield stable
    finally:
        stable.close()


def all_that_happens(stable: ChildPool) -> tuple[list[tuple[Run, RunResult]], list[Run]]:
    ended, returned = [], []

    def nothing_is_left() -> bool:
        more, back = stable.poll()
        ended.extend(more)
        returned.extend(back)
        return not stable.busy

    eventually(nothing_is_left)
    return ended, returned


def test_the_rest_of_a_batch_that_was_lost_is_not_handed_back_to_be_begun(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was dispatched again, under tokens that no longer fit."""
    runs = runs_of("a", "b", "c")
    with one_horse(make_system(plugin=SLOW), runs, monkeypatch) as stable:
        stable.kill_runs({run.item for run in runs})
        ended, returned = all_that_happens(stable)
    assert [(run.item, result.ending) for run, result in ended] == [(run.item, "lost") for run in runs]
    assert returned == []


def test_what_was_just_taken_back_is_still_ours_to_renew_and_to_lose(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of("a", "b", "c")
    with one_horse(make_system(plugin=SLOW), runs, monkeypatch) as stable:
        stable.take_back_the_rest(longer_than=0)
        assert sorted(run.item for run in stable.runs()) == sorted(run.item for run in runs)
        stable.kill_runs({"b|shop.greet"})
        stable.kill_all()
        ended, returned = all_that_happens(stable)
    assert [result.ending for _, result in ended] == ["stopped"]
    assert [run.item for run in returned] == ["c|shop.greet"]
