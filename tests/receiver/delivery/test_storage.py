"""Where a delivery is stored, also if the spool is full, damaged, missing, or has rows that the inbox refuses."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, RedisError

from receiver import logs
from receiver.config import Config
from receiver.contract.intake import Delivery
from receiver.delivery.breaker import Breaker
from receiver.delivery.drain import SpoolDrain
from receiver.delivery.pipeline import open_storage
from receiver.delivery.storage import DeliveryStorage, Stored, StoreResults, spooling_stores
from receiver.inbox import Inbox, connect
from receiver.spool import (
    BUSY_SECONDS,
    EVENTS_FILE,
    SpooledEvents,
    keep,
    kept_files,
    open_events,
    set_aside,
)
from receiver.spool.database import PAGE, SPARE_PAGES, VACUUM_STEP
from tests.support.harness import Server, System, eventually, free_port
from tests.support.logged_lines import capture_logs


def changed(config: Config, **receiver: Any) -> Config:
    return config.model_copy(update={"receiver": config.receiver.model_copy(update=receiver)})


def without_redis(config: Config) -> DeliveryStorage:
    return open_storage(config, Inbox(connect(f"redis://127.0.0.1:{free_port()}", timeout=1.0)))[0]


def storage_of(system: System, config: Config | None = None) -> DeliveryStorage:
    return open_storage(config or system.config, system.inbox)[0]


def drain_of(system: System, config: Config | None = None) -> SpoolDrain:
    return open_storage(config or system.config, system.inbox)[1]


def with_one_store(config: Config) -> Config:
    return config.model_copy(update={"stores": {"north": config.stores["north"]}})


def padded(system: System, count: int, size: int = 50_000, store: str = "north") -> list[Delivery]:
    one = system.delivery(store=store)
    return [
        replace(one, event=replace(one.event, id=f"{one.event.id}-{number}", body=b"x" * size))
        for number in range(count)
    ]


def statuses(results: StoreResults) -> list[str]:
    return [one.status if isinstance(one, Stored) else "not stored" for one in results]


def places(results: StoreResults) -> list[str]:
    return [one.where if isinstance(one, Stored) else "nowhere" for one in results]


# The rule


@pytest.mark.parametrize(
    ("is_open", "memory_pressure", "spool_enabled", "expected"),
    [
        (False, False, True, {"north"}),
        (True, False, True, {"north", "south"}),
        (False, True, True, {"north", "south"}),
        (False, False, False, set()),
        (True, False, False, set()),
        (False, True, False, {"north", "south"}),
    ],
    ids=[
        "healthy",
        "breaker open",
        "memory pressure",
        "no spool",
        "no spool, breaker open",
        "no spool, memory pressure",
    ],
)
def test_deliveries_go_to_the_spool_by_one_rule(
    is_open: bool, memory_pressure: bool, spool_enabled: bool, expected: set[str]
) -> None:
    breaker = Breaker()
    breaker.memory_pressure = memory_pressure
    if is_open:
        breaker.trip()
    stores = {"north", "south"}
    found = spooling_stores(stores, breaker, spool_enabled=spool_enabled, has_rows=lambda store: store == "north")
    assert found == expected


def test_the_breaker_closes_when_the_server_answers(system: System) -> None:
    breaker = Breaker()
    breaker.trip()
    assert breaker.is_open
    breaker.close()
    assert not breaker.is_open


# Full


def test_a_spool_that_was_full_takes_deliveries_again_once_it_is_drained(system: System) -> None:
    config = with_one_store(changed(system.config, spool_bytes=8 << 20))
    storage = without_redis(config)
    filled = [storage.store_all(padded(system, 20)) for _ in range(12)]
    assert statuses(filled[0]) == ["accepted"] * 20
    assert statuses(filled[-1]) == ["not stored"] * 20
    assert drain_of(system, config).drain() == sum(statuses(some).count("accepted") for some in filled)
    assert statuses(storage.store_all(padded(system, 20))) == ["accepted"] * 20
    assert readiness(storage) == ("spool", 20)


def test_a_store_that_floods_the_spool_leaves_space_for_other_stores(system: System) -> None:
    config = changed(system.config, spool_bytes=8 << 20)
    storage = without_redis(config)
    flood = [status for _ in range(12) for status in statuses(storage.store_all(padded(system, 20)))]
    assert set(flood) == {"accepted", "full"}
    used = open_events(config.data_dir).bytes_by_store()
    assert 0.4 < used["north"] / (8 << 20) < 0.5, "one store uses at most half of the spool"
    both = storage.store_all([*padded(system, 5), *padded(system, 5, store="south")])
    assert statuses(both) == ["full"] * 5 + ["accepted"] * 5
    assert readiness(storage) == ("spool", flood.count("accepted") + 5), "the spool still accepts deliveries"
    assert drain_of(system, config).drain() == flood.count("accepted") + 5
    assert open_events(config.data_dir).bytes_by_store() == {}
    assert statuses(storage.store_all(padded(system, 20))) == ["accepted"] * 20, "the store can spool again"


def test_a_store_whose_share_of_the_spool_is_full_uses_the_server_once_it_is_back(system: System) -> None:
    """Its deliveries were answered 503 until its rows were drained."""
    config = changed(system.config, spool_bytes=8 << 20)
    away, back = without_redis(config), storage_of(system, config)
    while "full" not in statuses(away.store_all(padded(system, 20))):
        pass
    (stored,) = back.store_all(padded(system, 1))
    assert isinstance(stored, Stored)
    assert (stored.status, stored.where) == ("accepted", "redis")


def test_stores_that_flood_the_spool_share_it_and_leave_one_share_free(system: System, tmp_path: Path) -> None:
    (one,) = padded(system, 1, 1000)
    events, limit = open_events(tmp_path / "shared"), 1 << 20
    for number in range(900):
        store = f"s{number % 3}"
        more = replace(one, event=replace(one.event, id=str(number), store=store))
        if events.within_limits([more], limit - events.used_bytes(), {}) == [True]:
            events.add([more])
    shares = [octets / limit for octets in events.bytes_by_store().values()]
    print(f"\nthree stores hold {[f'{share:.2f}' for share in shares]} of the spool")
    assert [0.15 < share <= 0.26 for share in shares] == [True] * 3
    last = replace(one, event=replace(one.event, store="late"))
    assert events.within_limits([last], limit - events.used_bytes(), {}) == [True]


def test_the_bytes_of_a_store_stay_correct_after_manual_changes_and_duplicates(system: System) -> None:
    first, second = padded(system, 2, 10)
    storage = without_redis(system.config)
    storage.store_all([first, second])
    before = open_events(system.config.data_dir).bytes_by_store()
    assert statuses(storage.store_all([first])) == ["duplicate"]
    assert open_events(system.config.data_dir).bytes_by_store() == before
    damage(system, "UPDATE event SET body = ? WHERE id = ?", "x" * 5000, first.event.id)
    damage(system, "DELETE FROM event WHERE id = ?", first.event.id)
    assert list(open_events(system.config.data_dir).bytes_by_store()) == ["north"]
    damage(system, "DELETE FROM event")
    assert open_events(system.config.data_dir).bytes_by_store() == {}


def test_a_drained_spool_returns_its_space_to_the_disk(system: System) -> None:
    storage = without_redis(system.config)
    storage.store_all(padded(system, 400))
    file = system.config.data_dir / EVENTS_FILE
    drain = drain_of(system)
    assert drain.drain() == 400
    before = file.stat().st_size
    assert before > 20_000_000
    eventually(lambda: drain.run_once() or file.stat().st_size < (SPARE_PAGES + 100) * PAGE, what="it is shorter")


def test_space_is_returned_in_small_transactions_so_that_others_can_write(system: System) -> None:
    """With 210,000 free pages and 600 rows left, one transaction took up to 8 s, and all deliveries waited for it."""
    with closing(open_events(system.config.data_dir)) as events:
        events.add(padded(system, 400))
        while events.count() > 50:
            events.delete(events.oldest(50))
        statements = list[str]()
        events._db.set_trace_callback(statements.append)
        events.release_free_pages()
    steps = [one for one in statements if "incremental_vacuum" in one]
    assert steps[0] == f"PRAGMA incremental_vacuum({VACUUM_STEP})"
    assert len(steps) > 5


def test_a_stores_quota_applies_in_the_spool_and_not_to_other_stores(system: System) -> None:
    config = system.config
    north = config.stores["north"].model_copy(update={"max_stored": 3})
    config = config.model_copy(update={"stores": {**config.stores, "north": north}})
    storage = without_redis(config)
    assert statuses(storage.store_all(padded(system, 2, 10))) == ["accepted"] * 2
    group = [*padded(system, 2, 10), system.delivery(store="south")]
    assert statuses(storage.store_all(group)) == ["accepted", "full", "accepted"]
    here, drain = open_storage(config, system.inbox)
    assert drain.drain() == 4
    assert statuses(here.store_all([system.delivery()])) == ["full"]
    assert statuses(storage.store_all(padded(system, 4, 10))) == [*["accepted"] * 3, "full"]
    assert drain.drain() == 0, "the store's quota is used up in the inbox"
    assert statuses(here.store_all([system.delivery(), system.delivery(store="south")])) == ["full", "accepted"]


# Rows that cannot be moved


def test_a_row_the_inbox_refuses_stays_and_delays_no_other_row(system: System) -> None:
    refused = replace(system.delivery(), content_hash="mark")
    mark = system.damage_mark_of(refused)
    others = [system.delivery(), system.delivery(store="south")]
    without_redis(system.config).store_all([refused, *others])
    drain = drain_of(system)
    assert drain.drain() == 2
    assert {event.id for event in system.ledger.events()} == {one.event.id for one in others}
    system.client.delete(mark)
    assert drain.drain() == 1, "the row was not deleted"


def test_a_row_that_cannot_be_read_stays_and_delays_no_other_row(system: System) -> None:
    first, *others = padded(system, 3, 10)
    without_redis(system.config).store_all([first, *others])
    damage(system, "UPDATE event SET about = '{\"event\": 5}' WHERE id = ?", first.event.id)
    assert drain_of(system).drain() == 2
    assert {event.id for event in system.ledger.events()} == {one.event.id for one in others}
    (left,) = open_events(system.config.data_dir).oldest(10)
    assert (left.store, left.delivery) == ("north", None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_drain_thread_survives_every_error(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    drain = drain_of(system)
    runs: list[int] = []

    def run() -> None:
        runs.append(1)
        raise ZeroDivisionError if len(runs) < 3 else SystemExit  # which ends the thread

    monkeypatch.setattr(drain, "run_once", run)
    drain.start()
    eventually(lambda: len(runs) == 3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_while_redis_is_unreachable_the_drain_logs_once_a_minute(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, drain = open_storage(system.config, Inbox(connect("redis://127.0.0.1:1", timeout=0.1)))
    runs: list[int] = []
    run = drain.run_once

    def counted() -> None:
        runs.append(1)
        if len(runs) > 3:
            raise SystemExit  # which ends the thread
        run()

    monkeypatch.setattr(drain, "run_once", counted)
    with capture_logs() as lines:
        drain.start()
        eventually(lambda: len(runs) > 3)
    assert [line["event"] for line in lines] == ["the inbox cannot take deliveries", "the spool cannot be drained now"]


def test_an_outage_of_the_inbox_is_logged_each_minute_while_its_deliveries_go_straight_to_the_spool(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = float(int(time.monotonic()))  # whole seconds are added up exactly
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    storage, drain = open_storage(system.config, Inbox(connect(f"redis://127.0.0.1:{free_port()}", timeout=0.1)))
    with capture_logs() as lines:
        for _ in range(25):
            assert statuses(storage.store_all([system.delivery()])) == ["accepted"]
            with pytest.raises(RedisError):
                drain.run_once()
            now += 5.0
    found = [line for line in lines if line["event"] == "the inbox cannot take deliveries"]
    assert [(line.get("seconds"), line["spool"]) for line in found] == [(None, "on"), (60, "on"), (120, "on")]


def test_an_outage_of_the_inbox_lasts_while_the_server_is_nearly_full(
    system: System, own_redis: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes deliveries again, and none is sent to it."""
    monkeypatch.setattr("receiver.delivery.drain.QUIET_SECONDS", 0.0)
    _, drain = open_storage(system.config, Inbox(own_redis.client))
    own_redis.kill()
    with capture_logs() as lines:
        with pytest.raises(RedisError):
            drain.run_once()
        own_redis.start()
        for number in range(200):  # small ones: the buffer of a large one is memory, too, and freed soon
            own_redis.client.set(f"ballast{number}", b"x" * 100_000)
        own_redis.client.config_set("maxmemory", int(own_redis.client.info("memory")["used_memory"] * 1.1))
        drain.run_once()
        assert "the inbox takes deliveries again" not in [line["event"] for line in lines]
        own_redis.client.config_set("maxmemory", 0)
        drain.run_once()
    assert lines[-1]["event"] == "the inbox takes deliveries again"


def test_a_server_that_answers_with_a_refusal_to_be_examined_may_still_take_deliveries(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, drain = open_storage(system.config, system.inbox)

    def refuse(*_: object) -> None:
        raise NoPermissionError("this user has no permissions to run the 'info' command")

    monkeypatch.setattr(Breaker, "examine", refuse)
    with capture_logs() as lines, pytest.raises(NoPermissionError):
        drain.run_once()
    assert lines == []


def readiness(storage: DeliveryStorage) -> tuple[str, int | None]:
    ready = storage.readiness()
    assert ready is not None
    return ready.stores_in, ready.spooled


def damage(system: System, statement: str, *values: str) -> None:
    db = sqlite3.connect(system.config.data_dir / EVENTS_FILE, isolation_level=None)
    db.execute(statement, values)
    db.close()


# The file


def test_an_unreadable_spool_file_does_not_stop_the_inbox(system: System) -> None:
    (system.config.data_dir / EVENTS_FILE).write_bytes(b"not a database" * 1000)
    here = storage_of(system)
    (stored,) = here.store_all([system.delivery()])
    assert isinstance(stored, Stored)
    assert (stored.status, stored.where) == ("accepted", "redis")
    assert here.readiness() == ("redis", None, None)
    storage = without_redis(system.config)
    assert statuses(storage.store_all([system.delivery()])) == ["accepted"], "in a new file"
    assert readiness(storage) == ("spool", None)


def test_a_damaged_body_is_never_handed_to_a_handler(system: System) -> None:
    """SQLite has no checksums of its pages."""
    whole, damaged = padded(system, 2)
    without_redis(system.config).store_all([whole, damaged])
    damage(system, "UPDATE event SET body = zeroblob(length(body)) WHERE id = ?", damaged.event.id)
    assert drain_of(system).drain() == 1
    assert [event.id for event in system.ledger.events()] == [whole.event.id]


def test_rows_of_a_damaged_file_wait_there_while_the_inbox_does_not_take_them(system: System) -> None:
    config = system.config
    north = config.stores["north"].model_copy(update={"max_stored": 3})
    limited = config.model_copy(update={"stores": {**config.stores, "north": north}})
    without_redis(config).store_all([*padded(system, 5, 10), system.delivery(store="south")])
    set_aside(config.data_dir / EVENTS_FILE)
    drain = drain_of(system, limited)
    drain.run_once()
    drain.run_once()
    assert system.ledger.counters().total["accepted"] == 4
    assert kept_files(config.data_dir) == []
    drain_of(system).run_once()
    total = system.ledger.counters().total
    assert (total["accepted"], total["duplicates"]) == (6, 0)
    assert len(kept_files(config.data_dir)) == 1


def test_a_row_in_a_file_that_is_set_aside_and_drained_meanwhile_is_not_answered_2xx(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, file, add = without_redis(system.config), system.config.data_dir / EVENTS_FILE, SpooledEvents.add
    storage.store_all([system.delivery()])
    monkeypatch.setattr(SpooledEvents, "add", lambda *given, **wait: (add(*given, **wait), keep(file))[0])
    assert statuses(storage.store_all([system.delivery()])) == ["not stored"]
    file.write_bytes(kept_files(system.config.data_dir)[0].read_bytes())  # the store still has a row
    assert places(storage_of(system).store_all([system.delivery()])) == ["redis"]


def test_a_process_that_hangs_while_it_writes_delays_the_others_once(system: System) -> None:
    """Each group waited for its lock for 5 s, also where Redis was there to take it then."""
    storage = storage_of(system)
    without_redis(system.config).store_all([system.delivery()])  # the store has a row, so that the spool is next
    with closing(sqlite3.connect(system.config.data_dir / EVENTS_FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert places(storage.store_all([system.delivery()])) == ["redis"]
        began = time.monotonic()
        assert places(storage.store_all([system.delivery()])) == ["redis"]
        assert time.monotonic() - began < BUSY_SECONDS / 2
        other.execute("ROLLBACK")
    assert places(storage.store_all([system.delivery()])) == ["spool"]
    assert storage._spool._wait_seconds == BUSY_SECONDS


def test_a_deleted_spool_file_is_created_again_before_the_next_answer(system: System) -> None:
    storage = without_redis(system.config)
    storage.store_all([system.delivery()])
    for file in system.config.data_dir.glob(f"{EVENTS_FILE}*"):
        file.unlink()
    delivery = system.delivery()
    assert statuses(storage.store_all([delivery])) == ["accepted"]
    (row,) = open_events(system.config.data_dir).oldest(10)
    assert row.delivery == delivery
    assert drain_of(system).drain() == 1


def test_the_ids_answered_for_two_bodies_under_one_delivery_id_lead_to_their_events(system: System) -> None:
    given = [system.delivery(data={"n": number}) for number in range(2)]
    both = [replace(one, first_id="evt_first", others_count=False) for one in given]
    answered = without_redis(system.config).store_all([*both, both[0]])
    assert statuses(answered) == ["accepted", "accepted", "duplicate"]
    drain_of(system).drain()
    assert len(system.ledger.events()) == 2
    for told, event_id in zip(answered, ("evt_first", both[1].event.id, "evt_first"), strict=True):
        assert isinstance(told, Stored)
        assert json.loads(system.run_cli("events", "show", told.id, "--json").stdout)["id"] == event_id


def test_two_bodies_under_an_id_that_counts_alone_are_not_lost_in_the_spool(system: System) -> None:
    first, second = (system.delivery(delivery_id="d1", data={"id": number}) for number in (1, 2))
    assert (first.event.id, first.first_id) == (second.event.id, "")
    answered = without_redis(system.config).store_all([first, second, first, second])
    assert statuses(answered) == ["accepted", "accepted", "duplicate", "duplicate"]
    drain_of(system).drain()
    assert sorted(one.resource_id for one in system.ledger.events()) == ["1", "2"]
    told = [one.id for one in answered if isinstance(one, Stored)]
    assert [system.ledger.event(system.ledger.find_id(one)).summary.resource_id for one in told] == ["1", "2", "1", "2"]
    assert statuses(storage_of(system).store_all([first, second])) == ["duplicate", "duplicate"]


def test_two_spools_of_one_host_are_published_separately(make_system: Callable[..., System]) -> None:
    first, second = make_system(), make_system()
    without_redis(first.config).store_all([first.delivery()])
    open_events(second.config.data_dir).close()
    drain_of(first)._publish()
    drain_of(second).run_once()
    found = first.ledger.spools()
    assert {name.partition(":")[2]: spool.count for name, spool in found.items()} == {
        str(first.config.data_dir): 1,
        str(second.config.data_dir): 0,
    }


# Duplicates that the spool finds


def test_a_duplicate_in_the_spool_is_counted_once_even_if_a_drain_dies(system: System) -> None:
    storage, drain = without_redis(system.config), drain_of(system)
    delivery = system.delivery()
    assert statuses(storage.store_all([delivery, delivery])) == ["accepted", "duplicate"]
    system.inbox.accept([delivery])  # and here a drain dies, before it deletes the row
    assert statuses(storage.store_all([delivery, system.delivery(store="south")])) == ["duplicate", "accepted"]
    drain.run_once()
    drain._counters.flush()
    drain.run_once()
    drain._counters.flush()
    eventually(lambda: system.ledger.counters().total["duplicates"], what="the buffer's own thread has written, too")
    counted = system.ledger.counters()
    assert (counted.total["accepted"], counted.total["duplicates"]) == (2, 2)
    assert counted.stores["north"]["duplicates"] == 2


def test_the_inbox_judges_which_spooled_deliveries_without_an_id_are_repeats(system: System) -> None:
    now = datetime.now(UTC).replace(microsecond=0)

    bodies = {store: system.delivery(store=store) for store in ("north", "south")}

    def bare(seconds: float, store: str = "north") -> Delivery:
        one, moment = bodies[store], now + timedelta(seconds=seconds)
        event = replace(one.event, id=secrets.token_hex(8), received_at=moment)
        return replace(one, content_hash="m", event=event)

    first, again, elsewhere = bare(0), bare(59), bare(0, "south")
    later, earlier = bare(60), bare(-59)
    # each by a process of its own, since one has two rows at most
    for one in (first, again, elsewhere, later, earlier):
        assert statuses(without_redis(system.config).store_all([one])) == ["accepted"]
    drain_of(system).drain()
    assert {event.id for event in system.ledger.events()} == {one.event.id for one in (first, elsewhere, later)}


@pytest.mark.parametrize(
    "since",
    ["UPDATE event SET uptime = uptime - 61000", "UPDATE event SET boot = 'an earlier one'"],
    ids=["a minute", "a reboot"],
)
def test_a_row_is_no_repeat_if_only_the_hosts_clock_says_so_because_it_was_set_back(system: System, since: str) -> None:
    one, ids = system.delivery(), []
    for number in range(3):
        ids.append(f"bare{number}")
        bare = replace(one, content_hash="m", event=replace(one.event, id=ids[-1]))
        assert statuses(without_redis(system.config).store_all([bare])) == ["accepted"]
        with closing(sqlite3.connect(system.config.data_dir / EVENTS_FILE)) as file, file:
            file.execute(since)
    assert drain_of(system).drain() == 3
    assert {event.id for event in system.ledger.events()} == set(ids)


def refuse_to_delete(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_row_that_another_process_has_deleted_is_moved_if_it_is_spooled_again(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have moved it while it could not be deleted. Then the server was replaced by an empty one."""
    (storage, first), (_, second) = (open_storage(system.config, system.inbox) for _ in range(2))
    given = padded(system, 3, 10)
    storage.spool_all(given)
    with monkeypatch.context() as disk:
        disk.setattr(SpooledEvents, "delete", refuse_to_delete)
        first.run_once()
        second.run_once()
    first.run_once()
    assert open_events(system.config.data_dir).count() == 0
    system.client.flushall()
    storage.spool_all(given[:1])
    with capture_logs() as lines:
        second.run_once()
    assert [event.id for event in system.ledger.events()] == [given[0].event.id]
    assert [line["left"] for line in lines if line["event"] == "spooled deliveries are in the inbox"] == [0]


def test_a_process_forgets_rows_that_another_one_has_deleted(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    (storage, first), (_, second) = (open_storage(system.config, system.inbox) for _ in range(2))
    storage.spool_all(padded(system, 3, 10))
    with monkeypatch.context() as disk:
        disk.setattr(SpooledEvents, "delete", refuse_to_delete)
        first.run_once()
        second.run_once()
    released: list[str] = []
    monkeypatch.setattr(SpooledEvents, "release_free_pages", lambda _: released.append("pages"))
    first.run_once()
    second.run_once()
    assert released == ["pages", "pages"]
