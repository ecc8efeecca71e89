"""The fault matrix: each row is done with real signals, sockets and clocks. Row numbers are those of the matrix."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from receiver.inbox import keys
from receiver.inbox.redis.connecting import socket_path
from tests.support.faked_clock import needs_faketime, server_with_clock
from tests.support.harness import Process, Server, System, children_of, eventually
from tests.support.proxy import Proxy

HELLO = """
import os, time
from workers import Router
router = Router("shop")
def record(event):
    with open(os.path.join(os.path.dirname(__file__), "effects"), "a") as file:
        file.write(event.id + "\\n")
@router.on("order.created")
def greet(event, ctx):
    record(event)
    return f"by {os.getppid()}"
@router.on("order.slow", timeout=60)
def slow(event, ctx):
    record(event)
    time.sleep(event.data.get("seconds", 30))
    return f"by {os.getppid()}"
"""


@pytest.fixture
def proxied(make_system: Callable[..., System], own_redis: Server) -> Iterator[tuple[System, Proxy]]:
    """A system whose processes reach the server through a proxy, while the test connects directly."""
    proxy = Proxy(own_redis.data_dir, str(socket_path(own_redis.data_dir)))
    system = make_system(url=proxy.url, plugin=HELLO)
    system.inbox.client = system.ledger.client = system.client = own_redis.client
    yield system, proxy
    system.close()
    proxy.close()


def effects(system: System) -> list[str]:
    path = system.folder / "effects"
    return path.read_text().split() if path.exists() else []


def running(system: System, event_id: str, handler: str = "shop.slow") -> None:
    eventually(lambda: (run := system.run_of(event_id, handler)) and run.status == "running")


# In front of the queue


def test_row_1_a_web_worker_killed_mid_request_stores_nothing(system: System) -> None:
    (web,) = system.start("web")
    request = system.request()
    with socket.create_connection(("127.0.0.1", system.port)) as connection:
        head = f"POST /webhooks/north HTTP/1.1\r\nHost: x\r\nContent-Length: {len(request.body)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        connection.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # the request is being read
        connection.sendall(request.body[:10])
        for child in children_of(web.pid):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    assert system.ledger.events() == []
    eventually(lambda: system.web_answers() and system.post(request).status_code == 200)


def test_row_2_a_web_worker_killed_after_storing_leaves_one_event(proxied: tuple[System, Proxy]) -> None:
    system, proxy = proxied
    (web,) = system.start("web")
    request = system.request()
    system.post(system.request())  # connections are open, scripts loaded

    def kill_the_worker() -> bool:
        for child in children_of(web.pid):
            os.kill(child, signal.SIGKILL)
        return False

    proxy.at_reply(request.headers["webhook-id"].encode(), kill_the_worker)
    with pytest.raises(Exception):  # noqa: B017, PT011  the connection ends in one of several ways
        system.post(request)
    assert proxy.fired.wait(5)
    again = eventually(lambda: system.web_answers() and system.post(request))
    assert again.json()["status"] == "duplicate"
    assert len(system.ledger.events()) == 2


def test_row_3_killing_the_server_never_leaves_half_an_event(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = make_system(url=own_redis.url)
    answered: list[str] = []

    def accept_until_an_error() -> None:
        try:
            while True:
                answered.append(system.accept())
        except RedisError:
            pass

    threads = [threading.Thread(target=accept_until_an_error) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answered) > 200)
    own_redis.kill()
    for thread in threads:
        thread.join(10)
    own_redis.start()
    stored = {key.decode().removeprefix(keys.EVENT) for key in system.client.keys(keys.EVENT + "*")}
    assert set(answered) <= stored
    for event_id in stored:
        assert system.client.exists(keys.BODY + event_id)
        assert system.client.zscore(keys.INDEX, event_id)
        assert system.client.zscore(keys.READY, event_id)
    assert system.ledger.counters().total["accepted"] == len(stored)


def test_row_12_a_lost_reply_to_accept_neither_loses_nor_doubles_the_event(proxied: tuple[System, Proxy]) -> None:
    system, proxy = proxied
    system.start("web")
    system.post(system.request())
    request = system.request()
    proxy.cut("accept")
    assert system.post(request).status_code == 200, "the reply was lost, so the delivery is in the spool too"
    assert proxy.fired.is_set()
    eventually(lambda: system.http.get("/readyz").json()["spooled"] == 0)
    assert system.ledger.counters().total["duplicates"] == 0, "the store has sent it once"
    assert system.post(request).status_code == 200
    eventually(lambda: system.ledger.counters().total["duplicates"] == 1, what="also if it took the way by the spool")
    assert len(system.ledger.events()) == 2


# Behind the queue


@pytest.mark.timed
def test_row_7_the_run_of_a_killed_child_process_is_repeated_within_two_seconds(
    make_system: Callable[..., System],
) -> None:
    system = make_system(plugin=HELLO)
    worker, _ = system.start("worker", "housekeeper")
    took: list[float] = []
    while not took or (min(took) >= 2 and len(took) < 3):  # again, because other programs delay it too
        before = len(effects(system))
        event_id = system.accept("order.slow", data={"id": 1, "seconds": 0.8})
        eventually(lambda: len(effects(system)) == before + 1)  # noqa: B023  called at once
        killed = time.monotonic()
        for child_process in children_of(worker.pid):
            os.kill(child_process, signal.SIGKILL)
        eventually(lambda: len(effects(system)) == before + 2)  # noqa: B023  called at once
        took.append(time.monotonic() - killed)
        assert system.settled(event_id) == "settled"
        assert system.run_of(event_id, "shop.slow").attempts == 2
    assert min(took) < 2


def test_row_8_a_worker_killed_right_after_dequeue_loses_nothing(proxied: tuple[System, Proxy]) -> None:
    system, proxy = proxied
    worker, _ = system.start("worker", "housekeeper")
    system.settled(system.accept())

    def kill_the_worker() -> bool:
        worker.kill()
        return False

    proxy.at_reply(b"BLMOVE", kill_the_worker)
    event_id = eventually(
        lambda: (proxy.fired.is_set() and "fired") or (system.accept() and None), what="BLMOVE answered"
    )
    assert event_id == "fired"
    waiting = [event.id for event in system.ledger.events() if event.status == "open"]
    assert waiting
    began = time.monotonic()
    system.start("worker")
    for one in waiting:
        assert system.settled(one) == "settled"
    assert time.monotonic() - began < 10


def test_row_9_another_housekeeper_takes_over(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO)
    both = system.start("housekeeper", "housekeeper")

    def leader() -> str:
        return (system.client.get(keys.LEADER) or b"").decode()

    first = eventually(leader)
    (leads,) = [one for one in both if f"-{one.pid}-" in first]
    leads.kill()
    killed = time.monotonic()
    eventually(lambda: leader() and leader() != first)
    assert time.monotonic() - killed < 10
    system.accept()
    system.client.delete("rq:queue:storehooks")
    eventually(lambda: system.client.llen("rq:queue:storehooks") == 1)


@pytest.mark.parametrize("name", ["claim", "route", "finish"])
def test_row_13_a_lost_reply_to_a_worker_is_repaired(proxied: tuple[System, Proxy], name: str) -> None:
    system, proxy = proxied
    system.start("worker", "housekeeper")
    system.settled(system.accept())
    proxy.cut(name)
    event_id = system.accept(store="south")  # a new store: known kinds of events are routed as they are claimed
    assert system.settled(event_id, within=10) == "settled"
    assert proxy.fired.wait(5)
    assert event_id in effects(system)
    assert system.identity_holds()


def test_row_17_a_worker_stopped_past_its_lease_cannot_settle_the_run(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO)
    stopped, _ = system.start("worker", "housekeeper")
    event_id = system.accept("order.slow", data={"id": 1, "seconds": 1})
    running(system, event_id)
    stopped.send(signal.SIGSTOP)
    (other,) = system.start("worker")
    assert system.settled(event_id) == "settled"
    assert system.run_of(event_id, "shop.slow").result == f"by {other.pid}"
    before = system.client.hgetall(keys.EVENT + event_id)
    stopped.send(signal.SIGCONT)
    eventually(
        lambda: int(system.client.hget(keys.COUNTERS, "stale") or 0) >= 1 or "leases lost" in system.log("worker")
    )
    assert system.client.hgetall(keys.EVENT + event_id) == before
    assert system.run_of(event_id, "shop.slow").attempts == 1


def test_row_19_damaged_records_are_quarantined_and_workers_survive(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO)
    bad = [system.accept() for _ in range(3)]
    system.client.hset(keys.EVENT + bad[0], "r:", "nonsense")
    system.client.delete(keys.EVENT + bad[1])
    system.client.hset("rq:job:poison", mapping={"created_at": "not a date", "data": b"\x80\x04junk"})
    system.client.rpush("rq:queue:storehooks", "poison", "wake-")
    worker, _ = system.start("worker", "housekeeper")
    assert system.settled(bad[2]) == "settled"
    assert system.settled(system.accept()) == "settled"
    quarantined = {name.decode() for name in system.client.hkeys(keys.QUARANTINED)}
    assert {bad[0], bad[1]} <= quarantined
    eventually(lambda: system.client.zscore("rq:failed:storehooks", "poison"))
    assert worker.alive


@pytest.mark.full
@needs_faketime
@pytest.mark.parametrize("jump", [+3600, -3600])
def test_row_20_a_jump_of_the_servers_clock_loses_nothing(
    make_system: Callable[..., System], tmp_path: Path, jump: int
) -> None:
    with server_with_clock(tmp_path / "faked") as (server, set_ahead):
        system = make_system(url=server.url, plugin=HELLO)
        worker, _ = system.start("worker", "housekeeper")
        system.settled(system.accept())
        in_progress = system.accept("order.slow", data={"id": 1, "seconds": 2})
        lost = system.accept("order.slow", data={"id": 2, "seconds": 2})
        running(system, in_progress)
        running(system, lost)
        set_ahead(jump)
        after = [system.accept(), system.accept()]
        assert [system.settled(one) for one in after] == ["settled"] * 2
        order = [one.id for one in reversed(system.ledger.events())]
        assert order[1:] == [in_progress, lost, *after], "in the order of acceptance, even if the clock was set back"
        worker.kill()
        system.start("worker")
        for one in (in_progress, lost):
            assert system.settled(one, within=15) == "settled"
        assert system.identity_holds()
        system.close()


def test_row_23_sigterm_of_all_processes_drains_and_counts_no_attempt(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO, child_processes=4)
    command = [sys.executable, "-m", "workers", "--config", str(system.config_file)]
    workers = Process(command, log=system.folder / "workers.log", env={"STOREHOOKS_WORKERS__DRAIN": "1s"})
    system.processes.append(workers)
    system.start("web")
    long, short = system.deliver("order.slow"), system.deliver("order.slow", data={"id": 2, "seconds": 0.5})
    eventually(lambda: {long, short} <= set(effects(system)))
    for process in system.processes:
        process.send(signal.SIGTERM)
    assert [process.wait(15) for process in system.processes] == [0, 0]
    assert system.run_of(short, "shop.slow").status == "done"
    run = system.run_of(long, "shop.slow")
    assert (run.status, run.attempts) == ("waiting", 0)


# Two versions at the same time


@pytest.mark.full
def test_an_older_worker_routes_to_a_handler_only_the_newer_one_has(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO)
    system.start("worker", "housekeeper")
    system.settled(system.accept())
    newer = HELLO.replace('router = Router("shop")', 'router = Router("shop")\n__version__ = "2"')
    system.plugin.write_text(newer + '@router.on("order.created")\ndef added(event, ctx):\n    return "new"\n')
    system.start("worker")
    eventually(lambda: any(one.handler == "shop.added" for one in system.inbox.declarations().handlers))
    ids = [system.accept() for _ in range(300)]
    for one in ids:
        assert system.settled(one, within=20) == "settled"
    runs = [run for one in ids for run in system.ledger.event(one).runs]
    assert {run.handler for run in runs} == {"shop.greet", "shop.added"}
    assert len(runs) == 600
    assert {(run.status, run.attempts) for run in runs} == {("done", 1)}


@pytest.mark.slow
def test_a_killed_worker_disappears_from_rq_info_within_thirty_seconds(make_system: Callable[..., System]) -> None:
    system = make_system(plugin=HELLO)
    (worker,) = system.start("worker")
    key = eventually(lambda: next(iter(system.client.smembers("rq:workers")), None))
    worker.kill()
    eventually(lambda: not system.client.exists(key), 30)
