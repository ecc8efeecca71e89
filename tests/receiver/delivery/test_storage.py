"""Where a delivery goes when the spool itself is full, spoilt, gone, or holds what the inbox will not take."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from receiver.config import Config
from receiver.contract.intake import Delivery
from receiver.delivery.storage import DeliveryStorage, NotStored, Stored
from receiver.inbox import Inbox, connect, keys
from receiver.spool import FILE, open_events
from receiver.spool.database import PAGE
from receiver.spool.spooled_events import SPARE_PAGES, VACUUM_PAGES
from tests.support.harness import System, eventually, free_port


def changed(config: Config, **receiver: Any) -> Config:
    return config.model_copy(update={"receiver": config.receiver.model_copy(update=receiver)})


def without_a_server(config: Config) -> DeliveryStorage:
    return DeliveryStorage(config, Inbox(connect(f"redis://127.0.0.1:{free_port()}", timeout=1.0)))


def with_one_store(config: Config) -> Config:
    return config.model_copy(update={"stores": {"north": config.stores["north"]}})


def padded(system: System, many: int, size: int = 50_000, store: str = "north") -> list[Delivery]:
    one = system.delivery(store=store)
    return [
        replace(one, event=replace(one.event, id=f"{one.event.id}-{number}", body=b"x" * size))
        for number in range(many)
    ]


def statuses(kept: list[Stored | NotStored]) -> list[str]:
    return [one.status if isinstance(one, Stored) else "nowhere" for one in kept]


# Full


def test_a_spool_that_was_full_takes_deliveries_again_once_it_is_drained(system: System) -> None:
    config = with_one_store(changed(system.config, spool_bytes=8 << 20))
    away = without_a_server(config)
    filled = [away.keep_all(padded(system, 20)) for _ in range(12)]
    assert statuses(filled[0]) == ["accepted"] * 20
    assert statuses(filled[-1]) == ["nowhere"] * 20
    here = DeliveryStorage(config, system.inbox)
    assert here.drain() == sum(statuses(some).count("accepted") for some in filled)
    assert statuses(away.keep_all(padded(system, 20))) == ["accepted"] * 20
    assert away.ready() == ("spool", 20)


def test_a_store_that_floods_the_spool_leaves_room_for_the_others(system: System) -> None:
    config = changed(system.config, spool_bytes=8 << 20)
    away = without_a_server(config)
    flood = [status for _ in range(12) for status in statuses(away.keep_all(padded(system, 20)))]
    assert set(flood) == {"accepted", "full"}
    held = open_events(config.data_dir).held()
    assert 0.4 < held["north"] / (8 << 20) < 0.5, "one store has half of it at the most"
    both = away.keep_all([*padded(system, 5), *padded(system, 5, store="south")])
    assert statuses(both) == ["full"] * 5 + ["accepted"] * 5
    assert away.ready() == ("spool", flood.count("accepted") + 5), "it is not shut"
    assert DeliveryStorage(config, system.inbox).drain() == flood.count("accepted") + 5
    assert open_events(config.data_dir).held() == {}
    assert statuses(away.keep_all(padded(system, 20))) == ["accepted"] * 20, "and it may come again"


def test_many_stores_that_flood_the_spool_share_it_and_leave_one_share(system: System, tmp_path: Path) -> None:
    (one,) = padded(system, 1, 1000)
    events, limit = open_events(tmp_path / "shared"), 1 << 20
    for number in range(900):
        store = f"s{number % 3}"
        more = replace(one, event=replace(one.event, id=str(number), store=store))
        if events.inside_shares([more], limit - events.used_bytes()) == [True]:
            events.add([more])
    shares = [octets / limit for octets in events.held().values()]
    print(f"\nthree stores hold {[f'{share:.2f}' for share in shares]} of the spool")
    assert [0.15 < share <= 0.26 for share in shares] == [True] * 3
    last = replace(one, event=replace(one.event, store="late"))
    assert events.inside_shares([last], limit - events.used_bytes()) == [True]


def test_what_a_store_holds_is_known_after_rows_were_changed_by_hand_or_come_again(system: System) -> None:
    first, second = padded(system, 2, 10)
    away = without_a_server(system.config)
    away.keep_all([first, second])
    before = open_events(system.config.data_dir).held()
    assert statuses(away.keep_all([first])) == ["duplicate"]
    assert open_events(system.config.data_dir).held() == before
    spoil(system, "UPDATE event SET body = ? WHERE id = ?", "x" * 5000, first.event.id)
    spoil(system, "DELETE FROM event WHERE id = ?", first.event.id)
    assert list(open_events(system.config.data_dir).held()) == ["north"]
    spoil(system, "DELETE FROM event")
    assert open_events(system.config.data_dir).held() == {}


def test_a_drained_spool_gives_its_room_back_to_the_disk(system: System) -> None:
    away = without_a_server(system.config)
    away.keep_all(padded(system, 400))
    file = system.config.data_dir / FILE
    here = DeliveryStorage(system.config, system.inbox)
    assert here.drain() == 400
    before = file.stat().st_size
    for _ in range(1 + before // (VACUUM_PAGES * PAGE)):
        here.look_round()
    size = file.stat().st_size
    print(f"\nafter 20 MB were spooled and drained the file had {before:,} bytes, and a look later {size:,}")
    assert before > 20_000_000
    assert size < (SPARE_PAGES + 100) * PAGE


def test_a_stores_quota_holds_in_the_spool_and_other_stores_go_on(system: System) -> None:
    config = system.config
    north = config.stores["north"].model_copy(update={"max_stored": 3})
    config = config.model_copy(update={"stores": {**config.stores, "north": north}})
    away = without_a_server(config)
    assert statuses(away.keep_all(padded(system, 2, 10))) == ["accepted"] * 2
    group = [*padded(system, 2, 10), system.delivery(store="south")]
    assert statuses(away.keep_all(group)) == ["accepted", "full", "accepted"]
    here = DeliveryStorage(config, system.inbox)
    assert here.drain() == 4
    assert statuses(here.keep_all([system.delivery()])) == ["full"]
    assert statuses(away.keep_all(padded(system, 4, 10))) == [*["accepted"] * 3, "full"]
    assert here.drain() == 0, "its quota is taken in the inbox"
    assert statuses(here.keep_all([system.delivery(), system.delivery(store="south")])) == ["full", "accepted"]


# Rows that cannot go


def test_a_row_the_inbox_refuses_keeps_its_place_and_holds_up_nobody(system: System) -> None:
    spoilt = replace(system.delivery(), content_hash="mark")
    system.client.rpush(f"{keys.PREFIX}d:north:mark", "not a string")
    others = [system.delivery(), system.delivery(store="south")]
    without_a_server(system.config).keep_all([spoilt, *others])
    here = DeliveryStorage(system.config, system.inbox)
    assert here.drain() == 2
    assert {event.id for event in system.ledger.events()} == {one.event.id for one in others}
    system.client.delete(f"{keys.PREFIX}d:north:mark")
    assert here.drain() == 1, "it was not dropped"


def test_a_row_that_cannot_be_read_stays_and_holds_up_nobody(system: System) -> None:
    first, *others = padded(system, 3, 10)
    without_a_server(system.config).keep_all([first, *others])
    spoil(system, "UPDATE event SET about = '{\"event\": 5}' WHERE id = ?", first.event.id)
    here = DeliveryStorage(system.config, system.inbox)
    assert here.drain() == 2
    assert {event.id for event in system.ledger.events()} == {one.event.id for one in others}
    (left,) = open_events(system.config.data_dir).oldest(10)
    assert (left.store, left.delivery) == ("north", None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_thread_outlives_whatever_goes_wrong_in_a_look(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    here = DeliveryStorage(system.config, system.inbox)
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        raise ZeroDivisionError if len(looks) < 3 else SystemExit  # which ends the thread

    monkeypatch.setattr(here, "look_round", look)
    here.start()
    eventually(lambda: len(looks) == 3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_while_the_server_is_away_the_spool_says_once_a_minute_that_it_waits(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = connect("redis://127.0.0.1:1", timeout=0.1)
    here = DeliveryStorage(system.config, Inbox(away))
    looks: list[int] = []
    look = here.look_round

    def counted() -> None:
        looks.append(1)
        if len(looks) > 3:
            raise SystemExit  # which ends the thread
        look()

    monkeypatch.setattr(here, "look_round", counted)
    with capture_logs() as said:
        here.start()
        eventually(lambda: len(looks) > 3)
    assert [line["event"] for line in said] == ["the spool waits"]


def spoil(system: System, statement: str, *values: str) -> None:
    db = sqlite3.connect(system.config.data_dir / FILE, isolation_level=None)
    db.execute(statement, values)
    db.close()


# The file


def test_a_spool_file_that_cannot_be_read_stops_nothing_the_inbox_can_take(system: System) -> None:
    (system.config.data_dir / FILE).write_bytes(b"not a database" * 1000)
    here = DeliveryStorage(system.config, system.inbox)
    (kept,) = here.keep_all([system.delivery()])
    assert isinstance(kept, Stored)
    assert (kept.status, kept.where) == ("accepted", "redis")
    assert (here.ready(), here.waiting_since()) == (("redis", None), None)
    away = without_a_server(system.config)
    assert statuses(away.keep_all([system.delivery()])) == ["nowhere"]
    assert away.ready() is None


def test_a_spool_file_that_was_deleted_is_made_anew_before_the_next_answer(system: System) -> None:
    away = without_a_server(system.config)
    away.keep_all([system.delivery()])
    for file in system.config.data_dir.glob(f"{FILE}*"):
        file.unlink()
    delivery = system.delivery()
    assert statuses(away.keep_all([delivery])) == ["accepted"]
    (row,) = open_events(system.config.data_dir).oldest(10)
    assert row.delivery == delivery
    assert DeliveryStorage(system.config, system.inbox).drain() == 1


def test_the_id_that_is_told_for_a_spooled_delivery_is_the_one_it_has_in_the_inbox(system: System) -> None:
    delivery = replace(system.delivery(), first_id="evt_first")
    (told,) = without_a_server(system.config).keep_all([delivery])
    assert isinstance(told, Stored)
    DeliveryStorage(system.config, system.inbox).drain()
    assert [event.id for event in system.ledger.events()] == [told.id]


def test_two_spools_of_one_host_are_told_apart(make_system: Callable[..., System]) -> None:
    first, second = make_system(), make_system()
    without_a_server(first.config).keep_all([first.delivery()])
    open_events(second.config.data_dir).close()
    DeliveryStorage(first.config, first.inbox)._publish()
    DeliveryStorage(second.config, second.inbox).look_round()
    found = first.ledger.spools()
    assert {name.partition(":")[2]: spool.count for name, spool in found.items()} == {
        str(first.config.data_dir): 1,
        str(second.config.data_dir): 0,
    }
