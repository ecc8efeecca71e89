"""Settled events are moved to the history and only then replaced; what cannot be moved stays and blocks nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from receiver.inbox import Outcome, keys
from receiver.inbox.effect_store import EffectStore
from receiver.inbox.history_moves import BEGINNING, HistoryMoves
from receiver.inbox.queries.event_pages import WholeEvent
from tests.receiver.inbox.test_history_moves import settle
from tests.receiver.inbox.test_inbox import claim_one
from tests.support.harness import Server, System
from workers.history.past_events import HistoryError, NotMoved, PastEvent
from workers.history.sqlite_history import SqliteHistory
from workers.runtime import history_mover
from workers.runtime.history_mover import LOOK_SECONDS, MAX_PAUSE, Load, Mover, Slice, pause_after, slice_at


class Watched(SqliteHistory):
    """A real history that a test can hold up, refuse or disturb."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.refused: set[str] = set()
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None
        self.check()

    def write(self, events: Sequence[PastEvent]) -> list[NotMoved]:
        self.before()
        answer = super().write([one for one in events if one.id not in self.refused])
        self.after()
        return answer + [NotMoved(one.id, "too deep") for one in events if one.id in self.refused]


@pytest.fixture
def history(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "history")


@pytest.fixture
def mover(system: System, history: Watched) -> Mover:
    return Mover(system.client, history)


def move(mover: Mover, many: int = 100) -> Slice:
    return mover.move(age=-1, known_for=3600, many=many)


def test_an_event_leaves_redis_only_after_the_history_has_committed_it(
    system: System, history: Watched, mover: Mover
) -> None:
    event_id = settle(system)
    record = system.ledger.event(event_id)
    both = []
    history.after = lambda: both.append((history.event(event_id) is not None, system.ledger.event(event_id) == record))
    assert move(mover) == Slice(1, 1)
    assert both == [(True, True)]
    assert system.ledger.event(event_id) is None
    past = history.event(event_id)
    assert past
    assert past.record == record


def test_without_the_database_redis_keeps_everything(system: System, history: Watched, mover: Mover) -> None:
    event_id = settle(system)

    def fail() -> None:
        raise HistoryError("the disk is full")

    history.before = fail
    with pytest.raises(HistoryError):
        move(mover)
    assert system.status(event_id) == "settled"
    history.before = lambda: None
    for _ in range(2):  # it goes on behind the slice that failed, and begins again after a while
        move(mover)
    mover._began -= history_mover.WALK_EVERY
    assert [move(mover), move(mover)] == [Slice(0, 0), Slice(1, 1)]


def test_events_that_cannot_be_stored_stay_and_block_no_others(system: System, history: Watched, mover: Mover) -> None:
    events = [settle(system) for _ in range(6)]
    history.refused = set(events[:3])
    moved = [move(mover, 2).moved for _ in range(4)]
    assert sum(moved) == 3
    assert {one for one in events if system.status(one) == "settled"} == history.refused
    mover._began -= history_mover.WALK_EVERY
    assert move(mover) == Slice(0, 0)
    assert mover.left == dict.fromkeys(history.refused, "too deep")
    history.refused = set()
    assert sum(move(mover, 2).moved for _ in range(2)) == 3
    mover._began -= history_mover.WALK_EVERY
    move(mover)
    assert mover.left == {}


def test_what_was_left_is_tried_again_although_new_events_settle_all_the_time(
    system: System, history: Watched, mover: Mover
) -> None:
    """A page was never empty. What was imported, was refused or had changed stayed in Redis for hours."""
    refused, imported = settle(system), ""
    history.refused = {refused}
    for _ in range(3):
        new = [settle(system) for _ in range(2)]
        assert move(mover, 3).moved == 2
        assert {system.status(one) for one in new} == {"unknown"}
        if not imported:
            imported = settle(system)
            system.client.zincrby(keys.DONE, -3_600_000, imported)
    assert [system.status(one) for one in (refused, imported)] == ["settled"] * 2
    mover._began -= history_mover.WALK_EVERY
    settle(system)
    assert move(mover, 3) == Slice(1, 1)
    assert mover.left == {refused: "too deep"}
    history.refused = set()
    assert move(mover, 3) == Slice(2, 2)
    assert [system.status(one) for one in (refused, imported)] == ["unknown"] * 2


def test_new_events_are_not_held_up_by_those_that_cannot_be_moved(
    system: System, history: Watched, mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a walk takes to come back to where the last one ended, it goes on there."""
    history.refused = {settle(system) for _ in range(6)}
    assert [move(mover, 2) for _ in range(3)] == [Slice(2, 0)] * 3
    monkeypatch.setattr(history_mover, "WALK_EVERY", 0.0)
    settle(system)
    assert move(mover, 2) == Slice(1, 1)
    monkeypatch.setattr(history_mover, "WALK_EVERY", 30.0)
    new = [settle(system) for _ in range(4)]
    for _ in range(3):
        mover._began -= 3600
        assert move(mover, 2) == Slice(2, 0)
    assert [move(mover, 2) for _ in range(2)] == [Slice(2, 2)] * 2
    assert {system.status(one) for one in new} == {"unknown"}


def test_an_event_that_is_replayed_while_it_is_written_is_moved_later_with_its_new_run(
    system: System, history: Watched, mover: Mover
) -> None:
    event_id = settle(system)

    def replay() -> None:
        history.after = lambda: None
        system.administration.reopen([f"{event_id}|shop.greet"], {})

    history.after = replay
    assert move(mover) == Slice(1, 0)
    assert system.status(event_id) == "open"
    system.inbox.finish([Outcome(claim_one(system.inbox, "shop.greet"), "done", {"result": "second"})])
    assert move(mover) == Slice(1, 1)
    past = history.event(event_id)
    assert past
    assert past.record.runs[0].result == "second"
    assert system.identity_holds()


def test_a_mover_that_hung_does_not_write_an_old_run_over_a_new_one(
    system: System, history: Watched, mover: Mover
) -> None:
    """It has read an event; meanwhile another one moves it, and it is replayed, settles and is moved again."""
    event_id = settle(system)
    moves, other = HistoryMoves(system.client), SqliteHistory(history.directory)

    def move_meanwhile() -> list[WholeEvent]:
        read = moves.settled(age=-1).events
        other.write([PastEvent(*one) for one in read])
        assert moves.replace_by_marks(read, known_for=3600) == 1
        return read

    def others_work() -> None:
        history.before = lambda: None
        moves.restore(move_meanwhile())
        system.administration.reopen([f"{event_id}|shop.greet"], {})
        system.inbox.finish([Outcome(claim_one(system.inbox, "shop.greet"), "done", {"result": "new"})])
        move_meanwhile()

    history.before = others_work
    assert move(mover) == Slice(1, 0)
    past = history.event(event_id)
    assert past
    assert past.record.runs[0].result == "new"


def test_a_replay_after_the_clock_was_set_back_is_not_lost(system: System, history: Watched, mover: Mover) -> None:
    """The history has it as settled later. Its new result was in neither place, and its effect was made again."""
    event_id, hour = settle(system), 3600
    system.client.zincrby(keys.DONE, hour * 1000, event_id)
    assert mover.move(age=-2 * hour, known_for=3600) == Slice(1, 1)
    past = history.event(event_id)
    assert past
    moves = HistoryMoves(system.client)
    moves.restore([past.whole])
    system.administration.reopen([f"{event_id}|shop.greet"], {})
    effects = EffectStore(system.client, keep=60, at_work=1)
    effects.end(f"o:{event_id}", "shop.greet|mail", "", b'"sent"')
    system.inbox.finish([Outcome(claim_one(system.inbox, "shop.greet"), "done", {"result": "new"})])
    mover._position = BEGINNING
    assert move(mover) == Slice(1, 0)
    record = system.ledger.event(event_id)
    assert record
    assert record.runs[0].result == "new"
    assert mover._refused == {}, "doctor has nothing to say"
    assert mover.move(age=-2 * hour, known_for=3600) == Slice(1, 1), "when the clock has reached that time"
    past = history.event(event_id)
    assert past
    assert past.record.runs[0].result == "new"
    assert list(past.once) == [b"shop.greet|mail"]
    assert system.identity_holds()


def test_a_young_event_stays(system: System, mover: Mover) -> None:
    settle(system)
    assert mover.move(age=3600, known_for=3600) == Slice(0, 0)


def test_pauses_grow_with_the_load_of_others() -> None:
    assert pause_after(0.5, 0.0) == pause_after(0.5, 0.39) == LOOK_SECONDS
    pauses = [pause_after(0.5, load) for load in (0.45, 0.5, 0.6, 0.7, 0.8)]
    assert pauses == sorted(pauses)
    assert pauses[0] > LOOK_SECONDS
    assert pauses[2] == pytest.approx(0.5, rel=0.2), "half of the time at half way"
    assert pauses[-1] == pytest.approx(0.5 * 19) == pause_after(0.5, 1.0)
    assert pause_after(30.0, 1.0) == MAX_PAUSE, "after a database that hung it was ten minutes, also at maxmemory"
    assert slice_at(0.3) > slice_at(0.4)


def test_the_load_is_that_of_the_server_too_and_only_since_the_start(
    own_redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_mover, "_processor_seconds", lambda: (0.0, 0.0))
    load = Load(own_redis.client)
    assert load.share() == 1.0, "it is not known yet"
    load.start()
    own_redis.client.eval("for _ = 1, 2e7 do end", 0)
    busy = load.share()
    load.start()
    time.sleep(0.2)  # the server has nothing to do
    assert load.share() < busy / 2 < 0.6
