"""Effects whose call is under way when Redis goes away: its process is alive and knows what became of it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError

from receiver.contract.event import Event
from receiver.inbox import connect
from receiver.inbox.effect_store import EffectStore, EffectStoreAway, EffectStoreRefused
from tests.support.harness import Server, System, eventually, free_port, own_server
from workers.plugins.context import Context

PLUGIN = """
import asyncio, os, time
from storehooks import Router

router = Router("shop")
folder = os.path.dirname(__file__)

def note(text):
    with open(os.path.join(folder, "notes"), "a") as file:
        file.write(f"{text}\\n")

def effect(name):
    note(f"{name} begins")
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.01)
    note(f"{name} done")
    return name

async def effect_awaited(name):
    note(f"{name} begins")
    while not os.path.exists(os.path.join(folder, "go")):
        await asyncio.sleep(0.01)
    note(f"{name} done")
    return name

@router.on("order.paid")
def plain_run(event, ctx):
    return ctx.once("effect", effect, "plain-run")

@router.on("order.paid")
def plain_fail(event, ctx):
    return ctx.once("effect", effect, "plain-fail", in_doubt="fail")

@router.on("order.paid")
async def async_run(event, ctx):
    return await ctx.once("effect", effect_awaited, "async-run")

@router.on("order.paid")
async def async_fail(event, ctx):
    return await ctx.once("effect", effect_awaited, "async-fail", in_doubt="fail")

@router.on("order.paid", retries=(0.05,) * 3)
def raises_once(event, ctx):
    def refused():
        effect(f"attempt-{ctx.attempt}")
        if ctx.attempt == 1:
            raise ConnectionError("refused")
        return ctx.attempt
    return ctx.once("effect", refused, in_doubt="fail")
"""
HANDLERS = ("plain-run", "plain-fail", "async-run", "async-fail", "attempt-1")


def noted(system: System) -> Counter[str]:
    notes = Path(system.folder / "notes")
    return Counter(notes.read_text().splitlines()) if notes.exists() else Counter()


def has_noted(system: System, word: str) -> Callable[[], bool]:
    return lambda: all(noted(system)[f"{name} {word}"] for name in HANDLERS)


def context(effects: EffectStore, deadline: float) -> Context:
    event = Event("event1", "north", "order.paid", datetime.now(UTC), b"{}", resource_id="7")
    log = logging.getLogger("test")
    return Context("north", None, None, 1, log, handler="shop.one", event=event, effects=effects, deadline=deadline)


def test_an_effect_is_made_once_although_redis_was_away_when_its_call_ended(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = make_system(url=own_redis.url, plugin=PLUGIN, child_processes=10)
    system.start("worker", "housekeeper")
    event_id = system.accept("order.paid")
    eventually(has_noted(system, "begins"), 20, what="all calls are under way")
    own_redis.kill()
    (system.folder / "go").touch()
    eventually(has_noted(system, "done"), 20, what="all calls have ended")
    own_redis.start()
    assert system.settled(event_id) == "settled"
    calls = (*HANDLERS, "attempt-2")
    assert noted(system) == Counter(f"{name} {word}" for name in calls for word in ("begins", "done"))
    for name in HANDLERS[:4]:
        run = system.run_of(event_id, f"shop.{name.replace('-', '_')}")
        assert (run.result, run.attempts) == (name, 1)
    assert system.run_of(event_id, "shop.raises_once").result == 2, "its first call raised, so it is not in doubt"


def test_a_server_that_stays_away_ends_the_run_before_its_timeout(own_redis: Server) -> None:
    """It is repeated then, which is no attempt; a timeout would be one."""
    deadline = time.monotonic() + 2
    with pytest.raises(EffectStoreAway):
        context(EffectStore(own_redis.client, keep=60, at_work=60), deadline).once("effect", own_redis.kill)
    assert time.monotonic() < deadline


def test_a_server_that_hangs_ends_the_run_before_its_timeout(own_redis: Server) -> None:
    """A try takes as long as an answer is waited for; another one is begun only if there is time for it."""
    effects = EffectStore(connect(own_redis.url, timeout=1.0), keep=60, at_work=60)
    deadline = time.monotonic() + 3.5
    with stopped(own_redis), pytest.raises(EffectStoreAway):
        context(effects, deadline).once("effect", lambda: None)
    assert time.monotonic() < deadline


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_an_effect_that_was_never_called_is_not_in_doubt(own_redis: Server, is_async: bool) -> None:
    """The server hangs. When it goes on, it stores the first mark of a call that was given up."""
    effects = EffectStore(connect(own_redis.url, timeout=0.5), keep=60, at_work=60)
    ends = context(effects, time.monotonic() + 20)
    made = []

    async def make() -> int:
        made.append(1)
        return len(made)

    with stopped(own_redis, seconds=1.2):
        result = (
            asyncio.run(cast(Coroutine[Any, Any, int], ends.once("effect", make, in_doubt="fail")))
            if is_async
            else ends.once("effect", lambda: made.append(1) or len(made), in_doubt="fail")
        )
    assert (result, made) == (1, [1])


@contextmanager
def stopped(server: Server, seconds: float = 10) -> Iterator[None]:
    assert server.process
    pid = server.process.pid
    os.kill(pid, signal.SIGSTOP)
    goes_on = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
    goes_on.start()
    try:
        yield
    finally:
        goes_on.cancel()
        goes_on.join()
        os.kill(pid, signal.SIGCONT)


def test_an_effect_waits_for_a_server_that_takes_no_writes(own_redis: Server) -> None:
    """As during a failover: what the address leads to is a replica for a moment."""
    effects = EffectStore(own_redis.client, keep=60, at_work=60)
    primary_again = threading.Timer(0.3, own_redis.client.replicaof, ("NO", "ONE"))

    def becomes_replica() -> str:
        own_redis.client.replicaof("127.0.0.1", str(free_port()))
        primary_again.start()
        return "made"

    ends = context(effects, time.monotonic() + 20)
    assert ends.once("effect", becomes_replica) == "made"
    primary_again.join()
    assert ends.once("effect", lambda: "made again") == "made"
    own_redis.client.replicaof("127.0.0.1", str(free_port()))
    with pytest.raises(EffectStoreAway, match="takes no writes"):
        ends.state.set("name", 1)


def test_an_effect_waits_for_a_right_that_its_user_has_lost(own_redis: Server) -> None:
    effects = EffectStore(own_redis.client, keep=60, at_work=60)
    with connect(own_redis.url, timeout=2.0) as operator:
        operator.acl_setuser("operator", enabled=True, passwords=["+secret"], categories=["+@all"], keys=["*"])
        operator.execute_command("AUTH", "operator", "secret")
        given_back = threading.Timer(0.3, operator.execute_command, ("ACL", "SETUSER", "default", "+fcall"))

        def loses_right() -> str:
            operator.execute_command("ACL", "SETUSER", "default", "-fcall")
            given_back.start()
            return "made"

        assert context(effects, time.monotonic() + 20).once("effect", loses_right) == "made"
        given_back.join()
        operator.execute_command("ACL", "SETUSER", "default", "-fcall")
        with pytest.raises(EffectStoreRefused, match=r"Redis refuses ctx\.once"):
            context(effects, time.monotonic() + 1).once("another", lambda: "never made")


def test_an_effect_waits_while_the_script_of_another_program_runs(own_redis: Server) -> None:
    own_redis.client.config_set("busy-reply-threshold", 50)
    effects = EffectStore(own_redis.client, keep=60, at_work=60)
    with connect(own_redis.url, timeout=10.0) as other, ThreadPoolExecutor(1) as pool:

        def in_the_meantime() -> str:
            pool.submit(other.eval, BUSY_FOR_A_SECOND, 0)
            eventually(lambda: is_busy(own_redis), what="the server refuses other commands")
            return "made"

        ends = context(effects, time.monotonic() + 20)
        assert ends.once("effect", in_the_meantime) == "made"
        assert ends.once("effect", lambda: "made again") == "made"


BUSY_FOR_A_SECOND = """
local function now() local t = redis.call('TIME'); return t[1] * 1000 + t[2] / 1000 end
local began = now()
while now() - began < 1000 do end
"""


def is_busy(server: Server) -> bool:
    try:
        server.client.exists("any")
    except ResponseError as error:
        return str(error).startswith("BUSY")
    return False


def test_an_effect_that_may_not_be_repeated_begins_only_when_a_replica_knows_it(
    own_redis: Server, tmp_path: Path
) -> None:
    """With `ack = "replica"`: after a failover it was made again, and nothing showed it."""
    effects = EffectStore(own_redis.client, keep=60, at_work=60, replicas=1)
    with pytest.raises(EffectStoreAway, match="no replica"):
        context(effects, time.monotonic() + 2).once("effect", lambda: "never made", in_doubt="fail")
    port = free_port()
    own_redis.client.config_set("port", port)
    own_redis.client.config_set("repl-diskless-sync-delay", 0)
    (tmp_path / "replica").mkdir()
    with own_server(tmp_path / "replica", "--appendonly", "no", "--replicaof", f"127.0.0.1 {port}") as replica:

        def mark() -> str:
            return str(replica.client.hget("sh:o:event1", "shop.one|effect"))

        made = context(effects, time.monotonic() + 20).once("effect", mark, in_doubt="fail")
        assert made.startswith("b'begun ")
