"""When a worker asks the inbox for work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from receiver.inbox import Declaration, Run
from receiver.inbox.model import StoredEvent
from receiver.inbox.outcomes import Ending, RunResult
from tests.support.harness import System
from workers.runtime.worker.exchange import InboxExchange


def run_of(key: str) -> Run:
    return Run("a|shop.push", "shop.push", "token", 0, 0, StoredEvent("a", [], b""), order_key=key)


@pytest.mark.parametrize(("key", "under_way", "expects"), [("7", "7", False), ("7", "8", True), ("", "", True)])
def test_work_is_expected_after_a_run_unless_another_of_its_order_key_is_under_way(
    system: System, key: str, under_way: str, expects: bool
) -> None:
    """It was not while any child process was in the middle of a batch, so its worker waited for a wake-up."""
    pool: Any = SimpleNamespace(in_batches=True, under_way=[run_of(under_way)])
    exchange = InboxExchange(system.inbox, pool, pool, pool, pool)
    exchange.declarations["shop.push"] = Declaration("shop.push", "1", ("*",), ("*",))
    exchange.expects_work = False
    exchange.record(run_of(key), RunResult(Ending.DONE, {}))
    assert exchange.expects_work == expects
