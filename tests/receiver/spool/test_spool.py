"""While Redis is unreachable, full or slow, deliveries are answered 2xx and spooled; none is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from receiver.inbox import keys
from receiver.spool.damaged_events import open_damaged
from receiver.spool.spooled_events import EVENTS_FILE, open_events, pack_delivery, unpack_delivery
from tests.support.activation import web_on_socket
from tests.support.harness import (
    Server,
    System,
    children_of,
    eventually,
    free_port,
    kill_with_children,
    own_server,
)
from tests.support.load import Load
from tests.support.mounted_disk import small_disk

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


# The file


def test_a_spooled_delivery_is_read_back_unchanged(system: System, tmp_path: Path) -> None:
    delivery = system.delivery(data={"id": 7, "name": "\u2603"})
    assert unpack_delivery(pack_delivery(delivery), delivery.event.body) == delivery
    events = open_events(tmp_path)
    assert [one.status for one in events.add([delivery, delivery])] == ["accepted", "duplicate"]
    assert events.has_rows("north")
    assert not events.has_rows("south")
    (row,) = events.oldest(10)
    assert row.delivery == delivery
    events.delete([row])
    assert events.summary() == (0, 0.0)


@pytest.mark.full
def test_a_delivery_is_not_overtaken_by_one_batch_after_another(system: System, tmp_path: Path) -> None:
    """A captured batch of 1,000, sent again and again while Redis was away, delayed other stores for up to 3 s."""
    first, *rest = (system.delivery() for _ in range(1000))
    batch, written, stop = replace(first, rest=tuple(rest)), list[int](), threading.Event()

    def write_batches() -> None:
        events = open_events(tmp_path)
        while not stop.is_set():
            events.add([batch])
            written.append(1)

    events, overtaken = open_events(tmp_path), list[int]()
    with ThreadPoolExecutor(4) as writers:
        for _ in range(4):
            writers.submit(write_batches)
        for _ in range(15):
            before = len(written)
            eventually(lambda before=before: len(written) > before)
            before = len(written)
            events.add([system.delivery()])
            overtaken.append(len(written) - before)
        stop.set()
    assert max(overtaken) < 12, overtaken


def test_large_rows_are_read_a_few_at_a_time(system: System, tmp_path: Path) -> None:
    """480 rows of 900 kB took 350 MB of memory and delayed deliveries by a second while they were drained."""
    rows = [system.delivery(data={"id": number, "name": "x" * 900_000}) for number in range(7)]
    open_events(tmp_path).add(rows)
    with open_damaged(tmp_path / EVENTS_FILE) as damaged:
        for events in (open_events(tmp_path), damaged):
            first = events.oldest(10)
            assert [row.delivery for row in first] == rows[:3]
            assert [row.delivery for row in events.oldest(10, after=first[-1].number)] == rows[3:6]


# Redis unreachable


@pytest.mark.parametrize("seconds", [4, pytest.param(14, marks=pytest.mark.slow)])
def test_row_10_redis_killed_under_load_is_answered_2xx_and_nothing_is_lost_or_doubled(
    shop: System, own_redis: Server, seconds: int
) -> None:
    """Row 10."""
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
    assert load.others == load.failed == []
    assert meanwhile > 10
    eventually(lambda: spooled(shop) == 0, 20, what="deliveries that arrived during the drain are in the inbox, too")
    eventually(lambda: shop.ledger.counters().total["open"] == 0, 20)
    total = shop.ledger.counters().total
    ids = load.ids
    print(f"\nRedis unreachable for {seconds} s: {load}; {meanwhile:,} meanwhile")
    assert total["accepted"] - 1 == len(ids) == len(load.answered)
    assert total["settled"] - 1 == len(ids)
    assert all(shop.status(event_id) == "settled" for event_id in ids)


def test_spooled_deliveries_keep_their_time_of_arrival_and_their_order(shop: System, own_redis: Server) -> None:
    own_redis.kill()
    before = time.time()
    ids = [shop.deliver(data={"id": n}) for n in range(10)]
    after = time.time()
    assert spooled(shop) == 10
    ready = shop.http.get("/readyz").json()
    assert ready["stores_in"] == "spool"
    assert abs(datetime.fromisoformat(ready["waiting_since"]).timestamp() - before) < after - before + 2
    own_redis.start()
    eventually(lambda: spooled(shop) == 0)
    drained = {"status": "ready", "stores_in": "redis", "spooled": 0, "waiting_since": None}
    eventually(lambda: shop.http.get("/readyz").json() == drained, what="it tries once a second")
    found = list(reversed(shop.ledger.events()))
    assert [event.id for event in found] == ids
    assert all(before - 0.01 <= event.received_at.timestamp() <= after for event in found)
    assert shop.identity_holds()


def test_a_drained_event_comes_after_a_cursor_from_before_the_drain(shop: System, own_redis: Server) -> None:
    own_redis.kill()
    late = shop.deliver()
    stopped = [pid for process in shop.processes for pid in (process.pid, *children_of(process.pid))]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    own_redis.start()
    shop.accept(store="south")
    cursor = shop.client.zrange(keys.INDEX, -1, -1, withscores=True)[0][1]
    since = datetime.fromtimestamp(cursor / 1e6 + 0.001, UTC)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: spooled(shop) == 0)
    assert shop.client.zrange(keys.INDEX, f"({cursor:.0f}", "+inf", byscore=True) == [late.encode()]
    (listed,) = json.loads(shop.run_cli("events", "list", "--since", since.isoformat(), "--json").stdout)
    assert listed["id"] == late
    assert datetime.fromisoformat(listed["received_at"]) < since, "the time of arrival is what people see"


def test_a_redelivery_is_a_duplicate_before_and_after_an_outage(shop: System, own_redis: Server) -> None:
    first, second = shop.request(), shop.request()
    assert shop.post(first).json()["status"] == "accepted"
    own_redis.kill()
    assert shop.post(second).json()["status"] == "accepted"
    assert shop.post(second).json()["status"] == "duplicate"
    assert shop.post(first).json()["status"] == "accepted", "the spool does not know it, the inbox will"
    assert shop.post(second).json()["status"] == "duplicate"
    own_redis.start()
    eventually(lambda: spooled(shop) == 0)
    assert len(shop.ledger.events()) == 2
    eventually(lambda: shop.ledger.counters().stores["north"]["duplicates"] == 3, what="each of them is counted")
    assert shop.post(second).json()["status"] == "duplicate"
    counted = json.loads(shop.run_cli("stats", "--json").stdout)
    assert (counted["duplicates"], counted["stores"]["north"]["duplicates"]) == (4, 4)


def test_a_killed_receiver_drains_after_its_restart(shop: System, own_redis: Server) -> None:
    own_redis.kill()
    ids = {shop.deliver() for _ in range(5)}
    kill_with_children(shop.processes[0])
    own_redis.start()
    shop.start("web")
    eventually(lambda: {event.id for event in shop.ledger.events()} == ids)


def test_the_receiver_starts_without_redis(make_system: Callable[..., System], own_redis: Server) -> None:
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


def test_stats_show_spooled_deliveries(shop: System, own_redis: Server) -> None:
    own_redis.kill()
    for _ in range(3):
        shop.deliver()
    web = [shop.processes[0].pid, *children_of(shop.processes[0].pid)]
    for pid in web:  # nothing is drained meanwhile
        os.kill(pid, signal.SIGSTOP)
    own_redis.start()
    shop.inbox.publish_spool("elsewhere", 4, time.time() - 4 * 86400)
    found = json.loads(shop.run_cli("stats", "--json").stdout)
    assert (found["spooled"], found["hosts"]["elsewhere"]["spooled"]) == (7, 4), "three of them are read from the file"
    said = shop.run_cli("stats").stdout
    assert "spool of elsewhere: 4 deliveries wait" in said
    assert "longer than [receiver] spool_age" in " ".join(said.split())
    for pid in web:
        os.kill(pid, signal.SIGCONT)


def test_rows_older_than_spool_age_are_reported_and_not_dropped(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    own_redis.kill()
    system = make_system(url=own_redis.url)
    delivery = system.delivery()
    long_ago = replace(delivery.event, received_at=delivery.event.received_at - timedelta(days=4))
    events = open_events(system.config.data_dir)
    events.add([replace(delivery, event=long_ago)])
    events.close()
    system.start("web")
    eventually(lambda: "longer than spool_age" in system.log("web"))
    assert system.post(system.request()).status_code == 200, "old rows stop no new delivery"
    own_redis.start()
    eventually(lambda: spooled(system) == 0)
    oldest = system.ledger.events()[-1]
    assert oldest.id == long_ago.id
    assert abs(oldest.received_at - long_ago.received_at) < timedelta(milliseconds=2)


@pytest.mark.timed
def test_row_11_a_black_hole_is_answered_in_under_a_second(make_system: Callable[..., System]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:  # accepts connections and never answers
        system = make_system(url=f"redis://127.0.0.1:{hole.getsockname()[1]}")
        system.start("web")
        worst, ids = [], set[str]()
        while not worst or (min(worst) >= 1 and len(worst) < 3):  # again, because other programs delay it too
            with Load(system, senders=8) as load:
                eventually(lambda: len(load.answered) > 100)
            print(f"\na black hole: {load}")
            assert load.others == load.failed == []
            worst.append(load.worst)
            ids |= load.ids
        assert min(worst) < 1
        assert spooled(system) == len(ids)


# Full


@contextmanager
def small_server(tmp_path: Path, *, filled: float) -> Iterator[Server]:
    """A server with little memory, of which other keys use the fraction `filled`."""
    folder = tmp_path / "small"
    folder.mkdir()
    with own_server(folder, "--maxmemory", "12mb") as server:
        while server.client.info("memory")["used_memory"] < filled * (12 << 20):
            server.client.rpush("ballast", b"x" * 50_000)
        yield server


def test_row_15_near_maxmemory_deliveries_go_to_the_spool_and_drain_afterwards(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    with small_server(tmp_path, filled=0.6) as server:
        system = make_system(url=server.url, plugin=HELLO)
        system.start("web")
        assert send_padded(system, 300, 20_000) == [200] * 300
        assert spooled(system) > 50
        memory = server.client.info("memory")
        assert memory["used_memory"] < memory["maxmemory"], "workers can still write"
        system.start("worker", "housekeeper", env={"STOREHOOKS_RETENTION__BODIES": "0s"})
        eventually(lambda: spooled(system) == 0, 60, what="drained while retention frees memory")
        eventually(lambda: system.ledger.counters().total["settled"] == 300, 30)


@pytest.mark.full
def test_doctor_and_the_log_say_whether_memory_keeps_deliveries_in_the_spool(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    """Between 75 and 85 % of maxmemory nothing was drained, and no line said why."""
    with small_server(tmp_path, filled=0.88) as server:
        system = make_system(url=server.url)
        system.start("web")
        eventually(lambda: "near its maxmemory" in system.log("web"), what="the begin is logged")
        system.deliver()
        memory, spool = (doctor_says(system, check) for check in ("memory", "spool"))
        assert "fail" in memory
        assert "raise maxmemory, set [history] url, or shorten [retention]" in memory
        assert spool.startswith("fail 1 accepted delivery in the spool")
        assert spool.endswith("see memory above")
        while server.client.info("memory")["used_memory"] > 0.8 * (12 << 20):
            server.client.lpop("ballast")
        eventually(lambda: spooled(system) == 0, what="below 85 % it is drained")
        assert doctor_says(system, "memory").startswith("ok")
        eventually(lambda: "Redis has memory again" in system.log("web"), 20, what="the end is logged")


def doctor_says(system: System, check: str) -> str:
    found = json.loads(system.run_cli("doctor", "--json").stdout)["findings"]
    return next(" ".join((one["level"], one["text"], one["fix"] or "")) for one in found if one["check"] == check)


def test_row_15_near_maxmemory_with_the_spool_off_deliveries_get_503_early(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    with small_server(tmp_path, filled=0.8) as server:
        system = make_system(url=server.url)
        text = system.config_file.read_text().replace("[receiver]\n", '[receiver]\nspool = "off"\n', 1)
        system.config_file.write_text(text)
        system.start("web")
        stored = 0
        while (answer := system.post(system.request(data={"pad": "x" * 5_000}))).status_code == 200:
            stored += 1
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert system.http.get("/readyz").status_code == 503
        memory = server.client.info("memory")
        print(
            f"\n{stored} stored before the first 503, at {memory['used_memory'] / memory['maxmemory']:.0%} of maxmemory"
        )
        assert memory["used_memory"] < memory["maxmemory"], "early: workers can still write"
        assert system.ledger.counters().total["accepted"] == stored
        server.client.delete("ballast")
        eventually(lambda: system.post(system.request()).status_code == 200, what="memory is free again")


def send_padded(system: System, count: int, size: int) -> list[int]:
    """The statuses of the answers to deliveries of this size."""
    pad = "x" * size
    return [system.post(system.request(data={"id": n, "pad": pad})).status_code for n in range(count)]


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_row_16_with_the_servers_disk_full_deliveries_go_to_the_spool(
    make_system: Callable[..., System], tmp_path: Path, fsync: str
) -> None:
    """With `everysec` the server goes on and refuses writes (MISCONF); with `always` it exits."""
    with small_disk(tmp_path / "disk", "8m") as disk:
        server = Server(disk, extra=("--appendfsync", fsync)).start()
        system = make_system(url=server.url)
        system.start("web")
        assert send_padded(system, 80, 200_000) == [200] * 80
        assert spooled(system) > 30
        assert server.process is not None
        if fsync == "everysec":
            with pytest.raises(RedisError, match="MISCONF"):
                server.client.set("x", 1)
        else:
            eventually(lambda: not server.process.alive, what="the server exits")
        assert system.http.get("/readyz").json()["stores_in"] == "spool"
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)  # the operator frees space
        if fsync == "always":
            server.start()
        eventually(lambda: spooled(system) == 0, 30)
        eventually(lambda: system.ledger.counters().total["accepted"] == 80)
        system.close()
        server.stop()


def test_row_16_with_the_spools_disk_full_and_redis_unreachable_the_answer_is_503(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "40m") as disk:
        system = make_system(url=own_redis.url, data_dir=disk)
        system.start("web")
        own_redis.kill()
        statuses = send_padded(system, 60, 200_000)
        assert statuses[0] == 200
        assert statuses[-1] == 503
        assert set(statuses) == {200, 503}
        assert system.post(system.request(store="south"), "south").status_code == 200, (
            "it has its own share of the rest"
        )
        (disk / "ballast").write_bytes(b"x" * (6 << 20))
        assert system.post(system.request(store="south"), "south").status_code == 503
        assert system.http.get("/readyz").status_code == 503
        own_redis.start()
        eventually(lambda: spooled(system) == 0, 20)
        assert system.ledger.counters().total["accepted"] == statuses.count(200) + 1
        system.close()


def test_row_16_with_both_disks_full_no_delivery_is_answered_2xx_without_being_stored(
    make_system: Callable[..., System], tmp_path: Path
) -> None:
    """One disk for both, as on a small host. Deliveries answered 2xx are found once there is space again."""
    with small_disk(tmp_path / "disk", "8m") as disk:
        server = Server(disk, extra=("--appendfsync", "everysec")).start()
        system = make_system(url=server.url)
        system.config_file.write_text(system.config_file.read_text().replace(str(system.folder / "data"), str(disk)))
        system.start("web")
        statuses = send_padded(system, 60, 200_000)
        assert set(statuses) == {200, 503}, "the spool reserves 32 MB, so it takes nothing here"
        assert statuses[-1] == 503
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        eventually(lambda: system.post(system.request()).status_code == 200)
        eventually(lambda: len(system.ledger.events(limit=100)) == statuses.count(200) + 1)  # some through the spool
        system.close()
        server.stop()


# Restarts


MANY_TIMES = [1, pytest.param(12, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]


@pytest.mark.parametrize("times", MANY_TIMES)
def test_row_4_no_delivery_fails_during_a_reload_of_the_config(system: System, times: int) -> None:
    """HUP under the load of eight senders, half of them with keep-alive; both processes are replaced."""
    (web,) = system.start("web", env={"STOREHOOKS_RECEIVER__PROCESSES": "2"})
    with Load(system, senders=4) as keep_alive_load, Load(system, senders=4, keep_alive=False) as closing_load:
        for number in range(1, times + 1):
            all_get_answers(keep_alive_load, closing_load)
            web.send(signal.SIGHUP)
            eventually(lambda: system.log("web").count("Worker exiting") == 2 * number, 20)  # noqa: B023  called at once
        all_get_answers(keep_alive_load, closing_load)
    print(f"\n{times} HUPs, keep-alive: {keep_alive_load}\n{times} HUPs, one connection each: {closing_load}")
    assert none_failed(keep_alive_load, closing_load)


@pytest.mark.parametrize("times", MANY_TIMES)
def test_row_5_a_restart_with_a_passed_socket_refuses_no_connection(
    make_system: Callable[..., System], times: int
) -> None:
    """Under the load of eight senders, half of them with keep-alive."""
    system = make_system()
    with socket.create_server(("127.0.0.1", system.port), backlog=256) as listener:
        web = web_on_socket(system, listener)
        eventually(system.web_answers)
        with Load(system, senders=4) as keep_alive_load, Load(system, senders=4, keep_alive=False) as closing_load:
            for _ in range(times):
                all_get_answers(keep_alive_load, closing_load)
                web.send(signal.SIGTERM)
                assert web.wait() == 0
                web = web_on_socket(system, listener)
            all_get_answers(keep_alive_load, closing_load)
        web.stop()
    print(f"\n{times} restarts, keep-alive: {keep_alive_load}\n{times} restarts, one connection each: {closing_load}")
    assert none_failed(keep_alive_load, closing_load)


def all_get_answers(*loads: Load) -> None:
    before = [len(load.answered) for load in loads]
    eventually(lambda: all(len(load.answered) > count + 20 for load, count in zip(loads, before, strict=True)), 20)


def none_failed(*loads: Load) -> bool:
    """Every delivery was answered 2xx, and every one is stored."""
    ids = set.union(*(load.ids for load in loads))
    stored = {event.id for event in loads[0].system.ledger.events(limit=10**6)}
    return ids == stored and not any(load.others or load.failed for load in loads)


def test_row_22_ten_times_the_sustainable_burst_is_stored_or_answered_503(shop: System) -> None:
    """Four threads serve; forty senders send without a pause."""
    with Load(shop, senders=40, pause=0) as load:
        eventually(lambda: len(load.answered) > 1000, 40)
    print(f"\nforty senders on four threads: {load}")
    assert set(load.others) <= {503}
    assert load.failed == []
    eventually(lambda: spooled(shop) == 0, 20)
    assert shop.ledger.counters().total["accepted"] == len(load.ids)


# ack


def test_ack_replica_waits_for_one(make_system: Callable[..., System], own_redis: Server, tmp_path: Path) -> None:
    system = make_system(url=own_redis.url)
    text = system.config_file.read_text().replace("[receiver]\n", '[receiver]\nspool = "off"\n', 1)
    system.config_file.write_text(text.replace("[redis]\n", '[redis]\nack = "replica"\ntimeout = "2s"\n', 1))
    system.start("web")
    assert system.post(system.request()).status_code == 503, "there is no replica"
    folder, port = tmp_path / "replica", free_port()
    folder.mkdir()
    own_redis.client.config_set("port", port)
    own_redis.client.config_set("repl-diskless-sync-delay", 0)  # do not wait for other replicas
    with own_server(folder, "--appendonly", "no", "--replicaof", f"127.0.0.1 {port}"):
        eventually(lambda: own_redis.client.info("replication")["connected_slaves"] == 1)
        assert eventually(lambda: (a := system.post(system.request())).status_code == 200 and a.json()["status"], 20)
