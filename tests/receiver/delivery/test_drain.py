"""The drain gives each store its turn, ends each pass, and moves each row once, also if rows cannot be deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis.exceptions import RedisError

from receiver.contract.intake import Delivery
from receiver.delivery.drain import SpoolDrain
from receiver.inbox.accept_batch import GROUP_SIZE
from receiver.spool import EVENTS_FILE, SpooledEvents, SpooledRow, open_events, set_aside
from tests.receiver.delivery.test_storage import drain_of, padded, without_redis
from tests.support.harness import System


def test_stores_take_turns_in_the_drain(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store waited in the spool for as long as a captured delivery of another one was sent again, after an outage."""
    many = 20
    storage, drain = without_redis(system.config), drain_of(system)
    storage.store_all(padded(system, 4 * GROUP_SIZE, 10))
    storage.store_all([system.delivery(store="south")])
    waits, rounds, move = list[int](), list[list[SpooledRow]](), drain._move

    def moved(store: str, rows: list[SpooledRow], blocked: set[str]) -> list[str]:
        """`north` gets as many deliveries as are moved, and `south` one after each of its own."""
        if store == "south":
            waits.append(len(rounds))
            storage.store_all([system.delivery(store="south")] if len(waits) < 5 else [])
        else:
            storage.store_all([row.delivery for row in (rounds or [[]])[-1] if row.delivery and len(rounds) < many])
            rounds.append(rows)
        return move(store, rows, blocked)

    monkeypatch.setattr(drain, "_move", moved)
    drain.drain()
    assert waits == [2, 4, 6, 8, 10], "after the oldest rows, and the turn of the other store"
    assert len(rounds) >= many
    assert open_events(system.config.data_dir).count() == 0
    assert len(system.ledger.events(store="south", limit=100)) == 5


def moves_of(drain: SpoolDrain, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """A list that gets the store and the ids of each call to the inbox."""
    moves, move = list[tuple[str, list[str]]](), drain._move

    def moved(store: str, rows: list[SpooledRow], blocked: set[str]) -> list[str]:
        moves.append((store, [row.id for row in rows]))
        return move(store, rows, blocked)

    monkeypatch.setattr(drain, "_move", moved)
    return moves


def test_a_store_that_has_rows_among_those_of_another_gets_whole_turns(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had one row in each group, and so no turn: it stayed behind the whole of the other."""
    storage, drain = without_redis(system.config), drain_of(system)
    of_north, of_south = padded(system, 8 * GROUP_SIZE, 10), padded(system, 9, 10, "south")
    for number, one in enumerate(of_south):
        storage.store_all([*of_north[number * GROUP_SIZE : (number + 1) * GROUP_SIZE - 1], one])
    moves = moves_of(drain, monkeypatch)
    drain.drain()
    assert [store for store, _ in moves].index("south") <= 2
    assert sum(len(ids) for store, ids in moves[:4] if store == "south") == len(of_south)


def test_rows_that_were_moved_in_a_turn_and_not_deleted_are_not_moved_again_in_the_pass(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat without an id may have become an event of its own: the resource had changed since."""
    storage, drain = without_redis(system.config), drain_of(system)
    storage.store_all([*padded(system, 3 * GROUP_SIZE, 10), *padded(system, 5, 10, "south")])
    moves, delete, deletes = moves_of(drain, monkeypatch), drain._delete, list[int]()

    def once(events: SpooledEvents, rows: list[SpooledRow]) -> bool:
        deletes.append(len(rows))
        return delete(events, rows) if len(deletes) == 1 else False

    monkeypatch.setattr(drain, "_delete", once)
    assert drain.drain() == 3 * GROUP_SIZE + 5
    sent = [id_ for _, ids in moves for id_ in ids]
    assert len(sent) == len(set(sent)) == 3 * GROUP_SIZE + 5
    monkeypatch.setattr(drain, "_delete", delete)
    assert drain.drain() == 0, "the next pass deletes them"
    assert open_events(system.config.data_dir).count() == 0


def test_a_row_the_inbox_refuses_does_not_block_its_store_for_the_rest_of_the_pass(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, drain = without_redis(system.config), drain_of(system)
    refused = replace(system.delivery(store="south"), content_hash="mark")
    system.damage_mark_of(refused)
    storage.store_all([*padded(system, GROUP_SIZE, 10), refused, *padded(system, 3, 10, "south")])
    moves = moves_of(drain, monkeypatch)
    late, move = padded(system, 2, 10, "south"), drain._move

    def and_then(store: str, rows: list[SpooledRow], blocked: set[str]) -> list[str]:
        """New deliveries of both stores arrive during the pass."""
        done = move(store, rows, blocked)
        if len(moves) == 2:
            storage.store_all([*padded(system, GROUP_SIZE, 10), *late])
        return done

    monkeypatch.setattr(drain, "_move", and_then)
    drain.drain()
    (left,) = open_events(system.config.data_dir).oldest(10)
    assert left.id == refused.event.id
    assert sum(refused.event.id in ids for _, ids in moves) == 1, "it is tried once in a pass"


def test_a_long_pass_ends_and_the_next_one_goes_on(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("receiver.delivery.drain.PASS_SECONDS", 0.0)
    storage, drain = without_redis(system.config), drain_of(system)
    storage.store_all(padded(system, 5 * GROUP_SIZE, 10))
    assert 0 < (first := drain.drain()) < 5 * GROUP_SIZE
    monkeypatch.setattr("receiver.delivery.drain.PASS_SECONDS", 10.0)
    assert first + drain.drain() == 5 * GROUP_SIZE


# Rows that are in the inbox and cannot be deleted


def keeps_rows(drain: SpoolDrain, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk."""
    monkeypatch.setattr(drain, "_delete", lambda events, rows: False)


def two_refused(system: System) -> tuple[list[Delivery], list[str]]:
    """Two deliveries, and the keys in Redis because of which they are refused."""
    found = [replace(system.delivery(), content_hash=f"mark {number}") for number in range(2)]
    return found, [system.damage_mark_of(one) for one in found]


def test_a_pass_goes_on_although_it_reads_for_long_what_the_last_one_has_moved(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, drain = without_redis(system.config), drain_of(system)
    storage.store_all(padded(system, 3 * GROUP_SIZE, 10))
    keeps_rows(drain, monkeypatch)
    assert drain.drain() == 3 * GROUP_SIZE
    storage.store_all(padded(system, 5, 10))
    monkeypatch.setattr("receiver.delivery.drain.PASS_SECONDS", 0.0)
    assert drain.drain() == 5


def test_one_refused_row_does_not_block_its_store_when_it_is_the_only_one_sent(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its group were moved in the last pass. So no later row of the store was moved."""
    storage, drain = without_redis(system.config), drain_of(system)
    (refused, _), _ = two_refused(system)
    storage.store_all([refused, *padded(system, GROUP_SIZE - 1, 10)])
    keeps_rows(drain, monkeypatch)
    assert drain.drain() == GROUP_SIZE - 1
    storage.store_all(padded(system, 5, 10))
    assert drain.drain() == 5


def test_rows_of_a_blocked_store_that_are_in_the_inbox_are_not_moved_again(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, drain = without_redis(system.config), drain_of(system)
    refused, marks = two_refused(system)
    storage.store_all([*refused, *padded(system, 2 * GROUP_SIZE, 10)])
    keeps_rows(drain, monkeypatch)
    assert drain.drain() == 2 * GROUP_SIZE
    moves = moves_of(drain, monkeypatch)
    assert drain.drain() == 0, "both are refused, and the store is blocked"
    system.client.delete(*marks)
    assert drain.drain() == 2
    assert moves == [("north", [one.event.id for one in refused])] * 2


@pytest.mark.parametrize("full_disk", [False, True])
def test_rows_that_were_moved_before_redis_failed_are_not_moved_again(
    system: System, monkeypatch: pytest.MonkeyPatch, full_disk: bool
) -> None:
    storage, drain = without_redis(system.config), drain_of(system)
    storage.store_all(padded(system, 3 * GROUP_SIZE, 10))
    if full_disk:
        keeps_rows(drain, monkeypatch)

    def fails() -> None:
        raise RedisError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(drain, "_publish", fails)
        with pytest.raises(RedisError, match="gone"):
            drain.drain()
    moved = system.ledger.counters().total["accepted"]
    assert moved == GROUP_SIZE
    assert drain.drain() == 2 * GROUP_SIZE
    total = system.ledger.counters().total
    assert (total["accepted"], total.get("duplicates", 0)) == (3 * GROUP_SIZE, 0)


def test_rows_of_a_damaged_file_that_were_moved_before_redis_failed_are_not_moved_again(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_redis(system.config).store_all(padded(system, 3 * GROUP_SIZE, 10))
    set_aside(system.config.data_dir / EVENTS_FILE)
    drain = drain_of(system)
    moves, publish = moves_of(drain, monkeypatch), drain._publish

    def fails() -> None:
        raise RedisError("gone")

    monkeypatch.setattr(drain, "_publish", fails)
    with pytest.raises(RedisError, match="gone"):
        drain.drain_damaged_files()
    monkeypatch.setattr(drain, "_publish", publish)
    drain.drain_damaged_files()
    sent = [id_ for _, ids in moves for id_ in ids]
    assert len(sent) == len(set(sent)) == 3 * GROUP_SIZE


def test_rows_that_are_in_the_inbox_hold_back_no_later_ones_behind_a_refused_row(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a pass began with the refused row, and was over when the moved ones had been read again."""
    storage, drain = without_redis(system.config), drain_of(system)
    (refused, _), _ = two_refused(system)
    storage.store_all([refused, *padded(system, 3 * GROUP_SIZE, 10)])
    keeps_rows(drain, monkeypatch)
    assert drain.drain() == 3 * GROUP_SIZE
    storage.store_all(padded(system, 5, 10))
    monkeypatch.setattr("receiver.delivery.drain.PASS_SECONDS", 0.0)
    assert drain.drain() == 5
