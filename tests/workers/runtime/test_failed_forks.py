"""A limit of processes, memory or descriptors: what cannot be started is tried again, and the others go on."""

from __future__ import annotations

import json
import mmap
import os
import resource
import selectors
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EAGAIN, EMFILE, ENOMEM
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.harness import System, children_of, comm, eventually, gone
from tests.workers.runtime.pool.test_pool import SLOW, pool_at_work, runs_of
from tests.workers.runtime.test_new_children import hang, same_signals
from workers.plugins.plugin_code import ValidatedCode
from workers.runtime.config_reload import ConfigReload
from workers.runtime.supervisor import Program, Supervisor

__all__ = ["same_signals"]
PLUGIN = """
import os, time
from workers import Router
router = Router("shop")
@router.on("order.created", timeout=60)
def greet(event, ctx):
    folder = os.path.dirname(__file__)
    open(os.path.join(folder, f"begun-{os.getpid()}"), "w").close()
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.05)
"""
LEFT = [(os, "fork", EAGAIN), (os, "pidfd_open", EMFILE)]
"""Calls that fail at a limit, in every process that is started."""


def fails_once(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int) -> list[bool]:
    """Let a function of the system fail at its next call; that is noted in the list."""
    real, failed = getattr(module, name), []

    def call(*given: Any) -> Any:
        if failed:
            return real(*given)
        failed.append(True)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module, name, call)
    return failed


def own_children() -> set[int]:
    """Also those that have ended and were not waited for."""
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """A process keeps those that it has, and gets no others."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    yield
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


# The supervisor


def ends() -> int:
    return 0


@pytest.mark.usefixtures("same_signals")
@pytest.mark.parametrize(("module", "name", "code"), [*LEFT, (mmap, "mmap", ENOMEM)])
def test_a_process_that_cannot_be_started_again_is_tried_a_moment_later(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int
) -> None:
    said: list[str] = []
    supervisor = Supervisor(report=said.append, stop_seconds=10)
    before, mask = own_children(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        supervisor.start(Program("stays", call=hang))
        (stays,) = own_children() - before
        supervisor.start(Program("ends", call=ends))
        failed = fails_once(monkeypatch, module, name, code)
        eventually(lambda: supervisor.poll(0.1) or failed, what="it could not be started")
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
        assert own_children() - before == {stays}
        assert said[1:] == [f"ends cannot be started: {os.strerror(code)}; trying again in 1 s"]
        eventually(lambda: supervisor.poll(0.1) or len(said) > 2, what="it was started, and ended again")
        assert said[2].startswith("ends ended with exit code 0")
        assert not gone(stays)
    finally:
        supervisor.stop_children()


def test_a_killed_housekeeper_that_cannot_be_started_costs_no_worker(make_system: Callable[..., System]) -> None:
    """The error ended the supervisor, and so each worker at once, with its runs."""
    system = make_system(plugin=PLUGIN, child_processes=1)
    (supervisor,) = system.start("supervisor")

    def housekeepers() -> list[int]:
        return [pid for pid in children_of(supervisor.pid) if comm(pid) == "sh-housekeeper" and not gone(pid)]

    eventually(lambda: "worker started" in system.log("supervisor"))
    event = system.accept()
    eventually(lambda: list(system.folder.glob("begun-*")), what="a run is under way")
    (killed,) = housekeepers()
    with without_descriptors(supervisor.pid):
        os.kill(killed, signal.SIGKILL)
        said = "housekeeper cannot be started: Too many open files"
        eventually(lambda: said in system.log("supervisor"), what="the log says so")
        assert supervisor.alive
    eventually(lambda: killed not in (found := housekeepers()) and found, what="it was started again")
    (system.folder / "go").touch()
    assert system.settled(event) == "settled"
    assert system.run_of(event, "shop.greet").attempts == 1


# The child processes of a worker


@pytest.mark.parametrize(("module", "name", "code"), [*LEFT, (os, "pipe", EMFILE), (socket, "socketpair", EMFILE)])
def test_a_child_process_that_cannot_be_started_leaves_nothing_and_is_tried_a_moment_later(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int
) -> None:
    (run,) = runs_of("a")
    with pool_at_work(make_system(plugin=SLOW), [run], monkeypatch) as pool:
        (first,) = pool.children
        pool._size = 2
        before = (own_children(), descriptors())
        fails_once(monkeypatch, module, name, code)
        with capture_logs() as lines:
            pool.fill()
            assert (own_children(), descriptors(), set(pool.children)) == (*before, {first})
            pool.fill()
            assert set(pool.children) == {first}, "not at once"
            eventually(lambda: pool.fill() or len(pool.children) == 2)
        said = [line["event"] for line in lines if line["log_level"] != "info"]
        assert said == ["a child process cannot be started; trying again each second"]
        assert pool.under_way == [run]


def test_a_worker_without_descriptors_goes_on_with_the_child_processes_that_it_has(
    make_system: Callable[..., System],
) -> None:
    """The error ended it, and its runs."""
    system = make_system(plugin=PLUGIN, child_processes=2)
    (worker,) = system.start("worker")
    eventually(lambda: "worker started" in system.log("worker"))
    event = system.accept()
    (begun,) = eventually(lambda: list(system.folder.glob("begun-*")), what="a run is under way")
    (idle,) = {pid for pid in children_of(worker.pid) if comm(pid) == "sh-child"} - {int(begun.name.split("-")[1])}
    with without_descriptors(worker.pid):
        os.kill(idle, signal.SIGKILL)
        said = "a child process cannot be started; trying again each second"
        eventually(lambda: said in system.log("worker"), what="the log says so")
        found = "cannot start child processes: Too many open files | 1 child process of it left"
        eventually(lambda: found in faults_of_workers(system), 20, what="doctor says so")
        (system.folder / "go").touch()
        assert system.settled(event) == "settled"
        assert system.run_of(event, "shop.greet").attempts == 1
        assert system.log("worker").count(said) == 1
    alive = "child processes can be started again"
    eventually(lambda: alive in system.log("worker"), what="the second one is started")
    assert len([pid for pid in children_of(worker.pid) if not gone(pid)]) == 2
    eventually(lambda: "cannot start" not in faults_of_workers(system), 20, what="doctor says so")


def faults_of_workers(system: System) -> str:
    """What `doctor` says of them."""
    found = json.loads(system.run_cli("doctor", "--json").stdout)
    return " ".join(
        f"{one['text']} | {' '.join(one['more'])}" for one in found["findings"] if one["check"] == "workers"
    )


# Reloads


@pytest.mark.parametrize(("module", "name", "code"), [*LEFT, (os, "memfd_create", EMFILE)])
@pytest.mark.parametrize("why", ["HUP", "a changed package"])
def test_a_reload_that_cannot_start_a_process_is_refused_and_leaves_nothing(
    system: System, monkeypatch: pytest.MonkeyPatch, why: str, module: Any, name: str, code: int
) -> None:
    """The error ended the worker, or the supervisor with all workers."""
    adopted, faults = [], []
    with selectors.DefaultSelector() as selector:
        reload = ConfigReload(
            selector, system.config_file, lambda *_: adopted.append(True), lambda: faults.append(reload.fault)
        )
        before = (own_children(), descriptors())

        def begin() -> None:
            if why == "HUP":
                reload.begin()
            else:
                reload.validate_again(system.config, ValidatedCode(()), {"shop": "changed"})

        fails_once(monkeypatch, module, name, code)
        with capture_logs() as lines:
            begin()
        assert (own_children(), descriptors(), reload.is_under_way) == (*before, False)
        reason = f"no process can be started that loads the plugins: {os.strerror(code)}"
        assert reason in [line.get("why") for line in lines]
        assert faults == ([] if why == "HUP" else [reason])
        begin()
        for key, _ in selector.select(30):
            key.data()
        assert adopted == [True], "the next one is done"
