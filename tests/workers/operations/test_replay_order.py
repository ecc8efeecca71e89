"""Replays of a handler that is ordered: its runs join the order, also those from before it."""

from __future__ import annotations

import pytest

from receiver.inbox import Declaration, keys
from tests.support.harness import System
from workers.operations.all_events import AllEvents
from workers.operations.replay import Replay

PUSH = "shop.push"


@pytest.mark.parametrize(
    ("order_by", "key"), [("data.customer", "north:5"), ("store", "north:store"), ("resource", "north:order:7")]
)
def test_runs_that_a_replay_creates_are_ordered(system: System, order_by: str, key: str) -> None:
    details = {"order_by": order_by, "on_failure": "continue"}
    system.inbox.declare([Declaration(PUSH, "1", ("product.*",), ("*",), "default", details)])
    events = [system.accept(data={"id": 7, "customer": 5}) for _ in range(3)]
    claim = system.inbox.claim({"": 9}, capacity=9)
    system.client.set(keys.DECLARED_SINCE, 1)
    system.inbox.route([(one, ()) for one in claim.runs], claim.version)
    replay = Replay(system.inbox, AllEvents(system.client, None), rate=None, first=None)
    replay.items([keys.run_item(one, PUSH) for one in events], make=True)
    orders = [system.run_of(one, PUSH).order for one in events]
    assert [(one.key, one.place) for one in orders] == [(key, None), (key, 1), (key, 2)]
    runs = system.inbox.claim({PUSH: 9}, capacity=9).runs
    assert [run.stored.id for run in runs] == events
