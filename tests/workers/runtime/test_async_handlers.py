"""`async def` handlers: they run in the one event loop of their child process, with the same timeouts and endings."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress

import pytest

from storehooks.testing import make_context, make_event
from tests.support.harness import System, children_of, eventually, own_server
from workers.plugins.coroutines import CANCEL_SECONDS, CoroutineRunner

PLUGIN = """
import asyncio, functools, os, time
from storehooks import Busy, Context, Drop, Event, Fail, Retry, Router

router = Router("shop")
path = os.path.join(os.path.dirname(__file__), "notes")

def note(text):
    with open(path, "a") as file:
        file.write(f"{text}\\n")

@router.startup
async def connect(settings):
    ticks = []
    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.01)
    return {"loop": asyncio.get_running_loop(), "task": asyncio.create_task(tick()), "ticks": ticks}

@router.shutdown
async def close(resource):
    resource["task"].cancel()
    note("shut down")

@router.on("order.plain")
def plain(event, ctx):
    return "plain"

@router.on("order.plain")
async def together(event: Event, ctx: Context) -> str:
    done = await asyncio.gather(asyncio.sleep(0.02, "a"), asyncio.sleep(0.01, "b"))
    assert ctx.resource["loop"] is asyncio.get_running_loop()
    return "".join(done)

@router.on("order.once")
async def once(event, ctx):
    async def send(number):
        await asyncio.sleep(0)
        note(f"sent {number}")
        return {"number": number}
    sent = await ctx.once("send", send, number=7)
    if ctx.attempt == 1:
        raise Retry("again", after=0)
    return sent["number"]

@router.on("order.lambda", retries=0)
async def forgets(event, ctx):
    await ctx.once("send", lambda: asyncio.sleep(0))

@router.on("order.waits", timeout=0.3, retries=0)
async def waits(event, ctx):
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.01)
        note("cleaned up")

@router.on("order.blocks", timeout=0.3, retries=0)
async def blocks(event, ctx):
    time.sleep(60)

@router.on("order.never")
async def fails(event, ctx):
    raise Fail("never")

@router.on("order.drop")
async def drops(event, ctx):
    raise Drop("nothing to do")

@router.on("order.value", retries=0)
async def raises(event, ctx):
    await asyncio.sleep(0)
    raise ValueError("broken")

@router.on("order.leaves")
async def leaves(event, ctx):
    async def later():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            note("cancelled")
            raise
    ctx.resource["left"] = asyncio.create_task(later())
    await asyncio.sleep(0)
    return f"{len(ctx.resource['ticks']) > 0}"

def logged(function):
    @functools.wraps(function)
    def wrapper(event, ctx):
        return function(event, ctx)
    return wrapper

@router.on("order.wrapped")
@logged
async def wrapped(event, ctx):
    await asyncio.sleep(0)
    return "wrapped"
"""


QUEUED = """
import asyncio, os, time
from storehooks import Router

router = Router("shop")

def note(event):
    with open(os.path.join(os.path.dirname(__file__), "notes"), "a") as file:
        file.write(f"{event.id}\\n")

@router.on("order.sleeps", retries=1)
def sleeps(event, ctx):
    note(event)
    time.sleep(0.05)

@router.on("order.awaits", retries=1)
async def awaits(event, ctx):
    note(event)
    await asyncio.sleep(0.05)
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("async")
    (folder / "data").mkdir(mode=0o700)
    with own_server(folder) as server:
        system = System(folder, server.url, plugin=PLUGIN, child_processes=1)
        system.start("worker", "housekeeper")
        yield system
        system.close()


def ended(system: System, topic: str, handler: str) -> tuple[str, object]:
    event_id = system.accept(f"order.{topic}", data={"id": 1})
    system.settled(event_id)
    run = system.run_of(event_id, f"shop.{handler}")
    return run.status, run.error if run.status == "failed" else run.result


def notes(system: System) -> list[str]:
    path = system.folder / "notes"
    return path.read_text().splitlines() if path.exists() else []


def test_async_and_plain_handlers_run_side_by_side_in_one_loop(running: System) -> None:
    assert [ended(running, "plain", name) for name in ("plain", "together", "together")] == [
        ("done", "plain"),
        ("done", "ab"),
        ("done", "ab"),
    ]


def test_once_awaits_an_async_effect_and_remembers_its_result(running: System) -> None:
    assert ended(running, "once", "once") == ("done", 7)
    assert notes(running).count("sent 7") == 1


def test_an_effect_that_was_not_awaited_is_an_error_with_the_fix(running: System) -> None:
    status, error = ended(running, "lambda", "forgets")
    assert status == "failed"
    assert "await ctx.once(key, function, ...)" in str(error)


@pytest.mark.parametrize("how", ["waits", "blocks"])
def test_a_timeout_ends_it_whether_it_awaits_or_blocks(running: System, how: str) -> None:
    started = time.monotonic()
    assert ended(running, how, how) == ("failed", "RunTimeout: the handler's timeout has passed")
    assert time.monotonic() - started < 8
    if how == "waits":
        assert "cleaned up" in notes(running)
    assert ended(running, "plain", "together") == ("done", "ab"), "the loop goes on"


@pytest.mark.parametrize(
    ("topic", "handler", "expected"),
    [
        ("never", "fails", ("failed", "Fail: never")),
        ("drop", "drops", ("dropped", "nothing to do")),
        ("value", "raises", ("failed", "ValueError: broken")),
        ("wrapped", "wrapped", ("done", "wrapped")),
    ],
)
def test_it_ends_as_a_plain_handler_does(
    running: System, topic: str, handler: str, expected: tuple[str, object]
) -> None:
    assert ended(running, topic, handler) == expected


def test_a_task_that_a_handler_leaves_is_cancelled_and_one_of_the_startup_stays(running: System) -> None:
    assert ended(running, "leaves", "leaves") == ("done", "True")
    assert "cancelled" in notes(running)
    assert ended(running, "leaves", "leaves") == ("done", "True")


def test_the_failure_names_the_line_of_the_handler(running: System) -> None:
    event_id = running.accept("order.value", data={"id": 1})
    running.settled(event_id)
    groups = json.loads(running.run_cli("failures", "--json").stdout)
    (group,) = {one["group"] for one in groups if one["handler"] == "shop.raises"}
    line = next(at for at, text in enumerate(PLUGIN.splitlines(), 1) if "ValueError" in text)
    shown = running.run_cli("failures", "show", group).stdout
    assert f'shop.py", line {line}, in raises' in shown, shown


def test_handlers_run_calls_it_locally(running: System) -> None:
    event_id = running.accept("order.plain", data={"id": 1})
    running.settled(event_id)
    done = running.run_cli("handlers", "run", "shop.together", "--event", event_id)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"ab"' in done.stdout


@pytest.mark.parametrize("how", ["sleeps", "awaits"])
def test_a_run_whose_child_process_is_killed_begins_before_those_that_wait(
    make_system: Callable[..., System], how: str
) -> None:
    system = make_system(plugin=QUEUED, child_processes=3)
    accepted = system.inbox.accept([system.delivery(f"order.{how}") for _ in range(50)])
    worker, _ = system.start("worker", "housekeeper")
    eventually(lambda: len(notes(system)) > 6)
    child_processes = children_of(worker.pid)
    os.kill(worker.pid, signal.SIGSTOP)  # or a run that was killed begins in the next process, to be killed again
    for child_process in child_processes:
        os.kill(child_process, signal.SIGKILL)
    os.kill(worker.pid, signal.SIGCONT)
    for one in accepted:
        assert system.settled(one.id, within=20) == "settled"
    begun = notes(system)
    killed = {one for one in begun if begun.count(one) == 2}
    assert 0 < len(killed) <= 2, "of three child processes, two are for one handler"
    for one in killed:
        first = begun.index(one)
        assert begun.index(one, first + 1) - first < 10, "it does not wait once more behind all others"


def test_an_async_shutdown_is_awaited_when_the_worker_stops(running: System) -> None:
    """The last test of this file."""
    running.processes[0].stop()
    eventually(lambda: "shut down" in notes(running))


def test_the_test_kit_awaits_an_async_effect_and_records_it() -> None:
    async def send(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def handler() -> tuple[int, int]:
        return await context.once("send", send, 7), await context.once("send", send, 8)

    event = make_event("order.paid")
    context = make_context(event)
    assert asyncio.run(handler()) == (7, 7)
    assert context.once_calls == [("send", 7)]


@pytest.mark.parametrize("how", ["at once", "and goes on", "later"])
def test_a_handler_that_stops_the_loop_ends_neither_its_own_run_nor_the_next(how: str) -> None:
    async def mischief() -> str:
        loop = asyncio.get_running_loop()
        if how == "later":
            loop.call_later(0.01, loop.stop)
        else:
            loop.stop()
        if how == "and goes on":
            await asyncio.sleep(0.01)
        return "stopped"

    runner = CoroutineRunner(interrupts=Passed)
    assert runner.finish(mischief()) == "stopped"
    assert runner.finish(asyncio.sleep(0.05, "done")) == "done"
    runner.close()


class Passed(BaseException):
    """What the time limit of a run raises here."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def raise_passed(*_: object) -> None:
        raise Passed

    before = signal.signal(signal.SIGALRM, raise_passed)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def block(seconds: float = 20) -> None:
    time.sleep(seconds)


async def blocks_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(block)
    await asyncio.sleep(20)


async def blocks_in_a_task_that_is_held() -> None:
    async def blocks() -> None:
        block()

    held.append(asyncio.create_task(blocks()))
    await asyncio.sleep(20)


@pytest.mark.parametrize("blocks", [blocks_in_a_callback, blocks_in_a_task_that_is_held])
def test_a_timeout_ends_the_run_whatever_it_hits(blocks: Callable[[], Coroutine[None, None, None]]) -> None:
    """In a callback, asyncio catches every exception but two and logs it; a task may be awaited by none."""
    runner = CoroutineRunner(interrupts=Passed)
    started = time.monotonic()
    with time_limit(0.05), pytest.raises(Passed):
        runner.finish(blocks())
    runner.close()
    assert time.monotonic() - started < 10


def test_a_timeout_that_hits_a_task_of_the_startup_ends_the_run() -> None:
    async def startup() -> None:
        async def refresh() -> None:
            while True:
                block(0.05)
                await asyncio.sleep(0)

        held.append(asyncio.create_task(refresh()))

    runner = CoroutineRunner(interrupts=Passed)
    runner.finish(startup(), keep_tasks=True)
    started = time.monotonic()
    with time_limit(0.2), pytest.raises(Passed):
        runner.finish(asyncio.sleep(20))
    runner.close()
    assert time.monotonic() - started < 10


async def exits(text: str = "of this run") -> None:
    await asyncio.sleep(0)
    sys.exit(text)


async def exits_when_cancelled() -> None:
    try:
        await asyncio.sleep(20)
    except asyncio.CancelledError:
        sys.exit("of this run")


async def gathers() -> None:
    await asyncio.gather(*(exits_when_cancelled() for _ in range(4)), exits())


async def groups() -> None:
    async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
        outer.create_task(exits_when_cancelled())
        inner.create_task(exits())


async def leaves_some_that_exit() -> None:
    held.extend(asyncio.create_task(exits_when_cancelled()) for _ in range(4))
    held.append(asyncio.create_task(exits()))
    await asyncio.sleep(0.1)


async def leaves_one_that_goes_on_and_exits() -> None:
    async def goes_on() -> None:
        end = time.monotonic() + CANCEL_SECONDS + 0.2
        while time.monotonic() < end:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        sys.exit("of this run")

    held.append(asyncio.create_task(goes_on()))
    await asyncio.sleep(0.01)


async def leaves_callbacks() -> None:
    class Unusual(BaseException):
        pass

    def raises() -> None:
        raise Unusual

    loop = asyncio.get_running_loop()
    loop.call_later(0.1, sys.exit, "of this run")
    loop.call_later(0.1, raises)
    held.append(loop.run_in_executor(None, sys.exit, "of this run"))
    cancelled = asyncio.create_task(asyncio.sleep(20))
    cancelled.add_done_callback(lambda task: task.exception())


async def leaves_a_generator() -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            sys.exit("of this run")

    generator = numbers()
    held.append(generator)
    await anext(generator)


held: list[object] = []


@pytest.mark.parametrize("ends", [exits, gathers, groups])
def test_a_run_that_awaits_an_exit_fails(ends: Callable[[], Coroutine[None, None, None]]) -> None:
    runner = CoroutineRunner(interrupts=Passed)
    with pytest.raises(BaseException, match="of this run") as raised:
        runner.finish(ends())
    assert isinstance(raised.value, SystemExit)
    runner.close()


@pytest.mark.parametrize(
    "ends",
    [
        exits,
        gathers,
        groups,
        leaves_some_that_exit,
        leaves_one_that_goes_on_and_exits,
        leaves_callbacks,
        leaves_a_generator,
    ],
)
def test_a_run_that_exits_ends_no_later_run(ends: Callable[[], Coroutine[None, None, None]]) -> None:
    """A later run of the same process, of whichever store, failed with its exception and the text of that."""

    async def later() -> str:
        held.clear()
        gc.collect()
        await asyncio.sleep(0.3)
        return "done"

    runner = CoroutineRunner(interrupts=Passed)
    try:
        with suppress(SystemExit):
            runner.finish(ends())
        assert [runner.finish(later()) for _ in range(3)] == ["done"] * 3
    finally:
        runner.close()


def test_a_task_of_the_startup_that_exits_ends_no_run() -> None:
    async def startup() -> None:
        held.append(asyncio.create_task(exits("of the startup")))

    runner = CoroutineRunner(interrupts=Passed)
    runner.finish(startup(), keep_tasks=True)
    assert runner.finish(asyncio.sleep(0.05, "done")) == "done"
    runner.close()
