"""What every history database does: the same tests for each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.past_events import DAY, NOVEMBER, past_event
from workers.history.event_filter import EventFilter, where_of
from workers.history.past_events import HistoryDatabase
from workers.operations.erasure.erased_events import erased


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


def test_a_slow_writer_does_not_bring_back_the_content_of_an_erased_event(history: HistoryDatabase) -> None:
    before = past_event(1)
    history.write([before])
    after = erased(before, b"1 x")
    history.write([after])
    (left,) = history.write([before, past_event(2)])
    assert left[::2] == (before.id, after.settled_at)
    assert history.events([before.id], every=True) == [after]
    assert history.event(past_event(2).id) == past_event(2)
    assert history.write([after, past_event(2)]) == []


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


def test_a_search_ends_at_its_earliest_time(history: HistoryDatabase) -> None:
    """On a day with older events, it was repeated until its time was over."""
    history.write([past_event(number, at=NOVEMBER + number * 1_000_000) for number in range(5)])
    page = history.find(EventFilter(since=NOVEMBER + 2_000_000))
    assert ([one.id for one in page.events], page.position) == ([past_event(number).id for number in (4, 3, 2)], None)


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


@pytest.mark.parametrize(
    "value", ["'; DROP TABLE records; --", "%s", "%(id)s", 'a"b', "\\", "?1", "\0", "*", "_", "{}"]
)
def test_a_value_is_never_a_part_of_the_query(history: HistoryDatabase, value: str) -> None:
    event = past_event(1, data={"name": value}, fields={"store": "s", "resource": value, "delivery": value})
    history.write([event, *(past_event(number) for number in range(2, 5))])
    assert ids(history, resource_id=value) == ids(history, delivery_id=value) == [event.id]
    assert ids(history, store=value) == ids(history, handler=value) == ids(history, error=value) == []
    assert history.forget([value]) == 0
    if value not in ("*",):
        assert ids(history, where=[("name", value)]) == [event.id]
        assert ids(history, where=[(value.replace(" ", "") or "x", "y")]) == []
    assert len(ids(history)) == 4


def test_a_search_without_time_says_how_far_it_got_and_can_go_on(history: HistoryDatabase) -> None:
    history.write([past_event(number, at=NOVEMBER - number * DAY) for number in range(5)])
    wanted = EventFilter(where=[where_of("total>1000")])
    stopped = history.find(wanted, seconds=0)
    assert stopped.out_of_time
    assert stopped.looked_back_to
    assert timedelta() < stopped.looked_back_to - datetime.fromtimestamp(NOVEMBER / 1e6, UTC) <= timedelta(days=1)
    ended = history.find(wanted, before=stopped.position)
    assert (ended.events, ended.looked_back_to, ended.out_of_time) == ((), None, False)


def test_content_is_deleted_before_the_record_is(history: HistoryDatabase) -> None:
    events = [past_event(number, at=NOVEMBER - number * DAY) for number in range(60)]
    history.write(events)
    noon = datetime.fromtimestamp(NOVEMBER / 1e6, UTC)
    while history.delete_older(bodies=noon - timedelta(days=7), records=noon - timedelta(days=40)):
        pass
    left = history.find(EventFilter(), limit=100, content=True).events
    assert {one.id for one in events[:40]} <= {one.id for one in left} <= {one.id for one in events[:42]}
    assert [one.content is not None for one in left[:7]] == [True] * 7
    assert not any(one.content for one in left[9:])
    assert left[20].fields == events[20].fields
    assert ids(history, where=[where_of("customer.email=buyer20@example.com")]) == []


def test_an_event_that_settled_late_is_kept_longer_than_others_of_its_day(history: HistoryDatabase) -> None:
    old = NOVEMBER - 50 * DAY
    late = past_event(1, at=old, settled_at=NOVEMBER // 1000)
    history.write([late, past_event(2, at=old + 1), past_event(3)])
    limit = datetime.fromtimestamp(NOVEMBER / 1e6, UTC) - timedelta(days=30)
    history.delete_older(bodies=limit, records=limit)
    assert ids(history) == [past_event(3).id, late.id]
    found = history.event(late.id)
    assert found
    assert found.content == late.content


def test_a_forgotten_event_is_gone(history: HistoryDatabase) -> None:
    history.write([past_event(1), past_event(2), past_event(2, at=NOVEMBER - 60 * DAY)])
    assert history.forget([past_event(2).id, "unknown"]) == 2
    assert history.event(past_event(2).id) is None
    assert ids(history) == [past_event(1).id]
    assert ids(history, where=[where_of("id=2")]) == []


def test_the_same_delivery_accepted_again_after_the_window_is_another_event(history: HistoryDatabase) -> None:
    first, again = past_event(1, at=NOVEMBER - 60 * DAY), past_event(1)
    history.write([again, first])
    assert history.event(first.id) == again
    assert sorted(one.accepted_at for one in history.events([first.id], every=True)) == [
        first.accepted_at,
        again.accepted_at,
    ]
    assert [one.accepted_at for one in history.find(EventFilter()).events] == [again.accepted_at, first.accepted_at]


def test_sizes_are_those_of_all_parts(history: HistoryDatabase) -> None:
    assert history.sizes().events == 0
    history.write([past_event(1, at=NOVEMBER - 60 * DAY), past_event(2)])
    sizes = history.sizes()
    assert (sizes.parts, sizes.oldest) == (2, datetime.fromtimestamp(NOVEMBER / 1e6, UTC) - timedelta(days=60))
    assert sizes.bytes > 10_000


def test_a_form_is_searched_by_its_fields(history: HistoryDatabase) -> None:
    body = b"email=a%40b&name=J+D"
    form = past_event(1, body=body, fields={"data_path": ""})
    history.write([form, past_event(2)])
    assert ids(history, where=[where_of("email=a@b")]) == ids(history, where=[where_of("name=J D")]) == [form.id]
