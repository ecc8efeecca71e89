"""Hostile senders: mutated requests, slow ones, and floods. A healthy sender is answered, and no process ends."""

from __future__ import annotations

import random
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.receiver.server.test_loop_worker import resident
from tests.receiver.server.test_request_reader import mutated
from tests.support.attackers import start_flood
from tests.support.bad_input import Corpus
from tests.support.harness import System, children_of, eventually
from tests.support.raw_http import Sending, exchange

SLOWHTTPTEST = shutil.which("slowhttptest")
SENDERS = 1_000
WATCHED_SECONDS = 6.0
SLOW_DELIVERIES = 8
OPENED_LATE = 8
"""Descriptors that a process may open after its first requests and keep: the refused deliveries' file with its log, and
a connection to Redis for `/readyz`."""
NOISE_SECONDS = 0.02
"""A p99 below this is not compared: on two cores, one process that wakes up beside it takes as long."""


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.slow)])
def test_mutated_requests_are_answered_or_closed_and_leave_nothing_behind(system: System, count: int) -> None:
    system.start("web")
    (worker,) = children_of(system.processes[0].pid)
    assert exchange(system.port, Corpus(system.config).signed()).status == 200
    send_mutated(system.port, "warm up", min(count, 1_000))
    before = resident(worker), descriptors(worker)
    statuses = send_mutated(system.port, f"mutated {count}", count)
    print(f"{count} mutated requests: {dict(statuses)}, {(resident(worker) - before[0]) >> 20} MB more")
    assert statuses.total() >= count
    assert {"400", "404", "401"} <= set(statuses)
    assert not {status for status in statuses if status >= "500"} - {"501"}
    eventually(lambda: descriptors(worker) <= before[1] + OPENED_LATE)
    assert resident(worker) < before[0] + (16 << 20)
    assert children_of(system.processes[0].pid) == [worker], "no process was replaced"
    assert "Traceback" not in system.log("web")
    assert system.identity_holds()


def send_mutated(port: int, seed: str, count: int) -> Counter[str]:
    """The statuses of all answers, with "closed" for each connection that is closed without one."""
    chosen, lock, statuses = random.Random(seed), threading.Lock(), Counter[str]()
    left = iter(range(count))

    def send() -> None:
        while True:
            with lock:
                if next(left, None) is None:
                    return
                data = mutated(chosen)
            found = answers_to(port, data) or ["closed"]
            with lock:
                statuses.update(found)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def answers_to(port: int, data: bytes) -> list[str]:
    """The statuses of all answers until the connection is closed; fails if it stays open."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(65536):
                received += more
        except ConnectionError:
            pass
    return [part[2:5].decode() for part in received.split(b"HTTP/1.")[1:]]


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


# Slow senders and floods


SLOW = {
    "slow headers": ("-H", "-i", "1"),
    "slow bodies": ("-B", "-i", "1", "-s", "8192"),
    "slow readers": ("-X", "-n", "1", "-w", "10", "-y", "20", "-z", "5"),
}
FLOODS = ("idle connections", "resets", "large bodies")


def command(kind: str, port: int) -> list[str]:
    if kind in FLOODS:
        return [sys.executable, "-m", "tests.support.attackers", str(port), "flood", kind]
    seconds, address = str(int(WATCHED_SECONDS) + 4), f"http://127.0.0.1:{port}/webhooks/north"
    return [str(SLOWHTTPTEST), *SLOW[kind], "-c", str(SENDERS), "-r", "400", "-l", seconds, "-u", address]


@pytest.mark.timed
@pytest.mark.skipif(SLOWHTTPTEST is None, reason="slowhttptest is not installed (Debian: apt-get install slowhttptest)")
@pytest.mark.parametrize("kind", [*SLOW, *FLOODS])
def test_a_healthy_sender_beside_hostile_ones(system: System, kind: str) -> None:
    """Its 99th percentile is at most three times what it is alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    system.start("web")
    workers = children_of(system.processes[0].pid)
    for _ in range(3):  # a busy machine can only make it slower
        alone = p99(system)
        attack = subprocess.Popen(command(kind, system.port), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            beside = p99(system)
        finally:
            attack.kill()
            attack.wait()
        if beside < 3 * max(alone, NOISE_SECONDS):
            break
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"{kind}: p99 {beside * 1000:.1f} ms, alone {alone * 1000:.1f} ms")
    assert beside < 3 * max(alone, NOISE_SECONDS)
    assert children_of(system.processes[0].pid) == workers, "no process was replaced"


@pytest.mark.timed
@pytest.mark.parametrize("crowd", ["even bodies", "even bodies through a proxy"])
def test_slow_deliveries_beside_a_crowd_of_one_address_are_not_refused_for_their_bytes(
    make_system: Callable[..., System], crowd: str
) -> None:
    """The crowd's bodies arrive as evenly as these. Nearly all were answered 503."""
    system = make_system()
    if crowd.endswith("proxy"):
        proxied = system.config_file.read_text().replace("[receiver]", '[receiver]\ntrusted_proxies = ["127.0.0.1"]')
        system.config_file.write_text(proxied)
    system.start("web")
    attack = start_flood(system.port, crowd)
    try:
        eventually(lambda: "too many bytes arrive at once" in system.log("web"), within=60)
        statuses = slow_deliveries(system)
    finally:
        attack.kill()
        attack.wait()
    assert statuses == {200: SLOW_DELIVERIES}


def slow_deliveries(system: System) -> Counter[int]:
    """The statuses of large deliveries that each take two seconds to arrive."""
    large = Corpus(system.config).signed(b'{"type":"order.paid","data":{"id":1,"note":"%b"}}' % (b"x" * 900_000))
    large = large.replace(b"\r\n", b"\r\nX-Forwarded-For: 192.0.2.77\r\n", 1)
    pieces = tuple(large[at : at + 60_000] for at in range(0, len(large), 60_000))
    with ThreadPoolExecutor(SLOW_DELIVERIES) as pool:
        sending = Sending(pieces, pause=2 / len(pieces))
        answers = [pool.submit(exchange, system.port, sending, within=60) for _ in range(SLOW_DELIVERIES)]
        return Counter(answer.result().status for answer in answers)


def p99(system: System) -> float:
    corpus, took = Corpus(system.config), []
    until = time.monotonic() + WATCHED_SECONDS
    while time.monotonic() < until:
        one = corpus.signed()
        began = time.monotonic()
        assert exchange(system.port, one).status == 200
        took.append(time.monotonic() - began)
        time.sleep(0.005)
    return sorted(took)[int(len(took) * 0.99)]
