"""Counter buffer: a refusal is counted in the server, also if the server was away."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from receiver.inbox import counter_buffer, keys
from receiver.inbox.counter_buffer import CounterBuffer
from tests.support.harness import eventually, own_server


def test_refusals_of_an_outage_are_counted_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_buffer, "FLUSH_EVERY", 0.05)
    with own_server(tmp_path) as server:
        counts = CounterBuffer(server.client)
        server.stop()
        before = set(threading.enumerate())
        counts.add("north", "refused", "refused:no-signature")
        (first,) = set(threading.enumerate()) - before
        eventually(lambda: not first.is_alive(), what="the first flush has failed")
        server.start()
        counted = lambda: server.client.hget(keys.COUNTERS, "refused|north")  # noqa: E731
        assert eventually(counted, what="the refusal is counted without another one") == b"1"
