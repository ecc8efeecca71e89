"""What every history database does: the same tests for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.past_events import DAY, NOVEMBER, past_event
from tests.support.postgres import Postgres, needs_postgres, postgres_server
from workers.history.event_filter import EventFilter, where_of
from workers.history.past_events import HistoryDatabase
from workers.history.postgres_history import PostgresHistory
from workers.history.sqlite_history import SqliteHistory


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.full, needs_postgres])])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HistoryDatabase]:
    found: HistoryDatabase
    if request.param == "sqlite":
        found = SqliteHistory(tmp_path / "history")
    else:
        found = PostgresHistory(request.getfixturevalue("server").new_database())
    found.check()
    yield found
    found.close()


def ids(history: HistoryDatabase, *, limit: int = 50, **wanted: object) -> list[str]:
    return [one.id for one in history.find(EventFilter(**wanted), limit=limit).events]  # type: ignore[arg-type]


def test_an_event_is_read_as_it_was_written(history: HistoryDatabase) -> None:
    event = past_event(once={b"erp.book|mail": b"done null"}, fields={"p:erp.book": "2", "theirs": b"\xff\0odd"})
    assert history.write([event]) == []
    assert history.event(event.id) == event
    assert history.event("unknown") is None


def test_an_event_written_twice_is_stored_once_with_the_newer_fields(history: HistoryDatabase) -> None:
    history.write([past_event(1), past_event(2)])
    changed = past_event(1, fields={"p:erp.book": "1"}, settled_at=NOVEMBER // 1000 + 99_000)
    history.write([changed])
    assert history.event(changed.id) == changed
    assert ids(history) == [past_event(2).id, changed.id]


def test_the_newest_events_are_found_first_and_a_search_goes_on_where_it_ended(history: HistoryDatabase) -> None:
    events = [past_event(number, at=NOVEMBER - number * DAY) for number in range(70)]
    history.write(events)
    found, position = [], None
    while True:
        page = history.find(EventFilter(), before=position, limit=8)
        found += page.events
        position = page.position
        if position is None:
            break
    assert [one.id for one in found] == [one.id for one in events]


def test_events_of_one_microsecond_are_each_found_once(history: HistoryDatabase) -> None:
    events = [past_event(number, at=NOVEMBER) for number in range(5)]
    history.write(events)
    first = history.find(EventFilter(), limit=2)
    second = history.find(EventFilter(), limit=9, before=first.position)
    assert {one.id for one in first.events} | {one.id for one in second.events} == {one.id for one in events}
    assert len(first.events) + len(second.events) == 5


@pytest.mark.parametrize(
    "wanted",
    [
        {"store": "south"},
        {"topic": "order.paid"},
        {"topic": "order.p*"},
        {"resource_id": "r-7"},
        {"delivery_id": "d" * 400},
        {"handler": "mail.send"},
        {"handler": "mail.send", "error": "refused BY"},
        {"result": "PARCEL"},
        {"since": NOVEMBER + 60_000_000},
        {"where": [where_of("customer.email=a@b")]},
        {"where": [where_of("total=19.9")]},
        {"where": [where_of("items.1.sku=B-2")]},
        {"where": [where_of("paid=true")]},
        {"where": [where_of("total<20"), where_of("total>19")]},
        {"where": [where_of("note")]},
    ],
)
def test_only_matching_events_are_found(history: HistoryDatabase, wanted: dict[str, object]) -> None:
    data = {
        "customer": {"email": "a@b"},
        "total": "19.90",
        "items": [{"sku": "A-1"}, {"sku": "B-2"}],
        "paid": True,
        "note": "",
    }
    fields = {"store": "south", "topic": "order.paid", "resource": "r-7", "delivery": "d" * 400}
    detail = {"error": "refused by the server", "result": ["Parcel 1"]}
    event = past_event(100, fields=fields, data=data, detail=detail, handler="mail.send")
    others = [past_event(number, fields={"delivery": "d" * 399 + "e"}) for number in range(20)]
    history.write([*others, event])
    assert ids(history, **wanted) == [event.id]


def test_conditions_on_a_run_are_met_by_one_run(history: HistoryDatabase) -> None:
    fields = {"r:mail.send": "done 1 0 default ", "x:mail.send": '{"error":"none"}'}
    history.write([past_event(fields=fields, detail={"error": "timeout"})])
    assert len(ids(history, handler="erp.book", error="timeout")) == 1
    assert ids(history, handler="mail.send", error="timeout") == []
