"""Row 26 of the fault matrix: deliveries without an id while Redis is unreachable. As many events as with Redis up."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from receiver.contract.compose import Request, compose
from tests.receiver.spool.test_spool import spooled
from tests.support.harness import Server, System, children_of, eventually

WINDOW = 3.0
STORE = "bare"
MORE = f'[stores.{STORE}]\nscheme = "salla"\nsigning_secrets = ["c2VjcmV0IG9mIGEgc3RvcmUgd2l0aG91dCBpZHM="]\n'


def make_receiver(make_system: Callable[..., System], server: Server, window: float = WINDOW) -> System:
    """A receiver with a store that signs only the body and sends no ids, with this window in seconds."""
    system = make_system(url=server.url, more=MORE)
    text = system.config_file.read_text()
    system.config_file.write_text(text.replace("threads = 4", f"threads = 4\ndedupe_window_unidentified = {window}"))
    system.start("web")
    return system


@pytest.fixture
def receiver(make_system: Callable[..., System], own_redis: Server) -> System:
    return make_receiver(make_system, own_redis)


def price(system: System, amount: int, product: int) -> Request:
    store = system.config.known_stores[STORE]
    data = {"id": product, "price": amount, "options": [1]}
    return compose(store, topic="product.updated", delivery_id="", data=data, now=1_700_000_000.0)


def send(system: System, amount: int, product: int = 7) -> tuple[str, str]:
    """The status and the id that are answered."""
    answer = system.post(price(system, amount, product), STORE)
    assert answer.status_code == 200, answer.text
    return answer.json()["status"], answer.json()["id"]


def wait_for_the_end_of_the_window() -> None:
    began = time.monotonic()
    eventually(lambda: time.monotonic() > began + 1.1 * WINDOW)


def prices(system: System) -> list[tuple[int, str]]:
    """Price and id of each event, the oldest first."""
    events = reversed(system.ledger.events(store=STORE))
    return [(system.ledger.as_event(one.id).data["price"], one.id) for one in events]


def duplicates(system: System) -> int:
    return system.ledger.counters().stores[STORE]["duplicates"]


def drained(*systems: System) -> None:
    eventually(lambda: all(spooled(one) == 0 for one in systems), 20, what="the spools are drained")


@pytest.mark.parametrize("stop", ["kill", "hang"])
def test_row_26_an_update_that_comes_again_after_the_window_is_not_lost(
    receiver: System, own_redis: Server, stop: str
) -> None:
    send(receiver, 1)  # connections are open: a server that hangs has the first delivery in its socket
    if stop == "kill":
        own_redis.kill()
    else:
        own_redis.process.send(signal.SIGSTOP)
    answers = [send(receiver, 10), send(receiver, 12)]
    wait_for_the_end_of_the_window()
    answers.append(send(receiver, 10))
    assert [status for status, _ in answers] == ["accepted"] * 3
    if stop == "kill":
        own_redis.start()
    else:
        own_redis.process.send(signal.SIGCONT)
    drained(receiver)
    found = prices(receiver)
    assert sorted(amount for amount, _ in found) == [1, 10, 10, 12]
    assert {one for _, one in answers} < {one for _, one in found}, "every id that was answered is an event's"
    assert receiver.identity_holds()


def test_row_26_repeats_inside_the_window_are_duplicates_as_with_redis_up(receiver: System, own_redis: Server) -> None:
    before = [send(receiver, 5), send(receiver, 5)]
    assert [status for status, _ in before] == ["accepted", "duplicate"]
    own_redis.kill()
    answers = [send(receiver, 10), send(receiver, 12, product=8), send(receiver, 10), send(receiver, 10)]
    wait_for_the_end_of_the_window()
    answers += [send(receiver, 10), send(receiver, 10)]
    assert {answers[place][0] for place in (0, 1, 4)} == {"accepted"}
    own_redis.start()
    drained(receiver)
    found = prices(receiver)
    assert [amount for amount, _ in found] == [5, 10, 12, 10]
    assert {receiver.ledger.find_id(one) for _, one in answers} | {before[0][1]} == {one for _, one in found}
    eventually(lambda: duplicates(receiver) == 4, what="those that the spool has found are counted, too")
    assert receiver.identity_holds()


@pytest.mark.parametrize("away", [False, True])
def test_row_26_a_price_that_returns_within_the_window_is_an_event(
    receiver: System, own_redis: Server, away: bool
) -> None:
    send(receiver, 10)
    if away:
        own_redis.kill()
    for amount in (10, 12, 10, 10):
        send(receiver, amount)
    if away:
        own_redis.start()
    drained(receiver)
    assert [amount for amount, _ in prices(receiver)] == [10, 12, 10]
    assert receiver.identity_holds()


def test_row_26_a_repeat_does_not_lengthen_the_window_when_redis_is_away_twice(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    window = 2 * WINDOW  # beside other tests, the first drain alone may take three seconds
    receiver = make_receiver(make_system, own_redis, window)

    def at(seconds: float) -> None:
        eventually(lambda: time.monotonic() > began + seconds)

    own_redis.kill()
    began = time.monotonic()
    send(receiver, 10)
    own_redis.start()
    drained(receiver)
    own_redis.kill()
    at(0.8 * window)
    send(receiver, 10), send(receiver, 12)  # a repeat of the first, and another price
    at(1.2 * window)
    send(receiver, 10)  # in the window of the repeat, and not in that of the first
    own_redis.start()
    drained(receiver)
    assert [amount for amount, _ in prices(receiver)] == [10, 12, 10]


def test_row_26_the_id_that_the_spool_answered_for_a_repeat_of_an_earlier_event_leads_to_it(
    receiver: System, own_redis: Server
) -> None:
    _, first = send(receiver, 20)
    own_redis.kill()
    status, answered = send(receiver, 20)
    assert status == "accepted", "the spool does not know the event, the inbox will"
    own_redis.start()
    drained(receiver)
    assert prices(receiver) == [(20, first)]
    shown = receiver.run_cli("events", "show", answered, "--json")
    assert json.loads(shown.stdout)["id"] == first, shown.stderr


@pytest.mark.full
def test_row_26_a_captured_delivery_that_is_sent_again_and_again_fills_nothing(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """With a row for each, 10 MB/s filled the share of the store in a minute, and its own deliveries got 503."""
    receiver = make_receiver(make_system, own_redis, window=60)
    own_redis.kill()
    send(receiver, 1)
    _, first = send(receiver, 10)
    repeats = [send(receiver, 10) for _ in range(300)]
    assert {*repeats} == {("duplicate", first)}
    assert send(receiver, 12)[0] == "accepted"
    assert spooled(receiver) == 4, "the first and the latest of the repeated one"
    own_redis.start()
    drained(receiver)
    assert [amount for amount, _ in prices(receiver)] == [1, 10, 12]
    eventually(lambda: duplicates(receiver) == len(repeats), what="each repeat is counted")
    assert receiver.identity_holds()


@pytest.mark.full
def test_row_26_two_hosts_that_drain_at_once_have_as_many_events_as_with_redis_up(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    one, other = make_receiver(make_system, own_redis), make_receiver(make_system, own_redis)
    own_redis.kill()
    send(one, 10), send(other, 10), send(other, 12, product=8)
    wait_for_the_end_of_the_window()
    send(other, 10), send(one, 10)
    wait_for_the_end_of_the_window()
    send(one, 10), send(other, 12, product=8)
    own_redis.start()
    drained(one, other)
    assert sorted(amount for amount, _ in prices(one)) == [10, 10, 10, 12, 12]
    assert one.identity_holds()


def test_row_26_a_live_delivery_and_an_older_spooled_one_inside_the_window_are_one_event(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    """The other host hangs before it drains; meanwhile this one accepts the same body."""
    one, other = make_receiver(make_system, own_redis), make_receiver(make_system, own_redis)
    own_redis.process.send(signal.SIGSTOP)
    send(other, 12, product=8)
    wait_for_the_end_of_the_window()
    send(other, 10)
    stopped = [pid for process in other.processes for pid in (process.pid, *children_of(process.pid))]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    own_redis.process.send(signal.SIGCONT)
    eventually(lambda: one.http.get("/readyz").json()["stores_in"] == "redis")
    status, live = send(one, 10)
    assert status == "accepted"
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    drained(other)
    assert sorted(amount for amount, _ in prices(one)) == [10, 12]
    assert (10, live) in prices(one)
