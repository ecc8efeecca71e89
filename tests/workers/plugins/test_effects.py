"""ctx.once, ctx.key and ctx.state: what happens once, what may happen twice, and what a person must decide."""

from __future__ import annotations

import asyncio
import http.server
import json
import logging
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import pytest

from receiver.contract.event import Event
from receiver.inbox import keys
from receiver.inbox.effect_store import EffectStore
from tests.support.harness import Process, System, eventually
from workers.plugins.context import Context
from workers.plugins.effects import LocalEffects
from workers.plugins.exceptions import Busy, Fail

STEPS = ("before the call", "during the call", "after the call", "after the mark")

PLUGIN = """
import os, signal, urllib.request
from workers import Router
router = Router("shop")

def die_at(step, event, ctx):
    if event.data["step"] != step:
        return
    try:  # once: a run that lost its worker is at its first attempt still
        os.close(os.open(os.path.join(os.path.dirname(__file__), f"died-{event.id}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    else:
        os.kill(os.getpid() if event.data.get("who", "child") == "child" else os.getppid(), signal.SIGKILL)
        signal.pause()

def book(event, ctx, key):
    die_at("before the call", event, ctx)
    headers = {"Idempotency-Key": key, "Event": event.id}
    request = urllib.request.Request(ctx.settings.url, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        told = answer.read().decode()
    die_at("during the call", event, ctx)
    return told

def booked(event, ctx, in_doubt):
    def call():
        told = book(event, ctx, ctx.key("book"))
        die_at("after the call", event, ctx)
        return told
    result = ctx.once("book", call, in_doubt=in_doubt)
    die_at("after the mark", event, ctx)
    return f"{result} (attempt {ctx.attempt})"

@router.on("order.run", retries=(0.05,) * 3)
def with_key(event, ctx):
    return booked(event, ctx, "run")

@router.on("order.doubt", retries=(0.05,) * 3)
def no_second_try(event, ctx):
    return booked(event, ctx, "fail")

@router.on("order.count")
def count(event, ctx):
    return ctx.state.add("orders")
"""


class Bank(http.server.ThreadingHTTPServer):
    """A remote server with effects. It counts every call and honours an idempotency key."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Teller)
        self.calls: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.known: set[str] = set()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class _Teller(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        bank: Bank = self.server  # type: ignore[assignment]
        key, event = self.headers["Idempotency-Key"], self.headers["Event"]
        bank.calls[event] += 1
        if key not in bank.known:
            bank.known.add(key)
            bank.effects[event] += 1
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"booked")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bank() -> Iterator[Bank]:
    server = Bank()
    yield server
    server.shutdown()
    server.server_close()


def make_shop(make_system: Callable[..., System], bank: Bank, child_processes: int = 3) -> System:
    url = f"http://127.0.0.1:{bank.server_address[1]}/"
    return make_system(plugin=PLUGIN, child_processes=child_processes, more=f'[plugins.shop]\nurl = "{url}"\n')


def context(effects: object, event_id: str = "event1", resource: str = "7", handler: str = "shop.one") -> Context:
    event = Event(event_id, "north", "order.paid", datetime.now(UTC), b"{}", resource_id=resource)
    return Context("north", None, None, 1, logging.getLogger("t"), handler=handler, event=event, effects=effects)  # type: ignore[arg-type]


@dataclass
class Price:
    amount: float


@pytest.fixture(params=["kept", "local"])
def effects(request: pytest.FixtureRequest, system: System) -> object:
    return EffectStore(system.client, keep=60, at_work=60) if request.param == "kept" else LocalEffects()


def test_a_call_is_made_once_and_its_result_is_stored(effects: object) -> None:
    calls: list[int] = []

    def call(amount: int) -> dict[str, int]:
        calls.append(amount)
        return {"points": amount}

    assert context(effects).once("points", call, 42) == {"points": 42}
    assert context(effects).once("points", call, 42) == {"points": 42}
    assert context(effects, handler="shop.two").once("points", call, 1) == {"points": 1}
    assert calls == [42, 1]


def test_the_first_call_returns_what_later_calls_return(effects: object) -> None:
    """A handler that works only with a tuple or a dataclass fails at its first run, not at a replay."""
    for _ in range(2):
        found: object = context(effects).once("points", lambda: {"lines": (1, 2), "price": Price(1.5)})
        assert found == {"lines": [1, 2], "price": {"amount": 1.5}}


def test_a_call_that_raises_has_not_happened(effects: object) -> None:
    def refuse() -> None:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        context(effects).once("book", refuse, in_doubt="fail")
    assert context(effects).once("book", lambda: "booked", in_doubt="fail") == "booked"


@pytest.mark.parametrize("in_doubt", ["run", "fail"])
def test_an_async_effect_that_is_asked_for_twice_at_once_is_performed_once(
    effects: object, in_doubt: Literal["run", "fail"]
) -> None:
    async def ask(*delays: float) -> list[float | BaseException]:
        one = context(effects)
        calls = (one.once("book", perform, delay, in_doubt=in_doubt) for delay in delays)
        return await asyncio.gather(*calls, return_exceptions=True)

    async def perform(delay: float) -> float:
        await asyncio.sleep(delay)
        if delay == 0:
            raise OSError("no route")
        return delay

    refused, *others = asyncio.run(ask(0, 0.02, 0.01))
    assert isinstance(refused, OSError)
    assert others == [0.02, 0.02], "one that raised has not happened: the next one makes the call"


def test_an_async_effect_within_itself_does_not_wait_for_itself(effects: object) -> None:
    one = context(effects)

    async def perform() -> str:
        return await asyncio.wait_for(one.once("book", asyncio.sleep, 0, "booked"), 5)

    assert asyncio.run(one.once("book", perform)) == "booked"


def test_an_effect_that_two_threads_ask_for_at_once_is_performed_once(effects: object) -> None:
    one = context(effects)
    meeting = threading.Barrier(2)

    def perform() -> bool:
        one.once("within", lambda: "another effect does not wait")
        try:
            meeting.wait(0.3)
        except threading.BrokenBarrierError:
            return True  # the other thread did not come here
        return False

    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(one.once, "book", perform) for _ in range(2)]
        assert [each.result(5) for each in asked] == [True, True]


def test_a_late_exception_does_not_clear_the_mark_of_the_next_attempt(system: System) -> None:
    """A worker was suspended past its lease during a call, another attempt was made, and then the worker continued."""
    effects = EffectStore(system.client, keep=60, at_work=60)
    calls = []

    def stopped_past_its_lease() -> None:
        context(effects).once("book", lambda: calls.append("the next attempt") or "booked")
        raise OSError("the connection was gone")

    with pytest.raises(OSError, match="was gone"):
        context(effects).once("book", stopped_past_its_lease)
    assert context(effects).once("book", lambda: calls.append("again") or "booked twice") == "booked"
    assert calls == ["the next attempt"]


def test_an_effect_is_done_once_for_its_scope(effects: object) -> None:
    assert context(effects, "event1").once("k", lambda: 1, scope="resource") == 1
    assert context(effects, "event2").once("k", lambda: 2, scope="resource") == 1
    assert context(effects, "event3", resource="8").once("k", lambda: 3, scope="resource") == 3
    assert context(effects, "event1").once("k", lambda: 4, scope="store") == 4
    assert context(effects, "event9", resource="9").once("k", lambda: 5, scope="store") == 4
    with pytest.raises(ValueError, match="has no resource id"):
        context(effects, resource="").once("k", lambda: 6, scope="resource")


@pytest.mark.parametrize("scope", ["resource", "store"])
def test_each_mark_of_a_resource_or_store_expires_by_itself(
    system: System, scope: Literal["resource", "store"]
) -> None:
    """All marks of a store were one hash, and each new mark renewed the expiry of all."""
    context(EffectStore(system.client, keep=0.2, at_work=60)).once("old", lambda: 1, scope=scope)
    context(EffectStore(system.client, keep=60, at_work=60)).once("new", lambda: 1, scope=scope)
    assert eventually(lambda: len(system.client.keys("sh:o:*")) == 1)
    kept = EffectStore(system.client, keep=60, at_work=60)
    assert [context(kept).once(key, lambda: 2, scope=scope) for key in ("old", "new")] == [2, 1]


def test_a_key_is_the_same_for_every_attempt_and_unique_to_its_run() -> None:
    one = context(LocalEffects())
    assert one.key("book") == context(LocalEffects()).key("book")
    others = {one.key("other"), context(None, "event2").key("book"), context(None, handler="shop.two").key("book")}
    assert one.key("book") not in others
    assert len(others) == 3


def test_state_is_shared_by_a_plugin_for_one_store(effects: object) -> None:
    state = context(effects).state
    assert state.get("cursor", "none") == "none"
    state.set("cursor", {"page": 3})
    assert context(effects, "other").state.get("cursor") == {"page": 3}
    assert [state.add("n"), state.add("n", 5)] == [1, 6]
    with pytest.raises(TypeError, match=r"ctx\.state\.add\('cursor', 1\): not two whole numbers"):
        state.add("cursor")
    state.delete("cursor")
    assert state.get("cursor") is None
    assert context(effects, handler="loyalty.one").state.get("n") is None


@pytest.mark.parametrize("value", [math.nan, {"prices": (1.5, -math.inf)}, Price(math.nan), object()])
def test_a_value_that_json_cannot_hold_is_refused_and_its_effect_has_happened(effects: object, value: object) -> None:
    one = context(effects)
    one.state.set("price", 5)
    with pytest.raises(TypeError, match=r"not JSON serializable"):
        one.state.set("price", value)
    assert one.state.get("price") == 5
    with pytest.raises(Fail, match="was done, but its result is not JSON"):
        one.once("price", lambda: value)
    assert one.once("price", lambda: "again") is None


def test_null_is_json(effects: object) -> None:
    context(effects).state.set("price", {"words": "null", "lines": [Price(1.5), (None,)]})
    assert context(effects).state.get("price") == {"words": "null", "lines": [{"amount": 1.5}, [None]]}


def test_an_effect_under_way_makes_another_run_wait_and_later_is_in_doubt(system: System) -> None:
    at_work = EffectStore(system.client, keep=60, at_work=60)
    place = "o:r:north:order:7:shop.one|k"
    at_work.begin(place, "shop.one|k", "event1|shop.one", in_doubt="run")
    with pytest.raises(Busy):
        context(at_work, "event2").once("k", lambda: 1, scope="resource")
    expired = EffectStore(system.client, keep=60, at_work=0)
    with pytest.raises(Fail, match="in doubt"):
        context(expired, "event2").once("k", lambda: 1, scope="resource", in_doubt="fail")
    assert context(expired, "event2").once("k", lambda: 1, scope="resource") == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_any_step_leaves_one_effect_with_the_key(
    make_system: Callable[..., System], bank: Bank, step: str
) -> None:
    system = make_shop(make_system, bank)
    system.start("worker", "housekeeper")
    event_id = system.accept("order.run", data={"id": 1, "step": step})
    assert system.settled(event_id) == "settled"
    assert system.run_of(event_id, "shop.with_key").result == "booked (attempt 2)"
    assert bank.effects == {event_id: 1}
    twice = step in ("during the call", "after the call")
    assert bank.calls[event_id] == (2 if twice else 1), "without the remote's key this is how often it would happen"


@pytest.mark.parametrize("step", STEPS)
def test_in_doubt_fail_calls_at_most_once_and_fails_the_run(
    make_system: Callable[..., System], bank: Bank, step: str
) -> None:
    system = make_shop(make_system, bank)
    system.start("worker", "housekeeper")
    event_id = system.accept("order.doubt", data={"id": 1, "step": step})
    state = system.settled(event_id)
    run = system.run_of(event_id, "shop.no_second_try")
    if step == "after the mark":
        assert (state, run.result) == ("settled", "booked (attempt 2)")
    else:
        assert state == "failed"
        assert "in doubt" in run.error
        again = f"events replay {event_id} --handler shop.no_second_try --again"
        assert again in " ".join(system.run_cli("events", "show", event_id).stdout.split())
    assert bank.calls[event_id] <= 1


def test_a_replay_repeats_effects_only_with_again(make_system: Callable[..., System], bank: Bank) -> None:
    system = make_shop(make_system, bank)
    system.start("worker", "housekeeper")
    event_id = system.accept("order.run", data={"id": 1, "step": "none"})
    system.settled(event_id)
    system.run_cli("events", "replay", event_id, "--yes")
    eventually(lambda: system.client.hget(keys.EVENT + event_id, "p:shop.with_key") == b"1")
    assert system.settled(event_id) == "settled"
    assert bank.calls[event_id] == 1
    system.run_cli("events", "replay", event_id, "--again", "--yes")
    eventually(lambda: bank.calls[event_id] == 2)
    assert bank.effects[event_id] == 1


def test_state_counts_over_all_processes(make_system: Callable[..., System], bank: Bank) -> None:
    system = make_shop(make_system, bank)
    system.start("worker", "worker", "housekeeper")
    ids = [system.accept("order.count") for _ in range(20)]
    for one in ids:
        system.settled(one)
    assert sorted(system.run_of(one, "shop.count").result for one in ids) == list(range(1, 21))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_kills_at_every_step_keep_the_documented_promises(
    make_system: Callable[..., System], bank: Bank
) -> None:
    """One kill in five is of the worker, together with the runs in its other child processes."""
    system = make_shop(make_system, bank, child_processes=4)
    command = [sys.executable, "-m", "workers", "--config", str(system.config_file)]
    system.processes.append(Process(command, log=system.folder / "workers.log"))
    began = time.monotonic()
    runs = {one: system.settled(one, within=60) for one in _accept_in_waves(system, "order.run", 200)}
    doubts = {one: system.settled(one, within=60) for one in _accept_in_waves(system, "order.doubt", 80)}
    states = Counter(doubts.values())
    print(
        f"\nwith the key: {len(runs)} kills, {Counter(runs.values())}, {_sum(bank.calls, runs)} calls, "
        f"{_sum(bank.effects, runs)} effects\n"
        f"in_doubt = fail: {len(doubts)} kills, {states}, {_sum(bank.calls, doubts)} calls\n"
        f"{time.monotonic() - began:.0f} s"
    )
    assert set(runs.values()) == {"settled"}
    assert {one: bank.effects[one] for one in runs} == dict.fromkeys(runs, 1)
    assert all(bank.calls[one] in (1, 2, 3) for one in runs), "without the remote's key: at least once"
    assert max(bank.calls[one] for one in doubts) == 1, "at most once"
    for one, state in doubts.items():
        run = system.run_of(one, "shop.no_second_try")
        assert bank.calls[one] == 1 if state == "settled" else "in doubt" in run.error
    died = {path.name.removeprefix("died-") for path in system.folder.glob("died-*")}
    assert set(runs) <= died, "every kill has happened; one in doubt may have died by the kill of another run instead"


def _accept_in_waves(system: System, topic: str, many: int) -> list[str]:
    """Twenty at a time, so that a kill affects a few other runs and not all."""
    ids = []
    for number in range(many):
        who = "worker" if number % 5 == 0 else "child"
        ids.append(system.accept(topic, data={"id": number, "step": STEPS[number % 4], "who": who}))
        if number % 20 == 19:
            for one in ids[-20:]:
                system.settled(one, within=60)
    return ids


def _sum(counts: Counter[str], ids: Iterable[str]) -> int:
    return sum(counts[one] for one in ids)


# Local runs


def test_handlers_run_runs_locally_and_stores_nothing(make_system: Callable[..., System], bank: Bank) -> None:
    system = make_shop(make_system, bank)
    event_id = system.accept("order.run", data={"id": 1, "step": "none"})
    before = sorted(system.client.keys("*"))
    done = system.run_cli("handlers", "run", "shop.with_key", "--event", event_id)
    assert done.returncode == 0, done.stderr
    assert '"booked (attempt 1)"' in done.stdout
    assert sorted(system.client.keys("*")) == before
    file = system.folder / "event.json"
    file.write_text(json.dumps({"store": "north", "topic": "order.count", "data": {"id": 1}}))
    assert "done" in system.run_cli("handlers", "run", "shop.count", "--event", str(file)).stdout
    assert system.run_cli("handlers", "run", "shop.nothing", "--event", event_id).returncode == 2


def test_handlers_run_shows_where_it_failed(make_system: Callable[..., System]) -> None:
    text = "from workers import Retry, Router\nrouter = Router('shop')\n"
    text += "@router.on('*')\ndef bad(event, ctx):\n    return event.data['x']\n"
    text += "@router.on('*')\ndef later(event, ctx):\n    raise Retry('the warehouse is closed')\n"
    system = make_system(plugin=text)
    later = system.run_cli("handlers", "run", "shop.later", "--event", system.accept())
    assert (later.returncode, "the warehouse is closed" in later.stdout) == (1, True), later.stdout + later.stderr
    done = system.run_cli("handlers", "run", "shop.bad", "--event", system.accept())
    assert done.returncode == 1
    assert "KeyError: 'x'" in done.stdout
    assert "shop.py" in done.stdout
