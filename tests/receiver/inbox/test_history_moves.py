"""Settled events are replaced by marks once the history has them, and can be written back as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from receiver.inbox import Outcome, keys
from receiver.inbox.administration import ReopenResult
from receiver.inbox.effect_store import EffectStore
from receiver.inbox.history_moves import HistoryMoves
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries.event_pages import WholeEvent
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import System

WINDOW = 3600.0


@pytest.fixture
def moves(system: System) -> HistoryMoves:
    return HistoryMoves(system.client)


def settle(system: System, delivery: Any = None, how: OutcomeKind = OutcomeKind.DONE) -> str:
    delivery = delivery or system.delivery()
    event_id = system.inbox.accept([delivery])[0].id
    (run,) = route(system.inbox, claim_one(system.inbox), GREET)
    system.inbox.finish([Outcome(run, how, {"result": "ok", "version": "1"})])
    return event_id


def move(moves: HistoryMoves, *, known_for: float = WINDOW) -> list[WholeEvent]:
    events = moves.settled(age=-1).events
    assert moves.replace_by_marks(events, known_for=known_for) == len(events)
    return events


def dump(client: Redis, event_id: str) -> dict[str, Any]:
    """Every key of an event, its scores, and the lifetime of each key."""
    found: dict[str, Any] = {
        "record": client.hgetall(keys.EVENT + event_id),
        "body": client.get(keys.BODY + event_id),
        "once": client.hgetall(keys.ONCE + event_id),
        "ix": client.zscore(keys.INDEX, event_id),
        "own ix": client.zscore(keys.index_of("north"), event_id),
        "expires": client.pttl(keys.EVENT + event_id) != -1,
    }
    return found


def test_a_whole_event_is_read_with_body_runs_and_once_marks(system: System, moves: HistoryMoves) -> None:
    event_id = settle(system)
    effects = EffectStore(system.client, keep=60, at_work=1)
    effects.begin(f"o:{event_id}", "shop.greet|mail", f"{event_id}|shop.greet", in_doubt="run")
    (one,) = moves.settled(age=-1).events
    assert one.id == event_id
    assert one.accepted_at == system.client.zscore(keys.INDEX, event_id)
    assert one.fields == system.client.hgetall(keys.EVENT + event_id)
    assert one.content == system.client.get(keys.BODY + event_id)
    assert list(one.once) == [b"shop.greet|mail"]


def test_only_settled_events_of_that_age_are_read(system: System, moves: HistoryMoves) -> None:
    settle(system, how=OutcomeKind.FAILED)
    settle(system)
    system.accept()
    assert moves.settled(age=60).events == []
    assert moves.waiting(age=60) == 0
    assert len(moves.settled(age=-1).events) == moves.waiting(age=-1) == 1


def test_pages_go_on_where_the_last_one_ended(system: System, moves: HistoryMoves) -> None:
    events = {settle(system) for _ in range(5)}
    for event_id in events:
        system.client.zadd(keys.DONE, {event_id: 1000})  # all in one millisecond
    found, page = [], moves.settled(age=0, many=2)
    while page.examined:
        found += [one.id for one in page.events]
        page = moves.settled(age=0, position=page.position, many=2)
    assert sorted(found) == sorted(events)


def test_a_page_has_only_as_many_bodies_as_fit_into_memory(
    system: System, moves: HistoryMoves, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [settle(system) for _ in range(3)]
    size = system.client.strlen(keys.BODY + events[0])
    for maximum, expected in ((10 * size, 3), (size + 10, 2), (1, 1)):
        monkeypatch.setattr("receiver.inbox.history_moves.MOVE_BYTES", maximum)
        page = moves.settled(age=-1)
        assert (len(page.events), page.examined) == (expected, expected)
        assert page.position[1] == page.events[-1].id


def test_a_moved_event_leaves_only_a_mark_that_expires(system: System, moves: HistoryMoves) -> None:
    event_id = settle(system)
    counters = system.ledger.counters()
    move(moves)
    left = [key for key in system.client.keys("sh:*") if event_id.encode() in key]
    assert left == [f"sh:e:{event_id}".encode()]
    assert 0 < system.client.pttl(keys.EVENT + event_id) <= WINDOW * 1000
    assert system.ledger.events() == system.ledger.events(store="north") == []
    assert system.client.zcard(keys.DONE) == 0
    assert system.ledger.counters() == counters
    assert system.ledger.event(event_id) is None
    assert system.ledger.as_event(event_id) is None


def test_no_mark_stays_after_the_window(system: System, moves: HistoryMoves) -> None:
    event_id = settle(system)
    system.client.zadd(keys.DONE, {event_id: 1000})
    move(moves)
    assert not system.client.exists(keys.EVENT + event_id)


def test_a_redelivery_of_a_moved_event_is_a_duplicate(system: System, moves: HistoryMoves) -> None:
    delivery = system.delivery()
    event_id = settle(system, delivery)
    move(moves)
    later = delivery.event.received_at + timedelta(seconds=1)
    again = replace(delivery, event=replace(delivery.event, received_at=later))
    assert system.inbox.accept([again])[0][:2] == ("duplicate", event_id)
    assert system.ledger.counters().total["duplicates"] == 1
    assert system.client.pttl(keys.EVENT + event_id) > 0, "a duplicate does not prolong the mark"
    assert not system.client.exists(keys.BODY + event_id)
    system.inbox.accept([again])
    assert system.ledger.counters().total["duplicates"] == 1, "the same delivery is counted once"
    assert system.identity_holds()


@pytest.mark.parametrize("change", ["reopened", "settled again", "another once mark", "a changed once mark"])
def test_an_event_that_changed_since_it_was_read_is_left(system: System, moves: HistoryMoves, change: str) -> None:
    event_id = settle(system)
    effects = EffectStore(system.client, keep=60, at_work=1)
    item, place = f"{event_id}|shop.greet", f"o:{event_id}"
    effects.begin(place, "shop.greet|mail", item, in_doubt="run")
    read = moves.settled(age=-1).events
    if change == "another once mark":
        effects.begin(place, "shop.greet|other", item, in_doubt="run")
    elif change == "a changed once mark":
        effects.end(place, "shop.greet|mail", item, b'"sent"')
    else:
        assert system.administration.reopen([item], {}) == [ReopenResult.READY]
        if change == "settled again":
            system.inbox.finish([Outcome(claim_one(system.inbox, "shop.greet"), "done", {})])
    before = dump(system.client, event_id)
    assert moves.replace_by_marks(read, known_for=WINDOW) == 0
    assert dump(system.client, event_id) == before
    assert system.identity_holds()


def test_marking_twice_does_nothing_the_second_time(system: System, moves: HistoryMoves) -> None:
    event_id = settle(system)
    events = move(moves)
    before = dump(system.client, event_id)
    assert moves.replace_by_marks(events, known_for=WINDOW) == 0
    assert dump(system.client, event_id) == before


def test_a_damaged_event_is_left_and_the_others_are_read(system: System, moves: HistoryMoves) -> None:
    record, body, good = settle(system), settle(system), settle(system)
    for key in (keys.EVENT + record, keys.BODY + body):
        system.client.delete(key)
        system.client.rpush(key, "damaged")
    page = moves.settled(age=-1)
    assert [one.id for one in page.events] == [good]
    assert page.examined == 3


def test_a_mark_is_no_event(system: System, moves: HistoryMoves, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may move an event after its id was read."""
    event_id = settle(system)
    move(moves)
    monkeypatch.setattr("receiver.inbox.history_moves.page_after", lambda *_, **__: [(event_id, 1.0)])
    assert moves.settled(age=0).events == []


def test_a_restored_event_is_as_it_was(system: System, moves: HistoryMoves) -> None:
    event_id = settle(system)
    effects = EffectStore(system.client, keep=60, at_work=1)
    effects.end(f"o:{event_id}", "shop.greet|mail", "", b'"sent"')
    before, counters = dump(system.client, event_id), system.ledger.counters()
    events = move(moves)
    assert moves.past([event_id, "unknown"]) == [event_id, "unknown"]
    assert moves.restore(events) == 1
    assert dump(system.client, event_id) == before
    assert system.client.zscore(keys.DONE, event_id)
    assert moves.past([event_id]) == []
    assert system.ledger.counters() == counters
    assert moves.restore(events) == 0, "it is here"
    assert dump(system.client, event_id) == before


def test_a_restored_event_without_its_mark_is_as_it_was(system: System, moves: HistoryMoves) -> None:
    event_id = settle(system)
    before = dump(system.client, event_id)
    events = move(moves, known_for=-10)
    assert not system.client.exists(keys.EVENT + event_id)
    assert moves.restore(events) == 1
    assert dump(system.client, event_id) == before


def test_a_restored_event_knows_the_duplicates_of_its_mark(system: System, moves: HistoryMoves) -> None:
    delivery = system.delivery()
    event_id = settle(system, delivery)
    events = move(moves)
    again = system.delivery(delivery_id=delivery.event.delivery_id)
    system.inbox.accept([again])
    moves.restore(events)
    assert system.client.hget(keys.EVENT + event_id, "repeated")
    system.inbox.accept([again])
    assert system.ledger.counters().total["duplicates"] == 1


def test_a_restored_event_is_replayed_and_settles_again(system: System, moves: HistoryMoves) -> None:
    event_id = settle(system)
    moves.restore(move(moves))
    assert system.administration.reopen([f"{event_id}|shop.greet"], {}) == [ReopenResult.READY]
    assert system.status(event_id) == "open"
    run = claim_one(system.inbox, "shop.greet")
    assert run.event.data == {"id": 1001, "total": "42.00"}
    system.inbox.finish([Outcome(run, "done", {})])
    assert system.ledger.counters().total["settled"] == 1
    assert len(move(moves)) == 1, "and is moved again"
    assert system.identity_holds()


def test_a_replay_of_an_event_that_was_just_moved_changes_nothing(system: System, moves: HistoryMoves) -> None:
    event_id = settle(system)
    move(moves)
    before = dump(system.client, event_id)
    assert system.administration.reopen([f"{event_id}|shop.greet"], {}, make=True) == [ReopenResult.GONE]
    assert dump(system.client, event_id) == before
    assert system.identity_holds()


def test_restore_writes_over_no_event_of_today(system: System, moves: HistoryMoves) -> None:
    """The same delivery came again after its mark had expired."""
    delivery = system.delivery()
    event_id = settle(system, delivery)
    events = move(moves, known_for=-10)
    assert system.inbox.accept([delivery])[0][:2] == ("accepted", event_id)
    before = dump(system.client, event_id)
    assert moves.restore(events) == 0
    assert dump(system.client, event_id) == before


def test_the_alias_of_a_reread_event_goes_and_comes_with_it(system: System, moves: HistoryMoves) -> None:
    event_id = settle(system)
    alias = keys.EVENT + "alias"
    system.client.hset(keys.EVENT + event_id, "alias", "alias")
    system.client.hset(alias, mapping={"alias_of": event_id, "digest": "0"})
    events = move(moves)
    assert system.client.pttl(alias) > 0
    moves.restore(events)
    assert system.client.pttl(alias) == -1
    move(moves, known_for=-10)
    assert not system.client.exists(alias)
    moves.restore(events)
    assert system.client.hget(alias, "alias_of") == event_id.encode()


def test_an_altered_redelivery_of_a_moved_event_is_still_a_duplicate(
    make_system: Callable[..., System],
) -> None:
    """With dedupe = "id", one with the same topic, resource and time, but another body, is the same event."""
    outcomes = []
    for moved in (False, True):
        system = make_system()
        system.client.flushdb()
        first = system.delivery(data={"id": 7, "total": "1"})
        assert first.event.occurred_at
        event_id = settle(system, first)
        if moved:
            move(HistoryMoves(system.client))
        answers = []
        for data in ({"id": 7, "total": "2"}, {"id": 8, "total": "2"}):
            delivery = system.delivery(data=data, delivery_id=first.event.delivery_id)
            delivery = replace(delivery, event=replace(delivery.event, occurred_at=first.event.occurred_at))
            answers.append(system.inbox.accept([delivery])[0].id == event_id)
        outcomes.append((answers, system.ledger.counters().total))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == [True, False]
