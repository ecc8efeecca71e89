"""The tail of events: each event that matches is returned once, also by a reader that goes on from a written place."""

from __future__ import annotations

import json
import random
import secrets
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from receiver.contract.errors import ConfigError
from receiver.inbox import Housekeeping, Outcome, keys
from receiver.inbox.outcomes import OutcomeKind
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import System
from tests.support.past_events import past_event
from tests.workers.operations.test_all_events import Both, Unreachable, both
from workers.history.event_filter import EventFilter, where_of
from workers.history.past_events import Found
from workers.history.sqlite_history import SqliteHistory
from workers.operations import arrivals
from workers.operations.all_events import AllEvents
from workers.operations.arrivals import EventTail, TailPlace, parse_place

__all__ = ["both"]


class Reader:
    """A browser: it has only the place that it got last, as text."""

    def __init__(self, events: AllEvents, wanted: EventFilter, status: str = "") -> None:
        self.events, self.wanted, self.status = events, wanted, status
        self.place = str(EventTail(events, wanted, status=status).place)
        self.found: list[str] = []

    def look(self) -> list[str]:
        tail = EventTail(self.events, self.wanted, status=self.status, place=parse_place(self.place))
        new = [one.id for one in tail.new()]
        self.place = str(tail.place)
        self.found += new
        return self.look() if tail.has_more else new


def end(system: System, how: OutcomeKind = OutcomeKind.DONE) -> str:
    """Route and end the oldest open event."""
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, how, {"version": "1", "error": "KeyError"})])
    return run.event.id


def test_an_event_is_returned_once_it_matches(both: Both) -> None:
    system = both.system
    both.settle(OutcomeKind.FAILED)
    early = system.accept(data={"id": 1})
    readers = {
        "all": Reader(both.events, EventFilter()),
        "failed": Reader(both.events, EventFilter(), "failed"),
        "open": Reader(both.events, EventFilter(), "open"),
        "error": Reader(both.events, EventFilter(error="keyerror")),
        "handler": Reader(both.events, EventFilter(handler="shop.greet")),
    }
    late = system.accept(data={"id": 2})
    assert {name: one.look() for name, one in readers.items()} == {
        "all": [late],
        "failed": [],
        "open": [late],
        "error": [],
        "handler": [],
    }
    assert end(system, OutcomeKind.FAILED) == early
    assert {name: one.look() for name, one in readers.items()} == {
        "all": [],
        "failed": [early],
        "open": [],
        "error": [early],
        "handler": [early],
    }
    end(system)
    assert {name: one.look() for name, one in readers.items() if name in ("failed", "handler")} == {
        "failed": [],
        "handler": [late],
    }
    assert parse_place(readers["failed"].place).open == (), "what has ended is not looked at again"


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_missed_or_repeated(both: Both, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(arrivals, "PAGE", 5)
    chance, system = random.Random(seed), both.system
    early = {system.accept(data={"id": number}): ("north", number) for number in range(6)}
    readers = {
        "all": Reader(both.events, EventFilter()),
        "south": Reader(both.events, EventFilter(store="south")),
        "where": Reader(both.events, EventFilter(where=[where_of("id>20")])),
        "settled": Reader(both.events, EventFilter(), "settled"),
        "failed": Reader(both.events, EventFilter(store="north"), "failed"),
    }
    later: dict[str, tuple[str, int]] = {}
    ended: dict[str, OutcomeKind] = {}
    for number in range(10, 160):
        match chance.choice(["accept", "accept", "end", "end", "move", "look"]):
            case "accept":
                store = chance.choice(["north", "south"])
                later[system.accept(store=store, data={"id": number})] = store, number
            case "end" if len(ended) < len(early | later):
                how = chance.choice([OutcomeKind.DONE, OutcomeKind.FAILED])
                ended[end(system, how)] = how
            case "move":
                both.move()
            case "look":
                Housekeeping(system.client).tick()
                for one in chance.sample(list(readers.values()), 2):
                    one.look()
    for one in readers.values():
        one.look()
    assert readers["all"].found == list(later), "in order of acceptance"
    assert readers["south"].found == [one for one, (store, _) in later.items() if store == "south"]
    assert readers["where"].found == [one for one, (_, number) in later.items() if number > 20]
    assert sorted(readers["settled"].found) == sorted(one for one, how in ended.items() if how is OutcomeKind.DONE)
    failed = [one for one, how in ended.items() if how is OutcomeKind.FAILED]
    assert sorted(readers["failed"].found) == sorted(one for one in failed if (early | later)[one][0] == "north")


def test_a_drained_event_is_returned_when_it_is_drained(system: System) -> None:
    reader = Reader(AllEvents(system.client, None), EventFilter())
    first = system.accept()
    assert reader.look() == [first]
    waited = system.delivery()
    event = replace(waited.event, received_at=waited.event.received_at - timedelta(hours=2))
    drained = system.inbox.accept([replace(waited, event=event)])[0].id
    assert reader.look() == [drained]
    assert reader.look() == []


def test_the_number_of_open_events_that_are_looked_at_is_limited(system: System) -> None:
    events = AllEvents(system.client, None)
    ids = [system.accept(data={"id": number}) for number in range(3)]
    tail = EventTail(events, EventFilter(), status="failed", most_open=2)
    assert not tail.looks_at_all
    assert len(tail.place.open) == 2
    place = parse_place(str(tail.place))
    assert place == tail.place
    assert not EventTail(events, EventFilter(), status="failed", place=place, most_open=2).looks_at_all
    tail = EventTail(events, EventFilter(), status="failed", place=TailPlace(0), most_open=2)
    assert tail.new() == []
    assert not tail.looks_at_all
    for _ in range(3):
        end(system, OutcomeKind.FAILED)
    assert [one.id for one in tail.new()] == ids[1:], "the newest are looked at"


def test_an_event_that_ends_at_the_beginning_is_returned_once(system: System) -> None:
    earlier = system.accept(data={"id": 1})
    end(system)
    open_ = system.accept(data={"id": 2})
    tail = EventTail(AllEvents(system.client, None), EventFilter(), status="settled")
    end(system)
    assert [one.id for one in tail.before(limit=10).events] == [earlier]
    assert [one.id for one in tail.new()] == [open_]


def test_an_error_loses_no_event(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    system.accept(data={"id": 1})
    tail = EventTail(AllEvents(system.client, None), EventFilter(), status="failed")
    system.accept(data={"id": 2})
    ids = [end(system, OutcomeKind.FAILED), end(system, OutcomeKind.FAILED)]
    with monkeypatch.context() as patched:
        patched.setattr(AllEvents, "in_order", lambda *_, **__: (_ for _ in ()).throw(RedisConnectionError))
        with pytest.raises(RedisConnectionError):
            tail.new()
    assert [one.id for one in tail.new()] == ids


def test_without_the_history_events_in_redis_are_returned(both: Both, tmp_path: Path) -> None:
    both.system.accept()
    tail = EventTail(AllEvents(both.system.client, Unreachable(tmp_path)), EventFilter(), status="failed")
    failed = end(both.system, OutcomeKind.FAILED)
    assert [one.id for one in tail.new()] == [failed]
    both.system.accept()
    tail.new()
    assert tail.fault == "the database does not answer"


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "1-g", "9" * 30, "1-" + "f" * 20, "1--2", "١"])  # noqa: RUF001
def test_a_forged_place_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a place in a tail of events"):
        parse_place(text)


class Measured(SqliteHistory):
    """Notes the largest amount of content that was in memory at once."""

    most = 0

    def find(self, *arguments: Any, **how: Any) -> Found:
        found = super().find(*arguments, **how)
        self.most = max(self.most, sum(len(one.content or b"") for one in found.events))
        return found


@pytest.fixture
def large(system: System, tmp_path: Path) -> Measured:
    """A history with 100 events of 100 KB."""
    (tmp_path / "large").mkdir(mode=0o700)
    history = Measured(tmp_path / "large")
    body = json.dumps({"data": {"total": "5", "x": secrets.token_hex(50_000)}}).encode()
    history.write([past_event(number, body=body) for number in range(100)])
    system.client.set(keys.ACCEPTED_UNTIL, past_event(100).accepted_at)
    return history


def test_a_place_of_long_ago_reads_few_bodies_at_once(system: System, large: Measured) -> None:
    wanted = EventFilter(where=(where_of("total>1"),))
    tail = EventTail(AllEvents(system.client, large), wanted, place=parse_place("1"))
    rows = tail.new()
    assert (70 < len(rows) < 100, tail.has_more) == (True, True), "8 MB for one look"
    rows += tail.new()
    assert [one.resource_id for one in rows] == [str(number) for number in range(100)]
    assert 100_000 < large.most < 2_500_000
