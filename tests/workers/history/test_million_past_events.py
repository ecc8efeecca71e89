"""A million past events in each database: how fast they are written, shown and found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from receiver.inbox import keys
from tests.faults.test_history_kills import settle
from tests.support.harness import System
from tests.support.past_events import DAY, NOVEMBER, past_event
from tests.support.postgres import Postgres, needs_postgres
from tests.workers.history.conftest import opened
from workers.history.event_filter import EventFilter, where_of
from workers.history.past_events import HistoryDatabase, PastEvent
from workers.runtime.history_mover import Mover

EVENTS, DAYS, BATCH = 1_000_000, 90, 1_000
MOVED = 20_000
RATES = {"sqlite": 3_000, "postgresql": 1_500}
"""Events that must be moved in a second."""


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


class Rate:
    """Events in a second. Where other programs use the machine, the CPU time of all that takes part in it is what the
    same would take alone: they work one after the other."""

    def __init__(self, *others: Callable[[], float]) -> None:
        self._clocks = (time.process_time, *others)
        self.seconds = 0.0
        self.cpu_seconds = [0.0] * len(self._clocks)

    @contextmanager
    def measured(self) -> Iterator[None]:
        began, before = time.perf_counter(), [clock() for clock in self._clocks]
        yield
        self.seconds += time.perf_counter() - began
        spent = [clock() - start for clock, start in zip(self._clocks, before, strict=True)]
        self.cpu_seconds = [one + more for one, more in zip(self.cpu_seconds, spent, strict=True)]

    def alone(self, events: int) -> float:
        return events / min(self.seconds, sum(self.cpu_seconds))

    def milliseconds(self, call: Callable[[], object]) -> float:
        """Of one call: the fastest of some, or their CPU time, if others use the machine."""
        all_calls, fastest = Rate(*self._clocks[1:]), float("inf")
        for _ in range(15):
            before = all_calls.seconds
            with all_calls.measured():
                call()
            fastest = min(fastest, all_calls.seconds - before)
        return 1000 * min(fastest, sum(all_calls.cpu_seconds) / 15)

    def text(self, events: int) -> str:
        each = " + ".join(f"{one / events * 1e6:.0f}" for one in self.cpu_seconds)
        return f"{events / self.seconds:,.0f} events/s, {each} us of CPU each: {self.alone(events):,.0f}/s alone"


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def test_a_million_past_events_are_written_shown_and_found_in_time(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    history, rate = database(kind, tmp_path, request)
    for start in range(0, EVENTS, BATCH):
        batch = [numbered(number) for number in range(start, start + BATCH)]
        with rate.measured():
            assert history.write(batch) == []
    one = EVENTS // 3
    by_email = EventFilter(where=[where_of(f"customer.email=buyer{one}@example.com")])
    limits = {
        "show": (20, rate.milliseconds(lambda: history.event(numbered(one).id))),
        "by delivery id": (100, rate.milliseconds(lambda: history.find(EventFilter(delivery_id=f"msg_{one}")))),
        "by resource id": (100, rate.milliseconds(lambda: history.find(EventFilter(resource_id=f"{one}")))),
        "by store": (100, rate.milliseconds(lambda: history.find(EventFilter(store="store7")))),
        "by topic": (100, rate.milliseconds(lambda: history.find(EventFilter(topic="order.paid")))),
    }
    if kind == "postgresql":
        limits["by payload field"] = (300, rate.milliseconds(lambda: history.find(by_email)))
    sizes = history.sizes()
    history.close()
    with capsys.disabled():
        print(f"\n{kind}: {rate.text(EVENTS)}; {sizes.bytes / EVENTS:,.0f} bytes for each event")
        print(*(f"  {name}: {taken:.1f} ms, at most {limit}" for name, (limit, taken) in limits.items()), sep="\n")
    assert rate.alone(EVENTS) >= RATES[kind]
    assert {name: taken for name, (limit, taken) in limits.items() if taken > limit} == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def test_settled_events_are_moved_in_time(
    kind: str, system: System, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    def server_seconds() -> float:
        info = system.client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    settle(system, system.inbox, MOVED)
    history, rate = database(kind, tmp_path, request, server_seconds)
    mover = Mover(system.client, history)
    with rate.measured():
        while mover.move(age=0, known_for=3600).examined:
            pass
    history.close()
    assert system.client.zcard(keys.DONE) == 0
    with capsys.disabled():
        print(f"\n{kind}: moved: {rate.text(MOVED)}")
    assert rate.alone(MOVED) >= RATES[kind]


def database(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, *clocks: Callable[[], float]
) -> tuple[HistoryDatabase, Rate]:
    place: Path | str = tmp_path / "history"
    if kind == "postgresql":
        server: Postgres = request.getfixturevalue("server")
        place, clocks = server.new_database(), (*clocks, server.cpu_seconds)
    history = opened(place)
    history.check()
    return history, Rate(*clocks)
