"""A million past events in each database: how fast they are written, shown and found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.support.past_events import DAY, NOVEMBER, past_event
from tests.support.postgres import Postgres, needs_postgres
from tests.workers.history.conftest import opened
from workers.history.event_filter import EventFilter, where_of
from workers.history.past_events import HistoryDatabase, PastEvent

EVENTS, DAYS, BATCH = 1_000_000, 90, 1_000
RATES = {"sqlite": 3_000, "postgresql": 1_500}
"""Events that must be written in a second."""


def numbered(number: int) -> PastEvent:
    data = {
        "id": number,
        "status": ("paid", "open", "shipped")[number % 3],
        "total": f"{number % 100_000 / 100:.2f}",
        "customer": {"email": f"buyer{number}@example.com", "id": number // 20},
        "lines": [{"sku": f"S-{number % 500}-{place}", "price": "19.90", "title": "A product"} for place in range(8)],
    }
    fields = {"store": f"store{number % 20}", "topic": ("order.created", "order.paid")[number % 2]}
    return past_event(number, at=NOVEMBER - DAYS * DAY + number * (DAYS * DAY // EVENTS), data=data, fields=fields)


def milliseconds(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1000)
    return median(taken)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def test_a_million_past_events_are_written_shown_and_found_in_time(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    place: Path | str = tmp_path / "history"
    if kind == "postgresql":
        server: Postgres = request.getfixturevalue("server")
        place = server.new_database()
    history = opened(place)
    history.check()
    rate = EVENTS / sum(seconds_to_write(history))
    one = EVENTS // 3
    by_email = EventFilter(where=[where_of(f"customer.email=buyer{one}@example.com")])
    limits = {
        "show": (20, milliseconds(lambda: history.event(numbered(one).id))),
        "by delivery id": (100, milliseconds(lambda: history.find(EventFilter(delivery_id=f"msg_{one}")))),
        "by resource id": (100, milliseconds(lambda: history.find(EventFilter(resource_id=f"{one}")))),
        "by store": (100, milliseconds(lambda: history.find(EventFilter(store="store7")))),
        "by topic": (100, milliseconds(lambda: history.find(EventFilter(topic="order.paid")))),
    }
    if kind == "postgresql":
        limits["by payload field"] = (300, milliseconds(lambda: history.find(by_email)))
    sizes = history.sizes()
    history.close()
    with capsys.disabled():
        print(f"\n{kind}: {rate:,.0f} events/s, {sizes.bytes / EVENTS:,.0f} bytes for each event")
        print(*(f"  {name}: {taken:.1f} ms, at most {limit}" for name, (limit, taken) in limits.items()), sep="\n")
    assert rate >= RATES[kind]
    assert {name: taken for name, (limit, taken) in limits.items() if taken > limit} == {}


def seconds_to_write(history: HistoryDatabase) -> Iterator[float]:
    for start in range(0, EVENTS, BATCH):
        batch = [numbered(number) for number in range(start, start + BATCH)]
        began = time.perf_counter()
        assert history.write(batch) == []
        yield time.perf_counter() - began
