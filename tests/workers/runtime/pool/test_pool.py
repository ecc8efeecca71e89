"""The pool: real child processes, and no server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock, Mock

import pytest

from receiver.inbox import Run
from receiver.inbox.leases import LEASE_MS
from receiver.inbox.model import StoredEvent
from receiver.inbox.outcomes import RunResult
from tests.support.harness import System, eventually
from workers.plugins.plugin_code import ValidatedCode
from workers.plugins.validation_process import ValidationProcess
from workers.processes import wait_for_exit
from workers.runtime.pool.lease_guard import SAFETY, lease_clock
from workers.runtime.pool.pool import ChildPool
from workers.runtime.worker.worker import Worker

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
def pool_at_work(
    system: System, runs: list[Run], monkeypatch: pytest.MonkeyPatch, *, lease: float = 0
) -> Iterator[ChildPool]:
    """A pool whose one child process is busy with the first of these runs; ordered ones need a lease, in seconds."""
    pool = ChildPool(system.config, ValidationProcess(system.config).result().code, 1)
    try:
        monkeypatch.setattr(logging.root, "handlers", [])  # a child process closes the files that pytest writes to
        pool.fill()
        eventually(lambda: pool.poll() and pool.idle, 20, what="the child process is ready")
        (process,) = pool.idle_with("shop.greet")
        pool.lease.renewed(lease_clock() + lease - LEASE_MS / 1000 + SAFETY)
        process.give(runs)
        begun = system.folder / f"begun-{runs[0].stored.id}"
        eventually(lambda: begun.exists() or (lease and pool.lease.has_ended))
        yield pool
    finally:
        pool.close()


def results_of(pool: ChildPool) -> tuple[list[tuple[Run, RunResult]], list[Run]]:
    ended, returned = [], []

    def nothing_is_left() -> bool:
        more, back = pool.poll()
        ended.extend(more)
        returned.extend(back)
        return not pool.busy

    eventually(nothing_is_left)
    return ended, returned


def test_the_rest_of_a_batch_with_a_lost_lease_is_not_returned(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was dispatched again, under tokens that were no longer valid."""
    runs = runs_of("a", "b", "c")
    with pool_at_work(make_system(plugin=SLOW), runs, monkeypatch) as pool:
        pool.kill_runs({run.item for run in runs})
        ended, returned = results_of(pool)
    assert [(run.item, result.ending) for run, result in ended] == [(run.item, "lost") for run in runs]
    assert returned == []


def test_the_leases_of_runs_just_taken_back_are_still_renewed_and_can_be_lost(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of("a", "b", "c")
    with pool_at_work(make_system(plugin=SLOW), runs, monkeypatch) as pool:
        pool.take_back_waiting(longer_than=0)
        assert sorted(run.item for run in pool.runs()) == sorted(run.item for run in runs)
        pool.kill_runs({"b|shop.greet"})
        pool.kill_all()
        ended, returned = results_of(pool)
    assert [result.ending for _, result in ended] == ["stopped"]
    assert [run.item for run in returned] == ["c|shop.greet"]


def test_an_ordered_run_that_ended_with_its_lease_is_lost_also_if_the_lease_is_renewed_before_that_is_noticed(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as a failed attempt, and as the eighth it was retried after hours: Redis had not answered for 3 s."""
    runs = [replace(run, order_key="k") for run in runs_of("a", "b")]
    with pool_at_work(make_system(plugin=SLOW), runs, monkeypatch, lease=0.5) as pool:
        (process,) = pool.children.values()
        assert wait_for_exit(process.pidfd, 10)
        server = Mock(inbox=Mock(renew=lambda _: set()), unwritten=[], try_at_server=lambda call: call())
        waiting = MagicMock(__iter__=lambda _: iter(()))
        Worker._renew_leases(cast(Worker, SimpleNamespace(_pool=pool, _exchange=server, _waiting=waiting)))
        ended, returned = results_of(pool)
    assert [(run.item, result.ending) for run, result in ended] == [(run.item, "lost") for run in runs]
    assert returned == []


SHUTS_DOWN = """
import os, time
from workers import Router

router = Router("shop")

@router.startup
def begin(settings):
    return None

@router.shutdown
def end(resource):
    time.sleep(0.3)
    open(os.path.join(os.path.dirname(__file__), "shut-down"), "w").close()

@router.on("order.created")
def greet(event, ctx):
    open(os.path.join(os.path.dirname(__file__), "begun-" + event.id), "w").close()
"""


def test_a_child_process_that_is_being_recycled_may_shut_its_plugins_down_when_the_pool_closes(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = make_system(plugin=SHUTS_DOWN)
    with pool_at_work(system, runs_of("a"), monkeypatch) as pool:
        results_of(pool)
        pool.reload(system.config, ValidatedCode())
    assert (system.folder / "shut-down").exists()


RETRIES = """
import os
from storehooks import Fail, Retry, Router
router = Router("shop")
@router.on("order.created", order_by="resource")
def greet(event, ctx):
    open(os.path.join(os.path.dirname(__file__), "begun-" + event.id), "w").close()
    if event.id.startswith("retry"):
        raise Retry("later")
    if event.id.startswith("fail"):
        raise Fail("never")
    return ctx.fence
"""


@pytest.mark.parametrize(
    ("first", "stops", "endings"),
    [
        ("retry", False, ["retry", "behind", "done", "behind"]),
        ("fail", False, ["failed", "done", "done", "done"]),
        ("fail", True, ["failed", "behind", "done", "behind"]),
    ],
)
def test_the_rest_of_an_order_key_is_not_begun_if_its_first_run_has_not_ended_for_good(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch, first: str, stops: bool, endings: list[str]
) -> None:
    runs = [
        replace(run, order_key=key, fence=n, stops_key=stops)
        for n, (run, key) in enumerate(zip(runs_of(first, "a", "other", "b"), "kkjk", strict=True))
    ]
    system = make_system(plugin=RETRIES)
    with pool_at_work(system, runs, monkeypatch, lease=60) as pool:
        ended, _ = results_of(pool)
    assert [str(result.ending) for _, result in ended] == endings
    assert ended[2][1].detail["result"] == 2, "its fence"
    assert (system.folder / "begun-a").exists() == ("behind" not in endings)


def test_a_batch_ends_if_the_lease_of_one_ordered_run_in_it_is_lost(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker may begin that one as soon as those before it have ended."""
    runs = [replace(run, order_key="k") for run in runs_of("a", "b", "c")]
    with pool_at_work(make_system(plugin=SLOW), runs, monkeypatch, lease=60) as pool:
        pool.kill_runs({"b|shop.greet"})
        ended, returned = results_of(pool)
    assert [result.ending for _, result in ended] == ["lost"] * 3
    assert returned == []
