"""handlers run: what a worker records as a failed attempt is one here, and a worker's limits hold."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.support.harness import System, children_of, eventually, gone

PLUGIN = """
import asyncio, os, signal, sys, time
from workers import Router

router = Router("shop")

@router.shutdown
def shut_down(resource):
    if os.environ.get("SHUTDOWN_EXITS"):
        sys.exit(0)

@router.on("*")
def exits(event, ctx):
    sys.exit(0)

@router.on("*")
async def cancels(event, ctx):
    raise asyncio.CancelledError

@router.on("*")
def vanishes(event, ctx):
    print("here I go")
    os._exit(0)

@router.on("*")
def crashes(event, ctx):
    os.kill(os.getpid(), signal.SIGSEGV)

@router.on("*")
def grows(event, ctx):
    held = []
    while len(held) < 100:
        held.append(b"x" * (8 << 20))
    time.sleep(30)

@router.on("*", timeout=0.3)
def hangs(event, ctx):
    time.sleep(float(os.environ.get("SLEEP", "60")))
    return "woke up"

@router.on("*", timeout=0.3)
def goes_on(event, ctx):
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@router.on("*", timeout=1)
def connects(event, ctx):
    before = ctx.remaining()
    ctx.api
    time.sleep(0.3)
    return before <= 1

@router.on("*")
def waits(event, ctx):
    print("waiting", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def shop(make_system: Callable[..., System]) -> System:
    return make_system(plugin=PLUGIN)


def run(shop: System, handler: str, *arguments: str, **env: str) -> tuple[int, str]:
    """The exit code, and what was printed. Nothing may stay in the folder for temporary files."""
    folder = shop.folder / "tmp"
    folder.mkdir(exist_ok=True)
    event = shop.folder / "event.json"
    event.write_text('{"store": "north", "topic": "order.created", "data": {"id": 1}}')
    env |= {"STOREHOOKS_WORKERS__MEMORY": "300MB", "TMPDIR": str(folder)}
    done = shop.run_cli("handlers", "run", f"shop.{handler}", "--event", str(event), *arguments, env=env)
    assert list(folder.iterdir()) == []
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("handler", "shown"),
    [
        ("exits", "SystemExit: 0"),
        ("cancels", "CancelledError"),
        ("vanishes", "here I go shop.vanishes died its process ended with exit code 0"),
        ("crashes", "shop.crashes died its process was killed by SIGSEGV"),
        ("hangs", "RunTimeout: the handler's timeout has passed"),
        ("goes_on", "shop.goes_on died killed: still running 2 s after its timeout of 0.3 s"),
        ("grows", "MB of memory, the limit is 300 MB"),
    ],
)
def test_what_is_a_failed_attempt_in_a_worker_exits_with_1(shop: System, handler: str, shown: str) -> None:
    code, printed = run(shop, handler)
    assert (code, shown in printed) == (1, True), printed


def test_a_handler_may_take_any_time_if_asked(shop: System) -> None:
    code, printed = run(shop, "hangs", "--no-timeout", SLEEP="0.6")
    assert (code, '"woke up"' in printed) == (0, True), printed


def test_the_start_of_the_sandbox_does_not_count(shop: System) -> None:
    code, printed = run(shop, "connects")
    assert (code, '"True"' in printed) == (0, True), printed


def test_a_shutdown_function_that_exits_does_not_hide_the_result(shop: System) -> None:
    code, printed = run(shop, "exits", SHUTDOWN_EXITS="1")
    assert (code, "SystemExit: 0" in printed) == (1, True), printed
    assert "plugin shutdown failed" in printed


def test_the_debugger_starts_where_the_time_was_over(shop: System) -> None:
    code, printed = run(shop, "hangs", "--pdb")
    assert (code, "RunTimeout" in printed, "(Pdb)" in printed) == (1, True, True), printed


def test_an_interrupt_stays_one(shop: System) -> None:
    process = shop.start_cli("handlers", "run", "shop.waits", "--event", shop.accept())
    eventually(lambda: "waiting" in shop.log("handlers"))
    (child,) = children_of(process.pid)
    for pid in (process.pid, child):  # as Ctrl-C does
        os.kill(pid, signal.SIGINT)
    assert process.wait(10) == 130
    assert "Traceback" not in shop.log("handlers")


def test_the_child_process_ends_with_the_command(shop: System) -> None:
    process = shop.start_cli("handlers", "run", "shop.waits", "--event", shop.accept())
    eventually(lambda: "waiting" in shop.log("handlers"))
    (child,) = children_of(process.pid)
    process.kill()
    eventually(lambda: gone(child))
