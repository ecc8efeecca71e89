"""The memory forecast against a real server: what doctor expects of an event is what an event takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from receiver.contract.compose import compose
from receiver.contract.intake import Delivery, receive
from receiver.inbox import Outcome, Run
from receiver.inbox.effect_store import EffectStore
from receiver.inbox.outcomes import OutcomeKind
from receiver.inbox.queries.health import HealthQueries
from tests.support.harness import Server, System

STORES = ("north", "south")
HANDLER = "erp.export"


def deliveries(system: System, start: int, number: int) -> Iterator[Delivery]:
    config, now = system.config, time.time()
    for at in range(start, start + number):
        store = config.known_stores[STORES[at % 2]]
        data = {"id": at, "email": "a@example.org", "lines": [{"sku": f"sku-{at}", "price": "42.00"}] * 5}
        request = compose(store, topic="order.created", delivery_id=f"msg_{at:020}", data=data, now=now)
        yield receive(request.headers, request.body, store=store, now=now)


def handle(system: System, start: int, number: int) -> None:
    """Accept events and have each of them handled, with one once mark each."""
    marks = EffectStore(system.client, keep=3600.0, at_work=60.0)
    many = list(deliveries(system, start, number))
    for at in range(0, number, 100):
        system.inbox.accept(many[at : at + 100])
        events = system.inbox.claim({"": 100}, capacity=100).runs
        assert len(events) == 100
        version = system.inbox.declarations().version
        system.inbox.route([(one, [(HANDLER, "default", True)]) for one in events], version)
        assert system.inbox.finish(
            [Outcome(done(one), OutcomeKind.DONE, {"result": "exported", "ms": 1.2}) for one in events]
        )
        for one in events:
            marks.end(f"o:{one.stored.id}", f"{HANDLER}|export", done(one).item, b'{"invoice": 1001}')


def done(event: Run) -> Run:
    return replace(event, item=f"{event.stored.id}|{HANDLER}", handler=HANDLER)


def test_the_forecast_for_an_event_is_the_memory_that_it_takes(
    make_system: Callable[..., System], own_redis: Server
) -> None:
    number = 1_000
    system = make_system(url=own_redis.url)
    handle(system, 0, 400)  # what does not grow with events: scripts, counters, connections
    before = system.client.info("memory")["used_memory"]
    handle(system, 400, number)
    measured = (system.client.info("memory")["used_memory"] - before) / number

    footprint = HealthQueries(system.client).footprint(STORES)
    assert footprint.lately == {"north": 700, "south": 700}
    expected = footprint.record + footprint.body + footprint.once
    assert expected == pytest.approx(measured, rel=0.15)
