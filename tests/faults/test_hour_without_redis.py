"""Redis unreachable for an hour of load, compressed: bounded memory, disk as calculated, nothing lost or doubled."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from receiver.contract.compose import compose
from receiver.inbox import keys
from receiver.spool import EVENTS_FILE
from tests.receiver.spool.test_spool import spooled
from tests.support.harness import Server, System, children_of, eventually

A_SECOND, HOUR = 20, 3600
SENDERS = 6
PAGE, ROW_OVERHEAD, INDEX_OVERHEAD = 4096, 30, 100
"""The sizes on disk that docs/operating/spool.md gives for a spooled delivery."""


class Sender(threading.Thread):
    """Sends one delivery after another over one connection, as fast as they are answered."""

    def __init__(self, system: System, number: int, count: int) -> None:
        super().__init__()
        self.system, self.number, self.count = system, number, count
        self.ids: list[str] = []
        self.others: list[bytes] = []

    def run(self) -> None:
        store = self.system.config.known_stores["north"]
        with socket.create_connection(("127.0.0.1", self.system.port)) as channel, channel.makefile("rb") as answers:
            for number in range(self.count):
                data = {"id": number, "total": "42.00", "note": "x" * 400}
                one = compose(
                    store, topic="order.created", delivery_id=f"h{self.number}-{number}", data=data, now=time.time()
                )
                head = "".join(f"{name}: {value}\r\n" for name, value in one.headers.items())
                channel.sendall(
                    f"POST /webhooks/north HTTP/1.1\r\nHost: x\r\n{head}"
                    f"Content-Length: {len(one.body)}\r\n\r\n".encode()
                    + one.body
                )
                self._record(*_answer(answers))

    def _record(self, status: bytes, body: bytes) -> None:
        if b" 200 " in status:
            self.ids.append(body.split(b'"id":"')[1][:26].decode())
        else:
            self.others.append(status)


def _answer(answers: object) -> tuple[bytes, bytes]:
    status, length = answers.readline(), 0  # type: ignore[attr-defined]
    while (line := answers.readline()) not in (b"\r\n", b""):  # type: ignore[attr-defined]
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return status, answers.read(length)  # type: ignore[attr-defined]


def send(system: System, count: int) -> list[Sender]:
    senders = [Sender(system, number, count // SENDERS) for number in range(SENDERS)]
    for one in senders:
        one.start()
    for one in senders:
        one.join()
    return senders


def resident(pids: list[int]) -> list[float]:
    """Resident memory of each process in MB."""
    page = os.sysconf("SC_PAGE_SIZE")
    return [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page / 1e6 for pid in pids]


def calculated(system: System) -> int:
    """The bytes that the rows should take by the formula in the documentation."""
    with closing(sqlite3.connect(system.config.data_dir / EVENTS_FILE)) as file:
        count, size = file.execute("SELECT count(*), avg(length(about) + length(body)) FROM event").fetchone()
    per_page = PAGE // (size + ROW_OVERHEAD)
    assert per_page >= 1, "the rows are short"
    return int(count * (PAGE / per_page + INDEX_OVERHEAD))


@pytest.fixture
def system(make_system: Callable[..., System], own_redis: Server) -> System:
    own_redis.kill()
    system = make_system(url=own_redis.url)
    system.start("web", env={"STOREHOOKS_RECEIVER__PROCESSES": "2"})
    return system


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_hour_without_redis_costs_only_disk(system: System, own_redis: Server) -> None:
    count = int(os.environ.get("HOUR", HOUR)) * A_SECOND // SENDERS * SENDERS
    warm = [system.deliver(data={"id": -1}) for _ in range(300)]
    web = children_of(system.processes[0].pid)
    before, began = resident(web), time.monotonic()
    senders = send(system, count)
    took, after = time.monotonic() - began, resident(web)
    disk, should = (system.config.data_dir / EVENTS_FILE).stat().st_size, calculated(system)
    journal = (system.config.data_dir / f"{EVENTS_FILE}-wal").stat().st_size
    print(
        f"\n{count:,} deliveries, an hour of {A_SECOND}/s, in {took:.0f} s: {count / took:,.0f} a second\n"
        f"memory of the web processes: {', '.join(f'{m:.0f}' for m in before)} MB before, "
        f"{', '.join(f'{m:.0f}' for m in after)} MB after\n"
        f"disk: {disk / 1e6:.1f} MB, calculated {should / 1e6:.1f} MB ({disk / should - 1:+.0%}), "
        f"and a journal of {journal / 1e6:.1f} MB"
    )
    assert [one.others for one in senders] == [[]] * SENDERS
    assert all(now - then < 32 for now, then in zip(after, before, strict=True)), "memory does not grow with the spool"
    assert 0.85 < disk / should < 1.15
    assert journal < 16e6
    _drain(system, own_redis, senders, warm)


def _drain(system: System, own_redis: Server, senders: list[Sender], warm: list[str]) -> None:
    waiting = spooled(system)
    own_redis.start()
    began = time.monotonic()
    direct = system.deliver(store="south")
    assert spooled(system) > 0, "the spool still has rows of the other store"
    assert system.status(direct) == "open", "a store without rows goes straight to the inbox"
    last = system.deliver(data={"id": -2})
    eventually(system.ledger.spools, what="the host publishes its spool")
    worst, left = 0.0, waiting
    while left:
        at = time.monotonic()
        left = spooled(system)
        assert {one.state for one in system.ledger.spools().values()} == {"receiving"}, "a long drain still publishes"
        worst = max(worst, time.monotonic() - at)
    took = time.monotonic() - began
    print(
        f"drained {waiting:,} in {took:.1f} s: {waiting / took:,.0f} a second; slowest answer meanwhile {worst:.2f} s"
    )
    total = system.ledger.counters().total
    ids = [event_id for sender in senders for event_id in sender.ids] + warm
    assert len(set(ids)) == len(ids)
    assert total["accepted"] == len(ids) + 2, "none lost"
    assert total["duplicates"] == 0, "none doubled"
    lane = [item.decode() for item in system.client.zrange(keys.READY, 0, -1) if item.decode() != direct]
    assert lane[-1] == last, "deliveries that arrived during the drain come after the spooled ones"
    assert set(lane) == {*ids, last}
    place = {item: number for number, item in enumerate(lane)}
    for sender in senders:
        places = [place[one] for one in sender.ids]
        assert places == sorted(places), "in the order of arrival"
