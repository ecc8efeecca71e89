"""Row 30: requests that cost the most for their size, many at once, beside a healthy sender."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.attackers import start_attack
from tests.support.bad_input import Corpus
from tests.support.harness import System, children_of
from tests.support.raw_http import chunked, exchange, request

LONGEST = 2.0
"""Seconds, on a machine that does other things. Each of these once made others wait for 14 to 32 s."""
COMMON = """
[stores.salla]
scheme = "salla"
signing_secrets = ["the secret of salla"]
domain = "1234"
"""
DEEP = b'{"type":"a.b","data":[' + b",".join([b"[" * 189 + b"]" * 189] * 2_460) + b"]}"
DENSE = b'{"type":"a.b","data":[%b]}' % b",".join([b'{"id":1,"q":[]}'] * 24_000)


def costly(kind: str, corpus: Corpus) -> bytes:
    if kind == "one-byte chunks":
        return request(headers=[("transfer-encoding", "chunked")], length=False) + chunked(b"x" * 9_900, 1)
    if kind == "deep unsigned bodies at the common URL":
        body = b'{"merchant":1234,"more":%b}' % DEEP
        return request("/webhooks", [("x-salla-signature", "0" * 64)], body)
    return corpus.signed(DEEP if kind == "deep signed bodies" else DENSE)


@pytest.mark.parametrize(
    ("kind", "count", "status"),
    [
        ("one-byte chunks", 250, "401"),
        ("deep signed bodies", 60, "200"),
        ("dense signed bodies", 40, "200"),
        ("deep unsigned bodies at the common URL", 60, "401"),
    ],
)
def test_row_30_costly_requests_delay_no_healthy_sender(system: System, kind: str, count: int, status: str) -> None:
    system.config_file.write_text(system.config_file.read_text() + COMMON)
    system.start("web")
    (worker,) = children_of(system.processes[0].pid)
    corpus = Corpus(system.config)
    sent, worst = costly(kind, corpus), 0.0
    attack = start_attack(system.port, count, sent)
    while attack.poll() is None:
        one = corpus.signed()
        began = time.monotonic()
        assert exchange(system.port, one).status == 200
        worst = max(worst, time.monotonic() - began)
    print(f"{count} x {kind} ({len(sent) // 1000} kB): a healthy sender waited {worst * 1000:.0f} ms at most")
    assert attack.stdout
    assert json.loads(attack.stdout.read()) == {status: count}
    assert worst < LONGEST
    assert children_of(system.processes[0].pid) == [worker], "no process was replaced"
    assert system.identity_holds()
