"""Accepting: which deliveries without an id are repeats, and the order of events."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from redis.exceptions import ResponseError

from receiver.contract.event import Event
from receiver.contract.intake import Delivery
from receiver.inbox import AcceptResult, keys
from receiver.inbox.accept_batch import AcceptBatch
from receiver.inbox.redis import script_runner
from tests.support.harness import System

# Repeats


@dataclass(frozen=True)
class Arrival:
    """A delivery without an id that arrived this number of seconds ago, and how wrong its receiver's clock was."""

    ago: float
    ahead: float = 0.0

    def accept(self, system: System, event: Event) -> str:
        """Accept it now, as if it came from a spool; the window is a minute."""
        moment = datetime.fromtimestamp(time.time() - self.ago + self.ahead, UTC)
        delivery = Delivery(replace(event, id=secrets.token_hex(8), received_at=moment), "x", content_hash="m")
        batch = AcceptBatch([delivery], 60.0, {}, {delivery.event.id: self.ago})
        (reply,) = batch.read(script_runner.run(system.client, batch.calls))
        assert isinstance(reply, AcceptResult)
        return reply.status


@pytest.mark.parametrize(
    ("arrivals", "events"),
    [
        ([Arrival(200), Arrival(170), Arrival(139), Arrival(100)], 2),
        ([Arrival(200), Arrival(100), Arrival(0), Arrival(199), Arrival(99), Arrival(1)], 3),
        ([Arrival(0), Arrival(59)], 1),
        ([Arrival(0), Arrival(61), Arrival(2)], 2),
        ([Arrival(300), Arrival(0), Arrival(270), Arrival(30)], 2),
        ([Arrival(0, ahead=600), Arrival(0, ahead=600)], 1),
        ([Arrival(590, ahead=600), Arrival(0, ahead=10)], 2),
        ([Arrival(590, ahead=-10), Arrival(0, ahead=-600)], 2),
    ],
    ids=[
        "the first counts, not the last repeat",
        "a second host drains the same times after the first",
        "an older one after a newer one",
        "an older event does not move the mark of the newer one",
        "neither of two marks hides the other",
        "one host with a wrong clock",
        "a host that is ahead, and later one that is right",
        "a host that is right, and later one that is behind",
    ],
)
def test_repeats_are_judged_by_arrival_in_any_order(system: System, arrivals: list[Arrival], events: int) -> None:
    event = system.delivery(data={"id": 7}).event  # of one body: two seconds would be two
    assert [one.accept(system, event) for one in arrivals].count("accepted") == events


def stock(
    system: System,
    amount: int,
    *,
    item: int = 7,
    topic: str = "product.updated",
    place: str = "",
    changed: datetime | None = None,
) -> Delivery:
    """A delivery without an id, as a store sends it again whenever a product has this stock."""
    one = system.delivery(topic, data={"id": item})
    body = orjson.dumps({"id": item, "stock": amount, "changed": changed})
    event = replace(one.event, delivery_id="", id=secrets.token_hex(8), body=body, occurred_at=changed)
    return replace(one, event=event, first_id="", content_hash=f"{topic}{item}{amount}{place}{changed}")


def statuses(system: System, *deliveries: Delivery) -> list[str]:
    return [one.status for one in system.inbox.accept(deliveries, repeat_window=60.0)]


NEW, AGAIN = "accepted", "duplicate"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.mark.parametrize("together", [True, False], ids=["one call", "a call each"])
@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ([(7, 5), (7, 5)], [NEW, AGAIN]),
        ([(7, 5), (7, 4), (7, 5)], [NEW, NEW, NEW]),
        ([(7, 5), (7, 4), (7, 5), (7, 5), (7, 4)], [NEW, NEW, NEW, AGAIN, NEW]),
        ([(7, 5), (8, 4), (7, 5), (8, 4)], [NEW, NEW, AGAIN, AGAIN]),
    ],
)
def test_a_state_that_returns_is_an_event(
    system: System, sent: list[tuple[int, int]], found: list[str], together: bool
) -> None:
    """Who repeated a captured delivery once a minute made the store's own next one with this state a duplicate."""
    deliveries = [stock(system, amount, item=item) for item, amount in sent]
    calls = [deliveries] if together else [[one] for one in deliveries]
    assert [status for call in calls for status in statuses(system, *call)] == found
    assert system.identity_holds()


@pytest.mark.parametrize("together", [True, False], ids=["one call", "a call each"])
@pytest.mark.parametrize(("later", "found"), [(5, AGAIN), (0, NEW)], ids=["later", "equal"])
def test_one_that_is_older_than_the_newest_by_the_store_s_own_time_is_sent_again_and_no_state_that_returns(
    system: System, later: int, found: str, together: bool
) -> None:
    first, second = NOON, NOON + timedelta(seconds=later)
    sent = [stock(system, amount, changed=at) for amount, at in ((5, first), (4, second), (5, first))]
    calls = [sent] if together else [[one] for one in sent]
    assert [status for call in calls for status in statuses(system, *call)] == [NEW, NEW, found]


def test_another_topic_with_the_same_body_is_another_event_of_the_resource(system: System) -> None:
    topics = ["product.updated", "product.deleted", "product.updated", "product.updated"]
    sent = [stock(system, 5, topic=topic) for topic in topics]
    assert statuses(system, *sent) == [NEW, NEW, NEW, AGAIN]


def test_a_batch_with_two_events_of_a_resource_is_repeated_as_a_whole(system: System) -> None:
    def batch() -> Delivery:
        first, *rest = (stock(system, amount, place=str(at)) for at, amount in enumerate((5, 4, 5, 6)))
        return replace(first, rest=tuple(rest))

    def items(one: Delivery) -> list[str]:
        (answer,) = system.inbox.accept([one], repeat_window=60.0)
        return [item.status for item in answer.items]

    assert items(batch()) == [NEW] * 4
    assert items(batch()) == [AGAIN] * 4
    assert statuses(system, stock(system, 9)) == [NEW]
    assert items(batch()) == [NEW] * 4, "its first state has returned"
    assert items(batch()) == [AGAIN] * 4


@pytest.mark.parametrize("lost", ["resources", "ix", "first", "wrong type", "no time"])
def test_where_the_newest_event_of_the_resource_is_not_known_an_equal_body_is_a_repeat(
    system: System, lost: str
) -> None:
    first, other, again = stock(system, 5), stock(system, 4), stock(system, 5)
    assert statuses(system, first, other) == [NEW, NEW]
    match lost:
        case "resources":
            system.client.delete(keys.RESOURCES)
        case "ix":
            system.client.zrem(keys.INDEX, other.event.id)
        case "wrong type":
            system.client.delete(keys.RESOURCES)
            system.client.rpush(keys.RESOURCES, "x")
        case "no time":
            for name in system.client.hkeys(keys.RESOURCES):
                system.client.hset(keys.RESOURCES, name, "x")
        case "first":  # as if it was moved to the history: the other one is the newest that is known
            system.client.zrem(keys.INDEX, first.event.id)
    assert statuses(system, again) == [NEW if lost == "first" else AGAIN]


def test_a_mark_that_cannot_be_set_leaves_the_counters_right(system: System) -> None:
    delivery = replace(system.delivery(), content_hash="m")
    with pytest.raises(ResponseError):
        system.inbox.accept([delivery], repeat_window=1e20)
    assert system.identity_holds()
    assert [one.status for one in system.inbox.accept([delivery])] == ["duplicate"]
    assert system.ledger.counters().total["accepted"] == 1


# The order of events


def order(system: System, index: str = keys.INDEX) -> list[str]:
    return [event_id.decode() for event_id in system.client.zrange(index, 0, -1)]


def test_events_are_in_the_order_of_acceptance_however_late_they_come(system: System) -> None:
    ids = [system.accept(), system.accept(store="south")]
    (cursor,) = system.client.zrange(keys.INDEX, -1, -1, withscores=True)
    waited = [arrived_ago(system.delivery(store=store), 3600) for store in ("north", "south", "north")]
    ids += [one.id for one in system.inbox.accept(waited)]
    ids.append(system.accept())
    assert order(system) == ids
    assert order(system, keys.index_of("north")) == [one for at, one in enumerate(ids) if at not in (1, 3)]
    after = system.client.zrange(keys.INDEX, f"({cursor[1]:.0f}", "+inf", byscore=True)
    assert [event_id.decode() for event_id in after] == ids[2:]
    assert [one.id for one in system.ledger.events()] == ids[::-1]
    assert system.ledger.event(ids[2]).summary.received_at < system.ledger.event(ids[0]).summary.received_at


def test_events_of_one_call_have_different_times_of_acceptance(system: System) -> None:
    system.inbox.accept([system.delivery() for _ in range(100)])
    scores = [score for _, score in system.client.zrange(keys.INDEX, 0, -1, withscores=True)]
    seconds, micros = system.client.time()
    assert len(set(scores)) == 100
    assert 0 < seconds * 10**6 + micros - scores[0] < 60 * 10**6
    assert scores == [system.client.zscore(keys.index_of("north"), one) for one in order(system)]


@pytest.mark.parametrize("damage", ["", "lost", "list", "x", "9e18", "9007199254740992", "1e400", "inf", "nan", "-1"])
def test_the_order_is_kept_after_the_servers_clock_was_set_back(system: System, damage: str) -> None:
    first = system.accept()
    ahead = float(f"{system.client.zscore(keys.INDEX, first) + 3600 * 10**6:.0f}")
    system.client.zadd(keys.INDEX, {first: ahead})
    system.client.zadd(keys.index_of("north"), {first: ahead})
    system.client.set(keys.ACCEPTED_UNTIL, f"{ahead:.0f}")
    if damage:
        system.client.delete(keys.ACCEPTED_UNTIL)
    if damage == "list":
        system.client.rpush(keys.ACCEPTED_UNTIL, "x")
    elif damage not in ("", "lost"):
        system.client.set(keys.ACCEPTED_UNTIL, damage)
    more = [one.id for one in system.inbox.accept([system.delivery(), system.delivery()])] + [system.accept()]
    assert order(system) == [first, *more]
    assert system.client.zscore(keys.INDEX, more[-1]) < ahead + 10**6, "as close to the clock as can be"


def test_the_order_is_kept_even_if_the_newest_event_is_gone(system: System) -> None:
    """A cursor may have its time."""
    gone = system.accept()
    cursor = system.client.zscore(keys.INDEX, gone) + 3600 * 10**6
    system.client.set(keys.ACCEPTED_UNTIL, f"{cursor:.0f}")
    system.client.zrem(keys.INDEX, gone)
    assert system.client.zscore(keys.INDEX, system.accept()) > cursor


def test_a_damaged_time_in_the_index_is_not_taken_for_the_last_one(system: System) -> None:
    first, damaged = system.accept(), system.accept()
    system.client.zadd(keys.INDEX, {damaged: 9e18})
    system.client.delete(keys.ACCEPTED_UNTIL)
    assert order(system) == [first, damaged]
    more = [system.accept(), system.accept()]
    assert order(system) == [first, *more, damaged]


# The last time of an event name


def arrived_ago(delivery: Delivery, seconds: float) -> Delivery:
    moment = delivery.event.received_at - timedelta(seconds=seconds)
    return replace(delivery, event=replace(delivery.event, received_at=moment))


@pytest.mark.parametrize("together", [True, False])
def test_a_delivery_that_waited_does_not_move_the_last_time_of_its_name_back(system: System, together: bool) -> None:
    live, waited, older = system.delivery(), arrived_ago(system.delivery(), 3600), arrived_ago(system.delivery(), 7200)
    for group in [[live, waited, older]] if together else [[live], [waited], [older]]:
        system.inbox.accept(group)
    (name,) = system.ledger.event_names("north")
    assert (name.seen, name.last_at) == (3, system.ledger.event(live.event.id).summary.received_at)


def test_a_duplicate_that_its_receiver_sends_again_is_counted_once(system: System) -> None:
    """Redis took it and did not answer in time, so the receiver spooled it, and the drain sent it again."""
    first = system.delivery(delivery_id="msg_1")
    again, third = arrived_ago(first, 2), arrived_ago(first, 1)
    system.inbox.accept([first])
    for _ in range(3):
        assert system.inbox.accept([again])[0].status == "duplicate"
    assert system.ledger.counters().total["duplicates"] == 1
    system.inbox.accept([third, third])  # two deliveries of one millisecond
    assert system.ledger.counters().total["duplicates"] == 3
    system.inbox.accept([first])
    assert system.ledger.counters().total["duplicates"] == 3
