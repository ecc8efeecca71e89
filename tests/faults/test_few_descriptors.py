"""Few descriptors: a flood of connections takes none that a web process needs for Redis and its spool."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from receiver.server.descriptors import RESERVED_DESCRIPTORS
from receiver.server.web import DESCRIPTORS
from tests.faults.test_hostile_senders import descriptors
from tests.support.attackers import start_flood
from tests.support.bad_input import Corpus
from tests.support.harness import System, children_of, eventually, own_server
from tests.support.programs import Process
from tests.support.raw_http import exchange, read_answer

LIMIT = 256
WATCHED_SECONDS = 5.0
PAUSED_MS = 2_000
SPARE = 20
"""Descriptors that are never used."""
LONGEST = 1.8
"""Seconds, as in the test of a hanging server: the deliveries that wait for its timeout are the slowest."""
LONGEST_BESIDE_TRICKLES = 9.0
"""They take all places again and again, and keep the loop busy. Once they had them until they timed out, after 10 s."""


def start_web(system: System, limit: str) -> int:
    """Start it under limits of the shell; returns the process that serves."""
    web = f"{sys.executable} -m receiver.server.web --config {system.config_file}"
    command = ["bash", "-c", f"{limit} && exec {web}"]
    system.processes.append(Process(command, log=system.folder / "web.log"))
    eventually(system.web_answers, what=f"web answers; {system.log('web')[-500:]}")
    (worker,) = children_of(system.processes[0].pid)
    return worker


def limits_of(pid: int) -> tuple[int, int]:
    found = re.search(r"Max open files\s+(\d+)\s+(\d+)", Path(f"/proc/{pid}/limits").read_text())
    assert found
    return int(found[1]), int(found[2])


def test_the_soft_limit_is_raised_within_the_hard_one(system: System) -> None:
    hard = limits_of(os.getpid())[1]
    assert limits_of(start_web(system, f"ulimit -Sn {LIMIT}")) == (min(DESCRIPTORS, hard), hard)


@pytest.mark.timed
@pytest.mark.parametrize(
    "kind", ["idle connections", pytest.param("trickles", marks=[pytest.mark.slow, pytest.mark.timeout(120)])]
)
def test_a_flood_while_redis_hangs_loses_no_delivery(tmp_path: Path, kind: str) -> None:
    for name in ("own", "system"):
        (tmp_path / name).mkdir()
    with own_server(tmp_path / "own") as server:
        system = System(tmp_path / "system", server.url)
        try:
            worker = start_web(system, f"ulimit -n {LIMIT}")
            assert limits_of(worker) == (LIMIT, LIMIT)
            corpus = Corpus(system.config)
            assert exchange(system.port, corpus.signed()).status == 200
            flood = start_flood(system.port, kind)
            try:
                eventually(lambda: descriptors(worker) > LIMIT - RESERVED_DESCRIPTORS)
                server.client.execute_command("CLIENT", "PAUSE", PAUSED_MS, "ALL")
                statuses, slowest, most = deliver_and_watch(system.port, corpus, worker)
            finally:
                flood.kill()
                flood.wait()
            print(f"{statuses}, the slowest {slowest * 1000:.0f} ms, at most {most} of {LIMIT} descriptors")
            assert set(statuses) == {200}
            assert slowest < (LONGEST if kind == "idle connections" else LONGEST_BESIDE_TRICKLES)
            assert most <= LIMIT - SPARE
            eventually(lambda: descriptors(worker) < RESERVED_DESCRIPTORS / 2)
            eventually(lambda: system.http.get("/readyz").json().get("spooled") == 0)
            assert system.ledger.counters().total["accepted"] == statuses[200] + 1
            assert children_of(system.processes[0].pid) == [worker], "no process was replaced"
        finally:
            system.close()


def deliver_and_watch(port: int, corpus: Corpus, worker: int) -> tuple[Counter[int], float, int]:
    """The statuses of deliveries, the time of the slowest, and the most descriptors that the process had."""
    statuses, slowest, most = Counter[int](), 0.0, 0
    until = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < until:
        one = corpus.signed()
        began = time.monotonic()
        statuses[exchange(port, one, within=60).status] += 1  # it waits in one queue with the flood
        slowest, most = max(slowest, time.monotonic() - began), max(most, descriptors(worker))
    return statuses, slowest, most


@pytest.fixture
def crowded(system: System) -> System:
    """A web process with 156 places for connections."""
    start_web(system, f"ulimit -n {LIMIT}")
    return system


def test_a_burst_of_more_deliveries_than_connections_is_answered(crowded: System) -> None:
    """Each on a connection of its own, as after an outage: the ones behind wait, and none is ended for another."""
    corpus, senders = Corpus(crowded.config), list[socket.socket]()
    for _ in range(600):
        senders.append(socket.create_connection(("127.0.0.1", crowded.port), timeout=20))
        senders[-1].sendall(corpus.signed())
    statuses = Counter(read_answer(sender).status for sender in senders)
    for sender in senders:
        sender.close()
    assert statuses == {200: 600}


def test_busy_connections_leave_a_place_to_a_new_sender(crowded: System) -> None:
    """They send without a pause, so that none of them ever waits for its sender."""
    corpus = Corpus(crowded.config)
    senders = [socket.create_connection(("127.0.0.1", crowded.port), timeout=20) for _ in range(LIMIT)]
    first = corpus.signed()
    for sender in senders:
        sender.sendall(first * 50)
    assert exchange(crowded.port, corpus.signed()).status == 200
    for sender in senders:
        sender.close()
