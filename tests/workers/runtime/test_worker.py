"""Real workers with real child processes: routing, retries, crashes, hangs, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from receiver.inbox import keys
from tests.support.harness import Server, System, children_of, eventually, gone

PLUGIN = """
import os, signal, time
from workers import Busy, Drop, Fail, Retry, Router

router = Router("shop")

@router.startup
def open_things(settings):
    return {"opened": os.getpid()}

@router.on("order.*")
def greet(event, ctx):
    return f"hello {event.data['id']} in {ctx.store}"

@router.on("order.flaky", retries=(0.05, 0.05))
def flaky(event, ctx):
    if ctx.attempt < 3:
        raise RuntimeError("not yet")
    return f"attempt {ctx.attempt}"

@router.on("order.hopeless", retries=(0.01,))
def hopeless(event, ctx):
    raise KeyError("vat_id")

@router.on("order.control", retries=0)
def control(event, ctx):
    raise {"drop": Drop("test order"), "fail": Fail("unknown SKU"), "retry": Retry("soon", after=0)}[event.data["say"]]

@router.on("order.busy")
def busy(event, ctx):
    if event.data.get("since", 0) + 0.3 > time.time():
        raise Busy("no time", after=0.1)
    return f"attempt {ctx.attempt}"

@router.on("order.abort", retries=0)
def abort(event, ctx):
    os.abort()

@router.on("order.hang", retries=0, timeout=0.5)
def hang(event, ctx):
    begun(event)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@router.on("order.slow", timeout=0.3, retries=0)
def slow(event, ctx):
    time.sleep(60)

@router.on("order.eats", retries=0)
def eats(event, ctx):
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20)))

def begun(event):
    with open(os.path.join(os.path.dirname(__file__), "begun"), "a") as file:
        file.write(event.id)

@router.on("order.long", retries=0)
def long(event, ctx):
    begun(event)
    for _ in range(300):
        if ctx.stopping:
            return "stopped early"
        time.sleep(0.1)
    return "never stopped"

@router.on("order.resource")
def resource(event, ctx):
    return "same process" if ctx.resource["opened"] == os.getpid() else "other process"

@router.on("customer.*", stores="south")
def south_only(event, ctx):
    return "south"
"""


ONE_HANDLER = """
import os, time
from storehooks import Router

router = Router("shop")

@router.on("order.long", retries=0)
def long(event, ctx):
    with open(os.path.join(os.path.dirname(__file__), "begun"), "a") as file:
        file.write(event.id)
    while not ctx.stopping:
        time.sleep(0.05)
"""


@pytest.fixture
def shop(make_system: Callable[..., System]) -> System:
    return make_system(plugin=PLUGIN, child_processes=3)


def started(system: System) -> System:
    system.start("worker", "housekeeper")
    return system


def begun(system: System, event_id: str) -> None:
    path = system.folder / "begun"
    eventually(lambda: path.exists() and event_id in path.read_text())


def result(system: System, event_id: str, handler: str) -> object:
    return system.run_of(event_id, f"shop.{handler}").result


def error(system: System, event_id: str, handler: str) -> str:
    return str(system.run_of(event_id, f"shop.{handler}").error)


def test_an_event_is_handled_and_its_outcome_can_be_read(shop: System) -> None:
    started(shop)
    event_id = shop.accept("order.created", data={"id": 7})
    assert shop.settled(event_id) == "settled"
    run = shop.run_of(event_id, "shop.greet")
    assert (run.status, run.attempts, run.result) == ("done", 1, "hello 7 in north")
    assert run.version
    assert shop.identity_holds()


def test_a_worker_that_starts_later_does_the_waiting_runs(shop: System) -> None:
    event_id = shop.accept()
    started(shop)
    assert shop.settled(event_id) == "settled"


def test_handlers_are_chosen_by_topic_and_store(shop: System) -> None:
    started(shop)
    shop.client.set(keys.DECLARED_SINCE, 1)
    north, south = shop.accept("customer.created", store="north"), shop.accept("customer.created", store="south")
    assert (shop.settled(north), shop.ledger.event(north).reason) == ("settled", "unhandled")
    assert (shop.settled(south), result(shop, south, "south_only")) == ("settled", "south")


def test_a_handler_that_raises_is_retried_and_the_other_handler_is_not(shop: System) -> None:
    started(shop)
    event_id = shop.accept("order.flaky")
    assert shop.settled(event_id) == "settled"
    assert result(shop, event_id, "flaky") == "attempt 3"
    assert shop.run_of(event_id, "shop.greet").attempts == 1


def test_after_the_last_attempt_the_run_is_a_failure_with_its_traceback(shop: System) -> None:
    started(shop)
    event_id = shop.accept("order.hopeless")
    assert shop.settled(event_id) == "failed"
    run = shop.run_of(event_id, "shop.hopeless")
    assert (run.status, run.attempts, run.error) == ("failed", 2, "KeyError: 'vat_id'")
    detail = shop.client.hget(keys.EVENT + event_id, "x:shop.hopeless").decode()
    assert "in hopeless" in detail
    assert shop.run_of(event_id, "shop.greet").status == "done"


def test_drop_settles_fail_fails_and_retry_counts_as_an_attempt(shop: System) -> None:
    started(shop)
    drop, fail, retry = (shop.accept("order.control", data={"id": 1, "say": say}) for say in ("drop", "fail", "retry"))
    assert (shop.settled(drop), shop.run_of(drop, "shop.control").status) == ("settled", "dropped")
    assert (shop.settled(fail), error(shop, fail, "control")) == ("failed", "Fail: unknown SKU")
    assert (shop.settled(retry), error(shop, retry, "control")) == ("failed", "Retry: soon")


def test_busy_waits_and_burns_no_attempt(shop: System) -> None:
    started(shop)
    event_id = shop.accept("order.busy", data={"id": 1, "since": time.time()})
    assert shop.settled(event_id) == "settled"
    assert result(shop, event_id, "busy") == "attempt 1"


@pytest.mark.parametrize(
    ("topic", "handler", "reason"),
    [
        ("order.abort", "abort", "its process was killed by SIGABRT"),
        ("order.hang", "hang", "killed: still running 2 s after its timeout of 0.5 s"),
        ("order.slow", "slow", "RunTimeout"),
        ("order.eats", "eats", "killed: its process used"),
    ],
)
def test_a_misbehaving_handler_fails_and_others_do_not(
    make_system: Callable[..., System], topic: str, handler: str, reason: str
) -> None:
    shop = make_system(plugin=PLUGIN, child_processes=3)
    started_with = {"STOREHOOKS_WORKERS__MEMORY": "300MB"}
    (worker, _) = shop.start("worker", "housekeeper", env=started_with)
    warm = shop.accept("order.created")
    shop.settled(warm)
    bad = shop.accept(topic)
    good = shop.accept("order.created")
    before = time.monotonic()
    assert shop.settled(good) == "settled"
    assert time.monotonic() - before < 4.0
    assert shop.settled(bad) == "failed"
    assert reason in error(shop, bad, handler)
    assert shop.run_of(bad, "shop.greet").status == "done"
    assert worker.alive


def test_a_child_process_reuses_the_resource_of_startup(shop: System) -> None:
    started(shop)
    ids = [shop.accept("order.resource") for _ in range(5)]
    assert {shop.settled(one) for one in ids} == {"settled"}
    assert {result(shop, one, "resource") for one in ids} == {"same process"}


def test_a_killed_child_process_is_replaced_and_its_run_is_retried(shop: System) -> None:
    worker, _ = shop.start("worker", "housekeeper")
    shop.settled(shop.accept())
    event_id = shop.accept("order.flaky")
    for child_process in children_of(worker.pid):
        os.kill(child_process, signal.SIGKILL)
    assert shop.settled(event_id) == "settled"
    assert eventually(lambda: len(children_of(worker.pid)) == 3)


def test_sigterm_finishes_the_runs_under_way_and_leaves_no_process(shop: System) -> None:
    worker, _ = shop.start("worker", "housekeeper")
    event_id = shop.accept("order.long")
    begun(shop, event_id)
    child_processes = children_of(worker.pid)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert result(shop, event_id, "long") == "stopped early"
    assert all(gone(child_process) for child_process in child_processes)


def test_a_run_that_does_not_end_within_the_drain_time_is_released_without_an_attempt(shop: System) -> None:
    worker, _ = shop.start("worker", "housekeeper", env={"STOREHOOKS_WORKERS__DRAIN": "200ms"})
    event_id = shop.accept("order.hang")
    begun(shop, event_id)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    run = shop.run_of(event_id, "shop.hang")
    assert (run.status, run.attempts) == ("waiting", 0)


def test_child_processes_die_with_their_worker(shop: System) -> None:
    worker, _ = shop.start("worker", "housekeeper")
    shop.settled(shop.accept())
    child_processes = children_of(worker.pid)
    assert child_processes
    worker.kill()
    eventually(lambda: all(gone(child_process) for child_process in child_processes), 5)


def test_the_runs_of_a_killed_worker_begin_at_another_within_ten_seconds(shop: System) -> None:
    worker, _ = shop.start("worker", "housekeeper")
    event_id = shop.accept("order.long")
    begun(shop, event_id)
    lease = shop.client.hget(keys.EVENT + event_id, "r:shop.long")
    worker.kill()
    shop.start("worker")
    before = time.monotonic()

    def leased_again() -> bool:
        return shop.client.hget(keys.EVENT + event_id, "r:shop.long") != lease and (
            shop.run_of(event_id, "shop.long").status == "running"
        )

    eventually(leased_again)
    assert time.monotonic() - before < 10
    assert shop.run_of(event_id, "shop.long").attempts == 0


def test_a_lost_wake_up_costs_at_most_a_tick(shop: System) -> None:
    started(shop)
    shop.settled(shop.accept())
    event_id = shop.accept()
    shop.client.delete("rq:queue:storehooks")
    assert shop.settled(event_id, within=3) == "settled"


def test_work_continues_after_the_server_was_killed_and_restarted(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    shop = make_system(plugin=PLUGIN, url=own_redis.url)
    started(shop)
    shop.settled(shop.accept())
    waiting = shop.accept("order.flaky")
    own_redis.kill()
    eventually(lambda: "does not answer" in shop.log("worker"))
    own_redis.start()
    assert shop.settled(waiting) == "settled"
    assert shop.settled(shop.accept()) == "settled"


ONCE = """
import os, time
from storehooks import Router

router = Router("shop")

def file(name):
    return os.path.join(os.path.dirname(__file__), name)

@router.on("order.*", retries=0, timeout=6)
def export(event, ctx):
    open(file("begun"), "w").close()
    while not os.path.exists(file("away")):
        time.sleep(0.01)
    try:
        return ctx.once("export", lambda: "exported")
    except Exception:
        open(file("tried"), "w").close()
        raise
"""


def test_an_outage_inside_ctx_once_costs_no_attempt(make_system: Callable[..., System], own_redis: Server) -> None:
    shop = make_system(plugin=ONCE, url=own_redis.url)
    started(shop)
    event_id = shop.accept()
    eventually((shop.plugin.parent / "begun").exists, what=shop.log("worker"))
    own_redis.kill()
    (shop.plugin.parent / "away").touch()
    eventually((shop.plugin.parent / "tried").exists, what="ctx.once has given up, before the timeout")
    own_redis.start()
    assert shop.settled(event_id) == "settled"
    assert shop.run_of(event_id, "shop.export").attempts == 1


def test_a_worker_that_can_take_no_run_leaves_wake_up_and_events_to_others(make_system: Callable[..., System]) -> None:
    shop = make_system(plugin=ONE_HANDLER, child_processes=2)
    worker, _ = shop.start("worker", "housekeeper")
    first = shop.accept("order.long")
    begun(shop, first)
    waiting = shop.accept("order.long")
    lease = shop.client.zscore(keys.LEASED, f"{first}|shop.long")
    eventually(lambda: shop.client.zscore(keys.LEASED, f"{first}|shop.long") != lease, what="the worker has been awake")
    assert len(children_of(worker.pid)) == 2, "one is idle, but it is not for this handler"
    assert shop.client.zrange(keys.READY, 0, -1) == [waiting.encode()]
    assert shop.client.lrange("rq:queue:storehooks", 0, -1) == [b"wake-default"]
    shop.start("worker")
    begun(shop, waiting)


def test_rq_info_shows_a_worker_until_it_stops(shop: System, server_url: str) -> None:
    worker, _ = shop.start("worker", "housekeeper")
    shop.settled(shop.accept())

    def info() -> str:
        command = [os.path.join(os.path.dirname(sys.executable), "rq"), "info", "--raw", "--url", server_url]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout

    assert "queue storehooks" in info()
    assert f"-{worker.pid}-" in info()
    ttl = shop.client.ttl(shop.client.smembers("rq:workers").pop())
    assert 0 < ttl <= 20
    worker.stop()
    assert f"-{worker.pid}-" not in info()


def test_hup_loads_a_changed_plugin_and_refuses_a_broken_one(shop: System) -> None:
    worker, _ = shop.start("worker", "housekeeper")
    shop.settled(shop.accept())
    shop.plugin.write_text(PLUGIN.replace('f"hello', 'f"good day'))
    worker.send(signal.SIGHUP)
    eventually(lambda: '"reloaded"' in shop.log("worker"))

    def greeting() -> str:
        event_id = shop.accept()
        shop.settled(event_id)
        return str(result(shop, event_id, "greet"))

    assert eventually(lambda: greeting().startswith("good day"))
    shop.plugin.write_text("this is not python")
    worker.send(signal.SIGHUP)
    eventually(lambda: "the old config and plugins stay" in shop.log("worker"))
    assert greeting().startswith("good day")
