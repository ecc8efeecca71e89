"""Lists go by a cursor, and a filter without an index reads a bounded number of entries for each request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from redis import Redis

from receiver.contract.errors import ConfigError
from receiver.contract.intake import Delivery
from receiver.inbox import FailureQueries, Outcome, keys
from receiver.inbox.queries.cursors import (
    MAX_PAYLOADS,
    MAX_SCANNED,
    MAX_SCANNED_BYTES,
    Cursor,
    page_before,
    parse_cursor,
)
from receiver.inbox.queries.event_pages import EventPages
from receiver.inbox.queries.handlers import HandlerQueries
from tests.receiver.inbox.test_inbox import GREET, claim_one, route
from tests.support.harness import System
from workers.history.event_filter import EventFilter, where_of
from workers.operations.all_events import AllEvents
from workers.operations.arrivals import EventArrivals

INDEX = keys.PREFIX + "index"


def copies(delivery: Delivery, many: int) -> list[Delivery]:
    """The same delivery as many others, without signing each."""
    return [replace(delivery, event=replace(delivery.event, id=f"e{number:025}")) for number in range(many)]


@contextmanager
def calls(client: Redis, *commands: str) -> Iterator[dict[str, int]]:
    """How often the server performs these commands meanwhile."""
    client.config_resetstat()
    counted: dict[str, int] = {}
    yield counted
    stats = client.info("commandstats")
    counted.update({name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in commands})


def test_a_cursor_is_read_as_it_is_written() -> None:
    cursor = Cursor(1794826000123456, "ab|shop.greet")
    assert parse_cursor(str(cursor)) == cursor


@pytest.mark.parametrize("text", ["", "1", "-a", "x-a", "1-" + "a" * 201, "9" * 19 + "-a", "1-\n", "1-é", "1-a b"])
def test_a_forged_cursor_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a cursor"):
        parse_cursor(text)


def test_pages_go_on_after_the_last_entry_although_others_join_and_leave(redis: Redis) -> None:
    names = [f"m{number}" for number in range(10)]
    redis.zadd(INDEX, dict.fromkeys(names, 5))  # all of one millisecond
    redis.zadd(INDEX, {"oldest": 1})
    page = page_before(redis, INDEX, None, limit=4)
    assert [name for name, _ in page.entries] == ["m9", "m8", "m7", "m6"]
    redis.zadd(INDEX, {"newer": 9})
    redis.zrem(INDEX, "m6")  # the cursor itself
    assert page.next
    page = page_before(redis, INDEX, parse_cursor(str(page.next)), limit=4)
    assert [name for name, _ in page.entries] == ["m5", "m4", "m3", "m2"]
    page = page_before(redis, INDEX, page.next, limit=4)
    assert ([name for name, _ in page.entries], page.next) == (["m1", "m0", "oldest"], None)


def test_a_rare_topic_is_searched_in_steps(system: System) -> None:
    rare = system.accept("customer.created")
    system.inbox.accept(copies(system.delivery(), 2 * MAX_SCANNED))
    events, wanted = AllEvents(system.client, None), EventFilter(topic="customer.*")
    with calls(system.client, "hgetall") as counted:
        first = events.find(wanted)
    assert 0 < counted["hgetall"] <= MAX_SCANNED
    assert (first.events, bool(first.next), bool(first.looked_back_to)) == ([], True, True)
    second = events.find(wanted, before=first.next)
    third = events.find(wanted, before=second.next)
    assert [one.id for one in third.events] == [rare]
    assert (third.next, third.looked_back_to) == (None, None)


def test_the_command_says_how_far_back_it_looked_and_goes_on(system: System) -> None:
    rare = system.accept("customer.created")
    system.inbox.accept(copies(system.delivery(), MAX_SCANNED))
    first = system.run_cli("events", "list", "--topic", "customer.*", "--json")
    assert first.stdout == "[]\n"
    assert "looked back to 20" in first.stderr
    cursor = first.stderr.rstrip().rpartition(" ")[2]
    second = system.run_cli("events", "list", "--topic", "customer.*", "--before", cursor)
    assert rare in second.stdout
    assert "looked back" not in second.stderr
    forged = system.run_cli("events", "list", "--before", "last week")
    assert (forged.returncode, "'last week' is not a cursor" in forged.stderr) == (2, True)


def test_bodies_are_read_up_to_a_size(system: System) -> None:
    large = {"id": 1, "text": "x" * (1 << 20)}
    found = system.accept(data={"id": 7})
    system.inbox.accept(copies(system.delivery(data=large), 12))
    events, wanted = AllEvents(system.client, None), EventFilter(where=(where_of("id=7"),))
    before = system.client.info("stats")["total_net_output_bytes"]
    first = events.find(wanted)
    assert 6 << 20 < system.client.info("stats")["total_net_output_bytes"] - before < MAX_SCANNED_BYTES + (2 << 20)
    assert first.looked_back_to
    second = events.find(wanted, before=first.next)
    assert [one.id for one in second.events] == [found]
    assert second.next is None


def test_a_search_by_payload_reads_fewer_events(system: System) -> None:
    found = system.accept(data={"id": 7})
    system.inbox.accept(copies(system.delivery(data={"id": 8}), MAX_PAYLOADS))
    events, wanted = AllEvents(system.client, None), EventFilter(where=(where_of("id=7"),))
    first = events.find(wanted)
    assert (first.events, bool(first.looked_back_to)) == ([], True)
    assert [one.id for one in events.find(wanted, before=first.next).events] == [found]


def test_a_body_larger_than_the_bound_is_read_alone(system: System) -> None:
    ids = [system.accept(data={"id": 7, "text": "x" * 100}) for _ in range(3)]
    page = EventPages(system.client, content=True).newest(before=2**62, since=0, size=1)
    assert ([one.id for one in page.events], page.examined) == ([ids[2]], 1)
    assert page.last == int(system.client.zscore(keys.INDEX, ids[2]))


def test_a_long_list_without_a_filter_is_complete(system: System) -> None:
    deliveries = copies(system.delivery(), MAX_SCANNED + 300)
    system.inbox.accept(deliveries)
    listed = AllEvents(system.client, None).find(EventFilter(), limit=MAX_SCANNED + 200)
    assert [one.id for one in listed.events] == [one.event.id for one in deliveries[:99:-1]]
    rest = AllEvents(system.client, None).find(EventFilter(), limit=200, before=listed.next)
    assert [one.id for one in rest.events] == [one.event.id for one in deliveries[99::-1]]


def test_new_events_are_read_in_order_each_once(system: System) -> None:
    system.accept()
    arrivals = EventArrivals(AllEvents(system.client, None))
    assert arrivals.new() == []
    deliveries = copies(system.delivery(), 1_200)
    system.inbox.accept(deliveries)
    found: list[str] = []
    while page := arrivals.new():
        assert len(page) <= 1_000
        found += [one.id for one in page]
    assert found == [one.event.id for one in deliveries]


def test_waiting_runs_are_counted_up_to_a_bound(system: System) -> None:
    system.client.zadd(keys.LATER, {f"e{number}|shop.greet": number for number in range(MAX_SCANNED + 2_000)})
    (found,) = HandlerQueries(system.client).waiting(["shop.greet"]).values()
    assert found.or_more
    assert MAX_SCANNED <= found.runs < MAX_SCANNED + 2_000
    system.client.zremrangebyrank(keys.LATER, 10, -1)
    assert HandlerQueries(system.client).waiting(["shop.greet"]) == {"shop.greet": (10, False)}


def test_groups_and_their_failures_go_by_a_cursor(system: System) -> None:
    for number in range(5):
        for _ in range(3):
            system.accept()
            (run,) = route(system.inbox, claim_one(system.inbox), GREET)
            detail = {"error": f"E{number}", "group": f"{number}aaaaaaa", "version": "1"}
            system.inbox.finish([Outcome(run, "failed", detail)])
    reader = FailureQueries(system.client)
    first = reader.groups(limit=3)
    assert first.next
    second = reader.groups(limit=3, before=first.next)
    assert second.next is None
    assert {one.error for one in first.entries + second.entries} == {f"E{number}" for number in range(5)}
    assert [one.id for one in reader.every_group()] == [one.id for one in first.entries + second.entries]
    assert reader.newest_group_ids(2) == [one.id for one in first.entries[:2]]
    group = reader.group("3aaaaaaa")
    assert group
    assert group.error == "E3"
    assert reader.group("unknown") is None
    failures = reader.in_group("3aaaaaaa", limit=2)
    rest = reader.in_group("3aaaaaaa", limit=2, before=failures.next)
    assert len({one.event for one in failures.entries + rest.entries}) == 3
    assert rest.next is None
    for item, _ in system.client.zscan_iter(f"{keys.GROUP_RUNS}3aaaaaaa"):
        system.client.zincrby(f"{keys.GROUP_RUNS}3aaaaaaa", -90 * 60_000, item)
    trends = reader.trends(["3aaaaaaa", "1aaaaaaa", "unknown"], hours=3)
    assert trends == {"3aaaaaaa": [0, 3, 0], "1aaaaaaa": [0, 0, 3], "unknown": [0, 0, 0]}
    shown = system.run_cli("failures", "--limit", "3")
    cursor = shown.stderr.rstrip().rpartition(" ")[2]
    assert second.entries[0].error in system.run_cli("failures", "--limit", "3", "--before", cursor).stdout
