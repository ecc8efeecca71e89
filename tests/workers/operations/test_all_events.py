"""Events in Redis and in the history are read as one, and past events are replayed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from receiver.contract.errors import NotFound
from receiver.contract.event import Event
from receiver.inbox import Administration, Outcome, keys
from receiver.inbox.administration import ReopenResult
from receiver.inbox.effect_store import EffectStore
from receiver.inbox.history_moves import HistoryMoves
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries import events as queries
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import System
from workers.history.event_filter import EventFilter, where_of
from workers.history.past_events import HistoryDatabase, HistoryError, PastEvent
from workers.history.sqlite_history import SqliteHistory
from workers.operations import all_events
from workers.operations.all_events import AllEvents
from workers.operations.replay import Replay, Selection
from workers.runtime.history_mover import Mover


class Both:
    """A system with a history, and what its operator reads."""

    def __init__(self, system: System, history: HistoryDatabase) -> None:
        self.system, self.history = system, history
        self.events = AllEvents(system.client, history)
        history.check()

    def settle(self, how: OutcomeKind = OutcomeKind.DONE, result: Any = "ok", **event: Any) -> str:
        event_id = self.system.accept(**event)
        (run,) = route(self.system.inbox, claim_one(self.system.inbox), GREET)
        detail = {"version": "1", "error": result} if how is OutcomeKind.FAILED else {"version": "1", "result": result}
        self.system.inbox.finish([Outcome(run, how, detail)])
        return event_id

    def move(self) -> int:
        return Mover(self.system.client, self.history).move(age=-1, known_for=3600).moved

    def ids(self, status: str | None = None, limit: int = 50, **wanted: Any) -> list[str]:
        return [one.id for one in self.events.find(EventFilter(**wanted), status=status, limit=limit).events]


@pytest.fixture
def both(system: System, tmp_path: Path) -> Both:
    return Both(system, SqliteHistory(tmp_path / "history"))


class Unreachable(SqliteHistory):
    def _fails(self, *_: Any, **__: Any) -> Any:
        raise HistoryError("the database does not answer")

    write = find = events = newest_before = _fails


def test_the_list_has_both_in_order_of_acceptance_each_once(both: Both) -> None:
    expected = [both.settle() for _ in range(3)]
    both.move()
    expected += [both.settle(OutcomeKind.FAILED), both.settle(), both.system.accept()]
    both.history.write([PastEvent(*one) for one in HistoryMoves(both.system.client).settled(age=-1).events])
    assert both.ids() == expected[::-1]
    assert both.ids(limit=2) == expected[:-3:-1]
    assert both.ids(status="settled") == [expected[4], *expected[2::-1]]
    assert both.ids(status="failed") == [expected[3]]
    assert both.ids(status="open") == [expected[5]]


def test_the_list_goes_on_over_many_pages(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("receiver.inbox.queries.event_pages", "workers.operations.all_events"):
        monkeypatch.setattr(f"{module}.PAGE", 2)
    expected = []
    for _ in range(4):
        expected.append(both.settle())
        expected.append(both.settle(OutcomeKind.FAILED))
        both.move()
        expected.append(both.settle())
    assert both.ids() == expected[::-1]
    runs = both.events.runs(store=None, since=None, until=None)
    assert [one.id for one in runs] == expected


def test_an_event_that_moves_while_it_is_listed_is_listed_once(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are small, and between two of them everything is moved; then some are brought back."""
    for module in ("receiver.inbox.queries.event_pages", "workers.operations.all_events"):
        monkeypatch.setattr(f"{module}.PAGE", 2)
    expected = [both.settle() for _ in range(8)]
    find = both.history.find
    calls: list[int] = []

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            assert both.move()
        found = find(*arguments, **options)
        if len(calls) == 4:
            both.events.bring_back(expected)
        return found

    monkeypatch.setattr(both.history, "find", meanwhile)
    assert both.ids() == expected[::-1]
    assert len(calls) >= 4


def test_the_search_finds_in_both(both: Both) -> None:
    def settle_each() -> tuple[str, str, str]:
        return (
            both.settle(data={"id": 7, "customer": {"email": "a@b"}}, delivery_id="msg_seven"),
            both.settle(topic="product.updated"),
            both.settle(result={"booked": "Invoice 77"}, store="south"),
        )

    past = settle_each()
    both.move()
    system = both.system
    other = both.settle(data={"id": 7, "customer": {"email": "a@b"}})
    product = both.settle(topic="product.updated")
    south = both.settle(result={"booked": "Invoice 77"}, store="south")
    assert both.ids(where=(where_of("customer.email=a@b"),)) == [other, past[0]]
    assert both.ids(topic="product.*") == [product, past[1]]
    assert both.ids(store="south") == [south, past[2]]
    assert both.ids(result="invoice 77") == [south, past[2]]
    assert both.ids(handler="shop.greet", result="nothing") == []
    assert both.ids(handler="shop.other") == []
    assert both.ids(resource_id="7") == [other, past[0]]
    assert both.ids(delivery_id="msg_seven") == [past[0]]
    failed = both.settle(OutcomeKind.FAILED, result="Timeout at the ERP")
    assert both.ids(error="timeout") == [failed]
    since = int(system.client.zscore(keys.INDEX, product))
    assert both.ids(since=since) == [failed, south, product]
    assert both.ids(until=since) == [other, past[2], past[1], past[0]]


def test_an_event_is_found_by_its_delivery_id_at_any_age(
    make_system: Callable[..., System], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the newest 2,000 it was "no event": by the page about backups, one that the store should send again."""
    system = make_system()
    first, other = (system.accept(store=store, delivery_id="msg_first") for store in ("north", "south"))
    newer = [system.accept(data={"id": number}) for number in range(5)]
    monkeypatch.setattr(queries, "MAX_SCANNED", 3)
    monkeypatch.setattr(all_events, "MAX_SCANNED", 3)
    events = AllEvents(system.client, None)
    assert events.find_id("msg_first") == other, "the newest of them"
    assert first != other
    assert events.find_id("4") == newer[-1]
    with pytest.raises(NotFound, match="no event 'msg_unknown' among the newest 3 in Redis"):
        events.find_id("msg_unknown")


def test_one_event_is_shown_alike_before_and_after_it_was_moved(both: Both) -> None:
    event_id = both.settle(data={"id": 7}, delivery_id="msg_seven")
    EffectStore(both.system.client, keep=60, at_work=1).end(f"o:{event_id}", "shop.greet|mail", "", b'"sent"')

    def shown() -> list[Any]:
        events = both.events
        found = [events.find_id(which) for which in (event_id, "last", "msg_seven", "7", event_id[:4])]
        assert found == [event_id] * 5
        with pytest.raises(NotFound, match="no event 'unknown'"):
            events.find_id("unknown")
        handled = events.as_event(event_id)
        assert isinstance(handled, Event)
        return [
            events.event(event_id),
            handled,
            events.once_marks(event_id),
            events.runs_of(event_id),
            *both.ids(),
        ]

    before = shown()
    assert both.move() == 1
    assert shown() == before
    both.system.client.delete(keys.EVENT + event_id)  # its mark has expired
    assert shown() == before
    assert both.events.event("unknown") is both.events.as_event("unknown") is both.events.runs_of("unknown") is None


def test_the_newest_event_of_a_resource_may_be_in_either_place(both: Both) -> None:
    failed = both.settle(OutcomeKind.FAILED, data={"id": 7})
    assert both.events.find_id("7") == failed
    past = both.settle(data={"id": 7})
    both.move()
    assert both.events.find_id("7") == both.events.find_id("last") == past
    recent = both.settle(data={"id": 7})
    assert both.events.find_id("7") == both.events.find_id("last") == recent


def test_without_the_database_redis_is_shown(both: Both, tmp_path: Path) -> None:
    past = both.settle()
    both.move()
    recent = both.settle()
    events = AllEvents(both.system.client, Unreachable(tmp_path))
    listing = events.find(EventFilter())
    assert [one.id for one in listing.events] == [recent]
    assert listing.fault == "the database does not answer"
    assert events.find_id("last") == recent
    assert events.event(recent)
    for read in (events.event, events.as_event, events.runs_of):
        with pytest.raises(HistoryError):
            read(past)
    with pytest.raises(HistoryError):
        events.bring_back([past])


def test_a_search_that_is_out_of_time_says_how_far_it_came(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        both.settle()
    both.move()
    failed = both.settle(OutcomeKind.FAILED)
    monkeypatch.setattr(both.history, "candidates", lambda *_, **__: None)
    listing = both.events.find(EventFilter(error=""))
    assert [one.id for one in listing.events] == [failed]
    assert listing.looked_back_to


def replay_of(both: Both, **options: Any) -> Replay:
    return Replay(both.system.inbox, both.events, rate=None, first=None, **options)


def test_past_events_are_replayed_by_selection_and_by_id(both: Both) -> None:
    events = [both.settle() for _ in range(5)]
    both.move()
    counters = both.system.ledger.counters().total
    selection = Selection(handler="shop.greet")
    replay = replay_of(both)
    assert [item.partition("|")[0] for item, _ in replay.matching(selection)] == events
    replay.selection(selection)
    assert replay.counts == {(ReopenResult.READY, "shop.greet"): 5}
    assert both.system.ledger.counters().total == {**counters, "settled": 0, "open": 5}
    runs = both.system.inbox.claim({"shop.greet": 9}, capacity=9).runs
    assert sorted(run.event.id for run in runs) == sorted(events)
    assert {run.replays for run in runs} == {1}
    both.system.inbox.finish([Outcome(run, "done", {"result": "again"}) for run in runs])
    assert both.system.ledger.counters().total == counters
    assert both.ids() == events[::-1]
    assert both.move() == 5
    assert both.ids() == events[::-1]
    record = both.events.event(events[0])
    assert record
    assert record.runs[0].result == "again"


def test_an_effect_of_a_past_event_is_not_repeated_unless_asked(both: Both) -> None:
    event_id = both.settle()
    effects = EffectStore(both.system.client, keep=60, at_work=1)
    place, mark, item = f"o:{event_id}", "shop.greet|mail", f"{event_id}|shop.greet"
    effects.end(place, mark, item, b'"sent"')
    both.move()
    assert not both.system.client.exists(keys.ONCE + event_id)
    replay_of(both).items([item])
    assert effects.begin(place, mark, item, in_doubt="run") == ["done", b'"sent"']
    both.system.inbox.finish([Outcome(claim_one(both.system.inbox, "shop.greet"), "done", {})])
    both.move()
    replay_of(both, again=True).items([item])
    assert effects.begin(place, mark, item, in_doubt="run")[0] == "go"


def test_a_replay_of_past_events_that_was_interrupted_goes_on(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [both.settle() for _ in range(5)]
    both.move()
    selection = Selection(topic="*")
    replay = Replay(both.system.inbox, both.events, rate=None, first=2)
    replay.selection(selection)
    assert replay.replayed == 2
    assert [item.partition("|")[0] for item, _ in replay_of(both).matching(selection)] == events[2:]
    replay = replay_of(both)
    replay.selection(selection)
    assert replay.replayed == 3


@pytest.mark.parametrize("where", ["history", "redis"])
def test_a_mover_at_work_takes_no_event_that_is_replayed(
    both: Both, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """While memory is short, events are moved as soon as they have settled. These runs were said to be deleted."""
    events = [both.settle() for _ in range(3)]
    if where == "history":
        both.move()
    reopen = Administration.reopen
    moved = []

    def meanwhile(*arguments: Any, **options: Any) -> list[ReopenResult]:
        moved.append(both.move())
        return reopen(*arguments, **options)

    monkeypatch.setattr(Administration, "reopen", meanwhile)
    replay = replay_of(both)
    replay.selection(Selection(topic="*"))
    assert replay.counts == {(ReopenResult.READY, "shop.greet"): 3}
    assert moved == [0]
    runs = both.system.inbox.claim({"shop.greet": 9}, capacity=9).runs
    assert {run.event.id for run in runs} == set(events)
    both.system.inbox.finish([Outcome(run, "done", {}) for run in runs])
    assert both.move() == 3, "at once, since it was replayed"
    assert both.system.identity_holds()


def test_what_is_not_replayed_is_moved_again_at_once(both: Both) -> None:
    event_id = both.settle()
    both.system.client.delete(keys.BODY + event_id)
    both.move()
    with both.events.brought_back([event_id, event_id, "unknown"]):
        assert both.system.status(event_id) == "settled"
        assert both.system.client.pttl(f"sh:kept:{event_id}") > 60_000, "it is moved although its replay was killed"
        assert both.move() == 0
    assert both.move() == 1
    with both.events.brought_back([]), AllEvents(both.system.client, None).brought_back([event_id]):
        assert both.system.client.keys("sh:kept:*") == []


def test_a_past_event_without_its_body_cannot_be_replayed(both: Both) -> None:
    event_id = both.settle()
    both.system.client.delete(keys.BODY + event_id)
    both.move()
    replay = replay_of(both)
    replay.items([f"{event_id}|shop.greet"])
    assert replay.counts == {(ReopenResult.NO_BODY, "shop.greet"): 1}


def test_large_bodies_are_brought_back_in_steps(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.operations.all_events.RESTORE_BYTES", 1)
    events = [both.settle() for _ in range(3)]
    both.move()
    both.events.bring_back([*events, *events, "unknown"])
    assert HistoryMoves(both.system.client).past(events) == []
    assert orjson.loads(both.events.as_event(events[0]).body)["data"] == {"id": 1001, "total": "42.00"}  # type: ignore[union-attr]
