"""Row 18 of the fault matrix: harmful handlers, which must not harm the others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from receiver.inbox import keys
from receiver.inbox.leases import LEASE_MS, LOSSES_ALLOWED
from tests.support.harness import Process, System, children_of, comm, eventually

HARMFUL = """
import os, signal, time
from workers import Router
router = Router("shop")
@router.on("order.created", retries=0, timeout=1)
def hangs(event, ctx):
    while True:
        try:
            time.sleep(60)
        except Exception:
            pass
@router.on("order.created", retries=0)
def aborts(event, ctx):
    os.abort()
@router.on("order.created", retries=0)
def eats(event, ctx):
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20)))
@router.on("order.created", retries=0)
def kills_its_parent(event, ctx):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
@router.on("order.created", retries=0)
def raises(event, ctx):
    raise KeyError("vat_id")
@router.on("*")
def good(event, ctx):
    return "good"
"""


@pytest.mark.parametrize("lost_before", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_row_18_harmful_handlers_fail_with_the_right_reasons_and_harm_no_other(
    make_system: Callable[..., System], lost_before: int
) -> None:
    """It takes a lease's time to notice a lost worker, so the quick form begins with some losses already counted."""
    system = make_system(plugin=HARMFUL, child_processes=4)
    command = [sys.executable, "-m", "workers", "--config", str(system.config_file)]
    env = {"STOREHOOKS_WORKERS__PROCESSES": "2", "STOREHOOKS_WORKERS__MEMORY": "300MB"}
    workers = Process(command, log=system.folder / "workers.log", env=env)
    system.processes.append(workers)
    warm = [system.accept("order.paid") for _ in range(20)]
    for one in warm:
        system.settled(one)
    system.administration.pause(handler="shop.kills_its_parent")
    event_id = system.accept("order.created")
    began = time.monotonic()
    eventually(lambda: system.run_of(event_id, "shop.kills_its_parent"))
    system.client.hset(keys.EVENT + event_id, "r:shop.kills_its_parent", f"ready 0 {lost_before} default ")
    system.administration.resume(handler="shop.kills_its_parent")
    eventually(lambda: (run := system.run_of(event_id, "shop.good")) and run.status == "done", 20)
    took = time.monotonic() - began
    assert took < LEASE_MS / 1000, f"the good handler took {took:.1f} s: it waited for a harmful one"
    assert system.settled(event_id, within=60) == "failed"
    errors = {run.handler: run.error for run in system.ledger.event(event_id).runs}
    assert errors["shop.hangs"] == "RunTimeout: the handler's timeout has passed"
    assert errors["shop.aborts"] == "its process was killed by SIGABRT"
    assert "its process used" in errors["shop.eats"]
    assert errors["shop.kills_its_parent"].startswith("lost-worker")
    assert errors["shop.raises"] == "KeyError: 'vat_id'"
    eventually(lambda: len([pid for pid in children_of(workers.pid) if comm(pid).startswith("sh-worker")]) == 2)
    assert system.settled(system.accept("order.paid")) == "settled"


SLOW_AND_KILLER = """
import os, signal, time
from workers import Router
router = Router("shop")
@router.on("order.created", retries=0)
def takes_long(event, ctx):
    time.sleep(3.5)
    return "whole"
@router.on("order.created", retries=0)
def kills_its_parent(event, ctx):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
"""


@pytest.mark.parametrize("lost_before", [LOSSES_ALLOWED, pytest.param(0, marks=pytest.mark.slow)])
def test_row_18_a_slow_run_does_not_fail_because_another_run_kills_its_worker(
    make_system: Callable[..., System], lost_before: int
) -> None:
    system = make_system(plugin=SLOW_AND_KILLER, child_processes=4)
    for name in ("takes_long", "kills_its_parent"):
        system.administration.pause(handler=f"shop.{name}")
    command = [sys.executable, "-m", "workers", "--config", str(system.config_file)]
    env = {"STOREHOOKS_WORKERS__PROCESSES": "1"}
    system.processes.append(Process(command, log=system.folder / "workers.log", env=env))
    event_id = system.accept("order.created")
    for name in ("takes_long", "kills_its_parent"):
        eventually(lambda handler=f"shop.{name}": system.run_of(event_id, handler))
        system.client.hset(keys.EVENT + event_id, f"r:shop.{name}", f"ready 0 {lost_before} default ")
        system.administration.resume(handler=f"shop.{name}")
    assert system.settled(event_id, within=60) == "failed"
    assert system.run_of(event_id, "shop.takes_long").result == "whole"
    assert system.run_of(event_id, "shop.kills_its_parent").error.startswith("lost-worker")


LEAKS = """
import os, resource
from workers import Router
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
router = Router("shop")
left_open = []
@router.on("order.created", retries=0)
def leaks(event, ctx):
    left_open.append(open(os.devnull))
@router.on("*", retries=0)
def good(event, ctx):
    open(os.devnull).close()
    return "good"
"""


@pytest.mark.full
def test_a_handler_that_leaves_files_open_takes_no_descriptor_from_the_others(
    make_system: Callable[..., System],
) -> None:
    """All handlers failed in its process, up to the end of their retries, and nothing named it."""
    system = make_system(plugin=LEAKS, child_processes=1)
    (worker,) = system.start("worker")
    for one in [system.accept("order.created") for _ in range(500)]:
        assert system.settled(one) == "settled"
    assert system.ledger.counters().total["failed"] == 0
    replaced = [line for line in worker.output().splitlines() if "many file descriptors are open" in line]
    assert len(replaced) >= 3
    assert all("shop.leaks" in line for line in replaced)


FORKS = """
import os
from workers import Router
router = Router("shop")
def forked(comes_back):
    copy = os.fork()
    if not copy:
        return comes_back()
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
@router.on("order.created", retries=0, timeout=10)
def returns(event, ctx):
    return forked(lambda: "the copy's")
@router.on("order.created", retries=0, timeout=10)
def raises(event, ctx):
    return forked(lambda: 1 / 0)
@router.on("order.created", retries=0, timeout=10)
async def exits(event, ctx):
    return forked(lambda: exit(3))
"""


def test_a_copy_of_the_process_that_a_handler_forks_ends_with_it(make_system: Callable[..., System]) -> None:
    """It came back, reported its own result as that of the run, and took the next ones."""
    system = make_system(plugin=FORKS, child_processes=1)
    (worker,) = system.start("worker")
    for one in [system.accept("order.created") for _ in range(3)]:
        assert system.settled(one) == "settled"
        results = [system.run_of(one, f"shop.{name}").result for name in ("returns", "raises", "exits")]
        assert results == [0, 1, 3]
    assert worker.output().count("a process that a handler forked came back from it and is ended") == 9
