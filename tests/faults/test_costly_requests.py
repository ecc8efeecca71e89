"""Row 30: requests that cost the most for their size, many at once, beside a healthy sender."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from receiver.server.open_connections import MAX_HELD_BYTES
from tests.support.attackers import start_attack
from tests.support.bad_input import Corpus
from tests.support.harness import System, children_of
from tests.support.raw_http import chunked, exchange, request

LONGEST = 0.25
"""Seconds. Each of these once made others wait for 14 to 32 s."""
LONGEST_WHEN_BUSY = 4.0
"""Where other tests share the processors."""
MOST_WORK = 0.5
"""Seconds of the web process's own work that an answer waits for, on a processor of half the speed."""
COMMON = """
[stores.salla]
scheme = "salla"
signing_secrets = ["the secret of salla"]
domain = "1234"
"""
MANY_SECRETS = "".join(
    f"""
[stores.salla-{number}]
scheme = "salla"
signing_secrets = {json.dumps([f"secret {each} of store {number}" for each in range(16)])}
domain = "{1000 + number}"
"""
    for number in range(4)
)
REDACT = """
[redact]
paths = ["customer.email"]
"""
NUMBER = b"18446744073709551617"
DEEP = b'{"type":"a.b","data":[' + b",".join([b"[" * 189 + b"]" * 189] * 2_460) + b"]}"
DENSE = b'{"type":"a.b","data":[%b]}' % b",".join([b'{"id":1,"q":[]}'] * 24_000)


def wide(fields: int, topic: bytes = b'"a.b"', own_id: bytes = b"1") -> bytes:
    fillers = b",".join(b'"k%d":0' % at for at in range(fields))
    return b'{"type":%b,"data":{"id":%b,"customer":{"email":"a"},%b}}' % (topic, own_id, fillers)


def costly(kind: str, corpus: Corpus) -> bytes:
    if kind == "one-byte chunks":
        return request(headers=[("transfer-encoding", "chunked")], length=False) + chunked(b"x" * 9_900, 1)
    if kind == "deep unsigned bodies at the common URL":
        body = b'{"merchant":1234,"more":%b}' % DEEP
        return request("/webhooks", [("x-salla-signature", "0" * 64)], body)
    if kind == "store names at the common URL":
        body = b"{%b}" % b",".join(b'"merchant":"%d.example"' % number for number in range(2_200))
        return request("http://a/webhooks", [("x-salla-signature", "0" * 64)], body)
    if kind == "bodies that name four stores with 16 secrets each":
        names = b",".join(b'"merchant":%d' % number for number in range(1000, 1004))
        body = b'{%b,"more":"%b"}' % (names, b"x" * 990_000)
        return request("/webhooks", [("x-salla-signature", "0" * 64)], body)
    bodies = {
        "deep signed bodies": DEEP,
        "dense signed bodies": DENSE,
        "signed bodies with large numbers as ids": wide(40_000, NUMBER, NUMBER),
        "signed bodies to redact": wide(80_000),
    }
    return corpus.signed(bodies[kind])


MORE = {"bodies that name four stores with 16 secrets each": MANY_SECRETS, "signed bodies to redact": REDACT}


@pytest.mark.timed
@pytest.mark.parametrize("longest", [LONGEST_WHEN_BUSY, pytest.param(LONGEST, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "count", "status"),
    [
        ("one-byte chunks", 250, "401"),
        ("deep signed bodies", 120, "200"),
        ("dense signed bodies", 40, "200"),
        ("deep unsigned bodies at the common URL", 110, "401"),
        ("store names at the common URL", 400, "401"),
        ("bodies that name four stores with 16 secrets each", 20, "401"),
        ("signed bodies with large numbers as ids", 20, "200"),
        ("signed bodies to redact", 10, "200"),
    ],
)
def test_row_30_costly_requests_delay_no_healthy_sender(
    system: System, kind: str, count: int, status: str, longest: float
) -> None:
    system.config_file.write_text(system.config_file.read_text() + MORE.get(kind, COMMON))
    system.start("web")
    (worker,) = children_of(system.processes[0].pid)
    corpus = Corpus(system.config)
    sent, worst, most_work = costly(kind, corpus), 0.0, 0.0
    attack = start_attack(system.port, count, sent)
    while attack.poll() is None:
        one = corpus.signed()
        worked, began = work_of(worker), time.monotonic()
        assert exchange(system.port, one).status == 200
        worst, most_work = max(worst, time.monotonic() - began), max(most_work, work_of(worker) - worked)
    waited = f"a healthy sender waited {worst * 1000:.0f} ms at most, for {most_work * 1000:.0f} ms of work at most"
    print(f"{count} x {kind} ({len(sent) // 1000} kB): {waited}")
    assert attack.stdout
    statuses = Counter[str](json.loads(attack.stdout.read()))
    refused_for_bytes = statuses.pop("503", 0)
    assert statuses == {status: count - refused_for_bytes}
    assert refused_for_bytes <= (count / 2 if count * len(sent) > MAX_HELD_BYTES else 0)
    assert most_work < min(longest, MOST_WORK)
    assert worst < longest
    assert children_of(system.processes[0].pid) == [worker], "no process was replaced"
    assert system.identity_holds()


def work_of(pid: int) -> float:
    """Seconds that the threads of a process have been running."""
    nanoseconds = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a timer that has just ended
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9
