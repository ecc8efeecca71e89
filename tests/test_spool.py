"""Always answering: while Redis is away, full or slow, deliveries wait in the spool, and none is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from receiver.contract.compose import compose
from receiver.spool import open_events, pack_delivery, unpack_delivery
from tests.harness import Process, Server, System, eventually, free_port, own_server

HELLO = (
    "from workers import Router\nrouter = Router('shop')\n@router.on('*')\ndef greet(event, ctx):\n    return 'hi'\n"
)


@pytest.fixture
def shop(make_system: Callable[..., System], own_redis: Server) -> System:
    system = make_system(url=own_redis.url, plugin=HELLO)
    system.start("web")
    return system


def spooled(system: System) -> int:
    return int(system.http.get("/readyz").json().get("spooled", -1))


class Load:
    """Senders that each send one delivery after the other, and resend what is not answered 2xx."""

    def __init__(self, system: System, senders: int = 3) -> None:
        self.system = system
        self.answered: list[tuple[str, float]] = []
        self.others: list[int] = []
        self.worst = 0.0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(n,)) for n in range(senders)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(15)

    def _send(self, number: int) -> None:
        store, count = self.system.config.known_stores["north"], 0
        with httpx2.Client(timeout=10) as client:
            while not self._stop.is_set():
                count += 1
                one = compose(
                    store, topic="order.created", delivery_id=f"m{number}-{count}", data={"id": count}, now=time.time()
                )
                began = time.monotonic()
                answer = client.post(
                    f"http://127.0.0.1:{self.system.port}/webhooks/north", headers=one.headers, content=one.body
                )
                self.worst = max(self.worst, time.monotonic() - began)
                if answer.is_success:
                    self.answered.append((answer.json()["id"], time.time()))
                else:
                    self.others.append(answer.status_code)
                self._stop.wait(0.01)


# The file


def test_a_spooled_delivery_comes_back_as_it_was(system: System, tmp_path: Path) -> None:
    delivery = system.delivery(data={"id": 7, "name": "\u2603"})
    assert unpack_delivery(pack_delivery(delivery), delivery.event.body) == delivery
    events = open_events(tmp_path)
    assert [events.add([delivery]), events.add([delivery])] == [[True], [False]]
    assert events.holds("north")
    assert not events.holds("south")
    (row,) = events.oldest(10)
    assert row.delivery == delivery
    events.delete([row.number])
    assert events.summary() == (0, 0.0)


# Redis away


@pytest.mark.parametrize("seconds", [4, pytest.param(14, marks=pytest.mark.slow)])
def test_row_10_redis_killed_under_load_is_answered_2xx_and_nothing_is_lost_or_doubled(
    shop: System, own_redis: Server, seconds: int
) -> None:
    shop.start("worker", "housekeeper")
    shop.settled(shop.deliver())
    with Load(shop) as load:
        eventually(lambda: len(load.answered) > 20)
        own_redis.kill()
        before = len(load.answered)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > seconds, seconds + 5)
        meanwhile = len(load.answered) - before
        own_redis.start()
        eventually(lambda: spooled(shop) == 0, 20, what="the spool is drained")
    assert load.others == []
    assert meanwhile > 10
    eventually(lambda: shop.ledger.counters().total["open"] == 0, 20)
    total = shop.ledger.counters().total
    ids = {event_id for event_id, _ in load.answered}
    print(
        f"\n{len(ids):,} answered 2xx, {meanwhile:,} of them while the server was away; worst answer {load.worst:.2f} s"
    )
    assert total["accepted"] - 1 == len(ids) == len(load.answered)
    assert total["settled"] - 1 == len(ids)
    assert all(shop.status(event_id) == "settled" for event_id in ids)


def test_spooled_deliveries_keep_their_time_of_arrival_and_their_order(shop: System, own_redis: Server) -> None:
    own_redis.kill()
    before = time.time()
    ids = [shop.deliver(data={"id": n}) for n in range(10)]
    after = time.time()
    assert spooled(shop) == 10
    assert shop.http.get("/readyz").json()["keeps_in"] == "spool"
    own_redis.start()
    eventually(lambda: spooled(shop) == 0)
    found = list(reversed(shop.ledger.events()))
    assert [event.id for event in found] == ids
    assert all(before - 0.01 <= event.received_at.timestamp() <= after for event in found)
    assert shop.identity_holds()


def test_a_redelivery_is_a_duplicate_on_both_sides_of_an_outage(shop: System, own_redis: Server) -> None:
    first, second = shop.request(), shop.request()
    assert shop.post(first).json()["status"] == "accepted"
    own_redis.kill()
    assert shop.post(second).json()["status"] == "accepted"
    assert shop.post(second).json()["status"] == "duplicate"
    assert shop.post(first).json()["status"] == "accepted", "the spool cannot know; the inbox will"
    own_redis.start()
    eventually(lambda: spooled(shop) == 0)
    assert len(shop.ledger.events()) == 2
    assert shop.post(second).json()["status"] == "duplicate"


def test_a_killed_receiver_drains_when_it_is_back(shop: System, own_redis: Server) -> None:
    own_redis.kill()
    ids = {shop.deliver() for _ in range(5)}
    shop.processes[0].kill()
    own_redis.start()
    shop.start("web")
    eventually(lambda: {event.id for event in shop.ledger.events()} == ids)


def test_the_receiver_starts_without_the_server(make_system: Callable[..., System], own_redis: Server) -> None:
    own_redis.kill()
    system = make_system(url=own_redis.url)
    system.start("web")
    event_id = system.deliver()
    own_redis.start()
    eventually(lambda: system.status(event_id) == "open")


def test_with_the_spool_off_the_answer_is_503(make_system: Callable[..., System], own_redis: Server) -> None:
    system = make_system(url=own_redis.url)
    text = system.config_file.read_text().replace("processes = 1\n", 'processes = 1\nspool = "off"\n')
    system.config_file.write_text(text)
    system.start("web")
    own_redis.kill()
    answer = system.post(system.request())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert system.http.get("/readyz").status_code == 503
    assert not list(Path(system.config.redis.data_dir).glob("spool.sqlite3*"))


def test_stats_show_what_waits(shop: System, own_redis: Server) -> None:
    own_redis.kill()
    for _ in range(3):
        shop.deliver()
    shop.processes[0].send(signal.SIGSTOP)
    own_redis.start()
    own_redis.client.hset("sh:spools", "elsewhere", json.dumps({"count": 3, "oldest": 1.0, "at": time.time()}))
    assert json.loads(shop.run_cli("stats", "--json").stdout)["spooled"] == 3
    assert "spool of elsewhere: 3 deliveries wait" in shop.run_cli("stats").stdout
    own_redis.client.hset("sh:spools", "elsewhere", json.dumps({"count": 3, "oldest": 1.0, "at": 5.0}))
    assert "spool of elsewhere: unknown since" in shop.run_cli("stats").stdout
    shop.processes[0].send(signal.SIGCONT)


def test_row_11_a_black_hole_is_answered_in_under_a_second(make_system: Callable[..., System]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:  # accepts, and never answers
        system = make_system(url=f"redis://127.0.0.1:{hole.getsockname()[1]}")
        system.start("web")
        for _ in range(4):
            began = time.monotonic()
            assert system.post(system.request()).status_code == 200
            assert time.monotonic() - began < 1
        assert spooled(system) == 4


# Full


def test_row_15_near_maxmemory_deliveries_go_to_the_spool_and_drain_afterwards(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    with own_server(folder, "--maxmemory", "12mb") as server:
        system = make_system(url=server.url, plugin=HELLO)
        system.start("web")
        pad = "x" * 20_000
        for n in range(600):
            assert system.post(system.request(data={"id": n, "pad": pad})).status_code == 200
        assert spooled(system) > 50
        memory = server.client.info("memory")
        assert memory["used_memory"] < memory["maxmemory"], "workers can still write"
        system.start("worker", "housekeeper", env={"STOREHOOKS_RETENTION__BODIES": "0s"})
        eventually(lambda: spooled(system) == 0, 60, what="drained while retention makes room")
        eventually(lambda: system.ledger.counters().total["settled"] == 600, 30)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_row_16_with_redis_away_and_the_spools_disk_full_the_answer_is_503_and_never_a_false_2xx(
    make_system: Callable[..., System], own_redis: Server, small_disk: Path
) -> None:
    system = make_system(url=own_redis.url)
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace(str(system.folder / "data"), str(small_disk)))
    system.start("web")
    own_redis.kill()
    pad = "x" * 200_000
    statuses = [system.post(system.request(data={"id": n, "pad": pad})).status_code for n in range(60)]
    assert statuses[0] == 200
    assert statuses[-1] == 503
    assert set(statuses) == {200, 503}
    own_redis.start()
    eventually(lambda: spooled(system) == 0, 20)
    assert system.ledger.counters().total["accepted"] == statuses.count(200)


# Restarts


def test_row_5_a_stop_and_start_with_a_passed_socket_refuses_nobody(make_system: Callable[..., System]) -> None:
    system = make_system()
    with socket.create_server(("127.0.0.1", system.port), backlog=256) as listener:
        web = _web_on(system, listener)
        eventually(system.web_answers)
        with Load(system) as load:
            eventually(lambda: len(load.answered) > 20)
            web.send(signal.SIGTERM)
            assert web.wait() == 0
            web = _web_on(system, listener)
            before = len(load.answered)
            eventually(lambda: len(load.answered) > before + 20)
        web.stop()
    assert load.others == []
    assert system.ledger.counters().total["accepted"] == len(load.answered)


def _web_on(system: System, listener: socket.socket) -> Process:
    """The receiver with a listening socket as descriptor 3, as a service manager passes it."""
    code = (
        "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True); "
        "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); "
        "os.execv(sys.executable, [sys.executable, '-m', 'receiver.gunicorn', '--config', sys.argv[2]])"
    )
    descriptor = os.dup(listener.fileno())
    os.set_inheritable(descriptor, True)
    command = [sys.executable, "-c", code, str(descriptor), str(system.config_file)]
    process = Process(command, log=system.folder / "web.log", keep=(descriptor,))
    os.close(descriptor)
    system.processes.append(process)
    return process


def test_row_22_ten_times_the_sustainable_burst_is_kept_or_pushed_back(shop: System, own_redis: Server) -> None:
    with Load(shop, senders=40) as load:
        eventually(lambda: len(load.answered) > 1000, 40)
    assert set(load.others) <= {503}
    eventually(lambda: spooled(shop) == 0, 20)
    assert shop.ledger.counters().total["accepted"] == len({event_id for event_id, _ in load.answered})


# ack


def test_ack_replica_waits_for_one(make_system: Callable[..., System], own_redis: Server, tmp_path: Path) -> None:
    system = make_system(url=own_redis.url)
    text = system.config_file.read_text().replace("[receiver]\n", '[receiver]\nspool = "off"\n', 1)
    system.config_file.write_text(text.replace("[redis]\n", '[redis]\nack = "replica"\ntimeout = "2s"\n', 1))
    system.start("web")
    assert system.post(system.request()).status_code == 503, "nobody replicates"
    folder, port = tmp_path / "replica", free_port()
    folder.mkdir()
    own_redis.client.config_set("port", port)
    with own_server(folder, "--appendonly", "no", "--replicaof", f"127.0.0.1 {port}"):
        eventually(lambda: own_redis.client.info("replication")["connected_slaves"] == 1)
        assert eventually(lambda: (a := system.post(system.request())).status_code == 200 and a.json()["status"], 20)
