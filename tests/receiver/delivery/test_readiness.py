"""`/readyz` says what a delivery would get now. It tries that once a second, at the same cost at any fill."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from receiver.delivery.pipeline import open_storage
from receiver.delivery.storage import READY_SECONDS
from receiver.inbox import Inbox, connect
from receiver.spool import EVENTS_FILE, open_events
from tests.receiver.spool.test_spool import small_disk, small_server
from tests.support.harness import Server, System, eventually, free_port

MANY = 40_000
EACH_TIME = {"receiver.delivery.storage.READY_SECONDS": 0.0}
"""`/readyz` tries each time it is asked."""


def ready(system: System) -> int:
    return system.http.get("/readyz").status_code


def delivery_gets(system: System) -> int:
    return system.post(system.request()).status_code


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A read-only file system at this place. Files that are open already can still be written."""
    if subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("a read-only mount needs root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_row_32_with_a_read_only_data_dir_and_a_redis_that_hangs_readiness_fails_as_deliveries_do(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """Row 32."""
    system = make_system(url=own_redis.url)
    system.start("web", quicker=EACH_TIME)
    assert (delivery_gets(system), ready(system)) == (200, 200)
    assert own_redis.process
    own_redis.process.send(signal.SIGSTOP)
    with read_only(system.config.data_dir):
        assert (delivery_gets(system), ready(system)) == (503, 503)
    assert (delivery_gets(system), ready(system)) == (200, 200)
    own_redis.process.send(signal.SIGCONT)


def test_row_32_with_a_full_disk_and_without_redis_readiness_fails_as_deliveries_do(
    make_system: Callable[..., System], own_redis: Server, tmp_path: Path
) -> None:
    """Row 32. The disk refuses more before it is nearly full, as one with a quota does."""
    with small_disk(tmp_path / "disk", "40m") as disk:
        system = make_system(url=own_redis.url, data_dir=disk)
        system.start("web", quicker=EACH_TIME | {"receiver.delivery.bounded_spool.RESERVED_DISK_BYTES": -1 << 30})
        own_redis.kill()
        assert (delivery_gets(system), ready(system)) == (200, 200)
        subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'ballast'}", "bs=4k"], capture_output=True, check=False)
        # Deliveries take the space that the spool's files have already, up to the last byte.
        eventually(lambda: (delivery_gets(system), ready(system)) == (503, 503))
        (disk / "ballast").unlink()
        eventually(lambda: delivery_gets(system) == 200)
        assert ready(system) == 200
        system.close()


def test_at_maxmemory_readiness_says_what_deliveries_get(make_system: Callable[..., System], tmp_path: Path) -> None:
    with small_server(tmp_path, filled=0.5) as server:
        on, off = make_system(url=server.url), make_system(url=server.url)
        text = off.config_file.read_text().replace("[receiver]\n", '[receiver]\nspool = "off"\n', 1)
        off.config_file.write_text(text)
        on.start("web", quicker=EACH_TIME)
        off.start("web", quicker=EACH_TIME)
        assert (ready(on), ready(off)) == (200, 200)
        server.client.config_set("maxmemory", "1")
        eventually(lambda: (delivery_gets(on), delivery_gets(off)) == (200, 503))
        assert (ready(on), on.http.get("/readyz").json()["stores_in"], ready(off)) == (200, "spool", 503)


def test_a_server_that_refuses_writes_is_not_where_deliveries_are_stored(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = make_system(url=own_redis.url)
    system.start("web", quicker=EACH_TIME)
    own_redis.client.config_set("min-replicas-to-write", "1")
    assert delivery_gets(system) == 200
    assert (ready(system), system.http.get("/readyz").json()["stores_in"]) == (200, "spool")
    strict = system.http.get("/readyz?strict=1")
    assert (strict.status_code, strict.json()["detail"]) == (503, "Redis cannot store a delivery now; the spool can.")
    own_redis.client.config_set("min-replicas-to-write", "0")
    eventually(lambda: system.http.get("/readyz?strict=1").status_code == 200, what="Redis stores deliveries again")


def test_many_who_ask_share_one_try_and_get_the_same_answer(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    system = make_system(url=own_redis.url)
    system.start("web")
    own_redis.kill()
    assert delivery_gets(system) == 200
    with closing(sqlite3.connect(system.config.data_dir / EVENTS_FILE)) as file:
        eventually(lambda: system.http.get("/readyz").json()["stores_in"] == "spool")
        began, answers, tries, seen = time.monotonic(), list[int](), 0, version(file)

        def ask() -> None:
            for _ in range(25):
                answers.append(system.http.get("/readyz").status_code)

        askers = [threading.Thread(target=ask) for _ in range(8)]
        for one in askers:
            one.start()
        while any(one.is_alive() for one in askers):  # each try is a transaction, and nothing else writes
            time.sleep(0.002)
            tries, seen = tries + (version(file) != seen), version(file)
        took = time.monotonic() - began
    print(f"\n{len(answers):,} answers and {tries} tries in {took:.1f} s")
    assert answers == [200] * 200
    assert tries <= took + 10, "one in a second, and each thread opens the file once"


@pytest.mark.timed
def test_who_asks_while_redis_hangs_holds_no_thread_that_others_need(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """Each one waited for the same try: `/healthz` then took as long as the timeout of Redis."""
    system = make_system(url=own_redis.url)
    system.start("web", quicker=EACH_TIME, env={"STOREHOOKS_REDIS__TIMEOUT": "5s"})
    assert ready(system) == 200
    assert own_redis.process
    own_redis.process.send(signal.SIGSTOP)
    askers = [threading.Thread(target=ready, args=(system,)) for _ in range(8)]  # it has four threads
    for one in askers:
        one.start()
    worst, began = 0.0, time.monotonic()
    while time.monotonic() < began + 1.5:
        asked = time.monotonic()
        assert system.http.get("/healthz").status_code == 200
        worst = max(worst, time.monotonic() - asked)
    own_redis.process.send(signal.SIGCONT)
    for one in askers:
        one.join()
    assert worst < 4, "the timeout of Redis is 5 s"


def ready_for_each(system: System, askers: int) -> list[int]:
    """What each gets of those who ask at once."""
    with ThreadPoolExecutor(askers) as pool:
        return [*pool.map(lambda _: ready(system), range(askers))]


@pytest.mark.parametrize(("spool", "answer"), [("on", 200), ("off", 503)])
def test_while_a_try_hangs_a_result_from_long_ago_is_no_answer(
    make_system: Callable[..., System], own_redis: Server, spool: str, answer: int
) -> None:
    """`/readyz` was 200 for as long as Redis, or the disk, did not answer, and every delivery got 503. Then it was 503
    for all but one who asked at once, although deliveries were spooled."""
    system = make_system(url=own_redis.url)
    system.start(
        "web", env={"STOREHOOKS_RECEIVER__SPOOL": spool}, quicker={"receiver.delivery.storage.BUSY_SECONDS": 0}
    )
    assert ready(system) == 200
    time.sleep(READY_SECONDS + system.config.redis.timeout)  # the result gets older than the longest try
    assert own_redis.process
    own_redis.process.send(signal.SIGSTOP)
    assert ready_for_each(system, 4) == [answer] * 4
    own_redis.process.send(signal.SIGCONT)
    eventually(lambda: ready(system) == 200)


def test_those_who_ask_at_once_after_a_long_time_get_the_new_result(make_system: Callable[..., System]) -> None:
    module = "receiver.delivery.storage."
    system = make_system()
    system.start("web", quicker=EACH_TIME | {f"{module}BUSY_SECONDS": -9.0, f"{module}WAIT_SECONDS": 9.0})
    for _ in range(20):
        assert ready_for_each(system, 4) == [200] * 4


def version(file: sqlite3.Connection) -> int:
    """Changes when another connection has committed a transaction."""
    return int(file.execute("PRAGMA data_version").fetchone()[0])


@pytest.mark.full
def test_readiness_and_reports_cost_the_same_at_any_number_of_rows(system: System) -> None:
    config = system.config
    storage, _ = open_storage(config, Inbox(connect(f"redis://127.0.0.1:{free_port()}", timeout=1.0)))
    storage.store_all([system.delivery()])
    events = open_events(config.data_dir)
    empty = fastest(events.summary)
    fill(system, MANY)
    assert events.count() == MANY + 1
    full = fastest(events.summary)
    print(f"\nthe number of rows is read in {empty * 1e3:.2f} ms with one row, {full * 1e3:.2f} ms with {MANY:,}")
    assert full < 3 * empty + 0.002
    found = storage.readiness()
    assert found is not None
    assert (found.stores_in, found.spooled) == ("spool", MANY + 1)


def fill(system: System, count: int) -> None:
    one = system.delivery()
    rows = [replace(one, event=replace(one.event, id=f"row{number}")) for number in range(count)]
    open_events(system.config.data_dir).add(rows)


def fastest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)
