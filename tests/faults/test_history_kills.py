"""Housekeepers and servers are killed while events are moved to the history: each event is shown exactly once."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from receiver.contract.intake import Delivery
from receiver.inbox import EventQueries, Inbox, Outcome, connect
from receiver.inbox.history_moves import HistoryMoves
from receiver.inbox.outcomes import OutcomeKind
from tests.support.harness import Process, Server, System
from tests.support.moving_process import history_at
from tests.support.postgres import needs_postgres, postgres_server
from workers.history.event_filter import EventFilter
from workers.operations.all_events import AllEvents

HANDLER = "erp.export"


def settle(system: System, inbox: Inbox, number: int) -> list[Delivery]:
    """Events that are handled and settled, a hundred at a time."""
    deliveries: list[Delivery] = []
    sample = system.delivery()
    for start in range(0, number, 100):
        part = [
            replace(
                sample,
                event=replace(sample.event, id=f"{at:026}", delivery_id=f"msg_{at}", resource_id=str(at)),
                first_id="",
            )
            for at in range(start, start + 100)
        ]
        inbox.accept(part)
        events = inbox.claim({"": 100}, capacity=100).runs
        inbox.route([(one, [(HANDLER, "default", True)]) for one in events], inbox.declarations().version)
        runs = [replace(one, item=f"{one.stored.id}|{HANDLER}", handler=HANDLER) for one in events]
        inbox.finish([Outcome(run, OutcomeKind.DONE, {"result": run.stored.id, "version": "1"}) for run in runs])
        deliveries += part
    return deliveries


@contextmanager
def identity_watched(url: str) -> Iterator[list[bool]]:
    """Whether accepted = settled + open + failed, sampled all the time."""
    samples: list[bool] = []
    ended = threading.Event()

    def watch() -> None:
        queries = EventQueries(connect(url, timeout=1.0))
        while not ended.wait(0.02):
            try:
                total = queries.counters().total
            except RedisError:
                continue
            samples.append(total["accepted"] == total["settled"] + total["open"] + total["failed"] > 0)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def shown(url: str, place: str, many: int) -> Counter[str]:
    """How often the list of all events shows each."""
    listing = AllEvents(connect(url, timeout=5.0), history_at(place)).find(EventFilter(), limit=2 * many, seconds=300)
    assert not listing.fault
    assert listing.looked_back_to is None
    return Counter(one.id for one in listing.events)


def restart(server: Server) -> None:
    server.kill()
    server.start(within=120)  # it reads all of its data


def move_with_kills(
    system: System,
    server: Server,
    place: str,
    *,
    number: int,
    kills: int,
    pause: float = 0.0,
    restarts: tuple[Callable[[], object], ...] = (),
) -> tuple[list[bool], int]:
    """Two movers move events without a lock. They are killed at random moments, and so are the servers."""
    chance = random.Random(7)
    restarts = (lambda: restart(server), *restarts)
    deliveries = settle(system, Inbox(server.client), number)
    moves = HistoryMoves(server.client)
    expected = {one.event.id: 1 for one in deliveries}
    command = [sys.executable, "-m", "tests.support.moving_process", server.url, place, str(pause)]
    killed = 0
    with identity_watched(server.url) as samples:
        movers = [Process(command, log=system.folder / f"mover{one}.log") for one in range(2)]
        while killed < kills and moves.waiting(age=0):
            time.sleep(chance.uniform(0.0, 0.3))  # the moment of the kill is random
            if chance.random() < 0.2:
                chance.choice(restarts)()
            else:
                victim = chance.randrange(2)
                movers[victim].kill()
                movers[victim] = Process(command, log=system.folder / f"mover{victim}.log")
            killed += 1
            if killed % (kills // 3) == 0:
                assert shown(server.url, place, number) == expected
        for one in movers:
            one.kill()
        Process([*command[:-1], "0"], log=system.folder / "last_mover.log").wait(600)
    assert moves.waiting(age=0) == 0
    assert shown(server.url, place, number) == expected
    past = AllEvents(connect(server.url, timeout=5.0), history_at(place))
    for delivery in chance.sample(deliveries, min(number, 500)):
        record = past.event(delivery.event.id)
        assert record
        assert [(run.handler, run.result) for run in record.runs] == [(HANDLER, delivery.event.id)]
        assert record.body == delivery.event.body
    arrived = system.delivery().event.received_at
    again = [replace(one, event=replace(one.event, received_at=arrived)) for one in deliveries[:500]]
    assert {one.status for one in Inbox(server.client).accept(again)} == {"duplicate"}
    return samples, killed


@pytest.mark.full
def test_events_are_moved_once_while_movers_and_the_server_are_killed(
    system: System, own_redis: Server, tmp_path: Path
) -> None:
    samples, killed = move_with_kills(system, own_redis, str(tmp_path / "history"), number=1000, kills=5)
    assert killed >= 3
    assert samples
    assert all(samples)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_events_are_moved_once_during_a_hundred_kills(
    system: System, own_redis: Server, tmp_path: Path
) -> None:
    samples, killed = move_with_kills(
        system, own_redis, str(tmp_path / "history"), number=100_000, kills=100, pause=0.3
    )
    assert killed == 100
    assert all(samples)


@needs_postgres
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("number", "kills", "least", "pause"),
    [
        pytest.param(2000, 15, 3, 0.0, marks=pytest.mark.full),
        pytest.param(100_000, 100, 100, 0.3, marks=pytest.mark.slow),
    ],
)
def test_events_are_moved_once_while_postgresql_is_killed_too(
    system: System, own_redis: Server, number: int, kills: int, least: int, pause: float
) -> None:
    with postgres_server() as postgres:

        def restart_database() -> None:
            postgres.stop("immediate")
            postgres.start()

        samples, killed = move_with_kills(
            system,
            own_redis,
            postgres.new_database(),
            number=number,
            kills=kills,
            pause=pause,
            restarts=(restart_database,) * 3,
        )
    assert killed >= least
    assert all(samples)
