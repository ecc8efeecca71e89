"""Arrivals: nothing is missed and nothing returned twice, whatever is accepted, moved or replayed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from receiver.inbox import FailureQueries
from receiver.inbox.redis.connecting import server_ms
from tests.receiver.inbox.test_inbox import GREET
from tests.support.harness import System, eventually
from tests.workers.cli.test_command_rules import failed_event, refuse
from tests.workers.operations.test_all_events import Both, Unreachable, both
from workers.history.past_events import PastEvent
from workers.operations import arrivals
from workers.operations.all_events import AllEvents
from workers.operations.arrivals import EventArrivals, FailureArrivals, RefusalArrivals
from workers.operations.replay import Replay

__all__ = ["both"]


def all_new(reader: EventArrivals) -> list[str]:
    found = []
    while page := reader.new():
        found += [one.id for one in page]
    return found


def test_no_event_is_missed_while_events_settle_move_and_come_back(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "PAGE", 4)
    before = both.settle(data={"id": 0})
    reader = EventArrivals(both.events)
    accepted: list[str] = []
    found: list[str] = []
    for number in range(1, 41):
        accepted.append(both.settle(data={"id": number}))
        if number % 7 == 0:
            assert both.move() == 8 if number == 7 else 7
        if number % 13 == 0:
            found += all_new(reader)
    replay = Replay(both.system.inbox, both.events, rate=None, first=None)
    replay.items([f"{one}|{GREET[0]}" for one in (before, accepted[0], accepted[-7])])
    assert replay.replayed == 3
    found += all_new(reader)
    assert found == accepted
    assert all_new(reader) == []


def test_without_the_history_events_in_redis_are_returned(both: Both, tmp_path: Path) -> None:
    reader = EventArrivals(AllEvents(both.system.client, Unreachable(tmp_path)))
    event_id = both.system.accept()
    assert all_new(reader) == [event_id]
    assert reader.fault == "the database does not answer"


def test_only_events_of_a_store_are_returned(both: Both) -> None:
    reader = EventArrivals(both.events, store="south", content=True)
    both.system.accept()
    south = both.system.accept(store="south")
    (found,) = reader.new()
    assert (found.id, found.event.store, found.content is not None) == (south, "south", True)


def test_an_error_while_reading_loses_no_event(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = EventArrivals(AllEvents(system.client, None))
    ids = [system.accept() for _ in range(3)]

    def broken(self: AllEvents, **_: object) -> Iterator[PastEvent]:
        yield PastEvent(ids[0], 1, 0, {})
        raise RedisConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(AllEvents, "in_order", broken)
        with pytest.raises(RedisConnectionError):
            reader.new()
    assert all_new(reader) == ids


def test_each_failed_attempt_is_returned_once(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    failed_event(system, data={"id": 1})
    start = FailureQueries(system.client).groups().entries[0].last_at.timestamp() * 1000 + 1
    eventually(lambda: server_ms(system.client) > start, what="the next millisecond")
    reader = FailureArrivals(FailureQueries(system.client))
    assert reader.new() == []
    ids = []
    for number in range(2, 6):
        ids.append(failed_event(system, data={"id": number}))
        assert [one.event for one in reader.new()] == ids[-1:]
        assert reader.new() == []
    monkeypatch.setattr(arrivals, "server_ms", lambda client: server_ms(client) - 60_000)
    reader.new()  # the clock is set back: some may be repeated, and none is missed
    ids.append(failed_event(system, data={"id": 7}))
    assert ids[-1] in [one.event for one in reader.new()]


def test_refusals_are_returned_in_order_and_also_after_others_were_dropped(system: System) -> None:
    reader = RefusalArrivals(system.config.data_dir, store="north")
    assert reader.new() == []  # there is no file yet
    first = refuse(system, 2)
    refuse(system, 1, store="ghost")
    assert [one.id for one in reader.new()] == sorted(first)
    system.refusals().delete(first)
    assert [one.id for one in reader.new()] == []
    last = refuse(system, 1)
    assert [one.id for one in reader.new()] == last
    assert RefusalArrivals(system.config.data_dir).new() == []
