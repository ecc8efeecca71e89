"""When a worker asks the inbox for work."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from receiver.inbox import Claim, Declaration, Run
from receiver.inbox.model import StoredEvent
from receiver.inbox.outcomes import Ending, RunResult
from tests.support.harness import System
from workers.runtime.worker.exchange import SAME_KEYS_PAUSE, InboxExchange


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


@pytest.mark.parametrize(
    ("order_keys", "expects"),
    [(["7", "7"], False), (["7", "8", "7", "8"], False), (["7", "8", "7"], True), (["", ""], True), (["7"], True)],
)
def test_work_is_expected_after_a_claim_unless_it_brought_several_runs_of_each_order_key(
    system: System, order_keys: list[str], expects: bool
) -> None:
    """The events behind those are probably of the same keys, and their runs could not begin."""
    armed: list[bool] = []
    pool: Any = SimpleNamespace(idle=3, under_way=[], missing={}, in_batches=True)
    waiting: Any = FewWaitingRuns()
    wake_ups: Any = SimpleNamespace(arm=lambda: armed.append(True))
    exchange = InboxExchange(system.inbox, pool, waiting, pool, wake_ups)
    exchange._take(Claim("1", tuple(run_of(key) for key in order_keys), 0.0))
    assert exchange.expects_work == expects
    exchange.listen()
    assert not armed
    wake_up: Any = SimpleNamespace(read=lambda: b"wake-default", wake_up=b"wake-default")
    exchange.read_wake_up(wake_up)
    assert exchange.expects_work == expects, "most often its own claim has woken it"
    assert exchange.seconds_until_due() <= (0 if expects else SAME_KEYS_PAUSE)


class FewWaitingRuns:
    """As if a child process had taken each run at once."""

    guarded = False

    def __len__(self) -> int:
        return 0

    def add(self, runs: Iterable[Run]) -> None:
        assert list(runs)
