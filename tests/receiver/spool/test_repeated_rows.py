"""Of equal deliveries without an id within a window, the spool has the first and the latest. No update is lost."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from receiver.contract.intake import Delivery
from receiver.spool import SpooledEvents, open_events, spooled_events
from receiver.spool.uptime import Uptime
from tests.support.harness import System

WINDOW = 10.0


class Arrival(NamedTuple):
    at: float
    content: str


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds since boot, to be set."""
    now = [0.0]
    monkeypatch.setattr(spooled_events, "read_uptime", lambda: Uptime("boot", round(now[0] * 1000)))
    return now


def delivery(system: System, content: str) -> Delivery:
    return replace(system.delivery(data={"id": 7, "price": content}), content_hash=content)


def rows_of(spool: SpooledEvents, now: float) -> list[Arrival]:
    found = spool.oldest(100_000)
    return [Arrival(round(now - row.waited, 3), row.delivery.content_hash) for row in found if row.delivery]


def judge(rows: list[Arrival], before: dict[str, float]) -> list[Arrival]:
    """The rule of the inbox, if each content is of another resource: one is an event unless it came within the window
    of an event with the same content."""
    events, last = list[Arrival](), dict(before)
    for row in rows:
        if row.at - last.get(row.content, -WINDOW) >= WINDOW:
            events.append(row)
            last[row.content] = row.at
    return events


def judge_one_resource(rows: list[Arrival]) -> list[Arrival]:
    """The same if all are of one resource: then it is also an event if the one before it has another content."""
    events, last = list[Arrival](), dict[str, float]()
    for row in rows:
        if not events or events[-1].content != row.content or row.at - last[row.content] >= WINDOW:
            events.append(row)
            last[row.content] = row.at
    return events


def check(contents: str, before: dict[str, float], arrivals: list[Arrival], rows: list[Arrival]) -> None:
    assert rows == sorted(rows), "in the order of arrival"
    assert judge_one_resource(rows)[-1].content == arrivals[-1].content, "the events end with the last state"
    events, exact = judge(rows, before), judge(arrivals, before)
    for content in contents:
        arrived = [one for one in arrivals if one.content == content]
        assert sum(one.content == content for one in rows) <= 2 * len(judge(arrived, {}))
        known = [before.get(content, -WINDOW), *(one.at for one in events if one.content == content)]
        assert not arrived or any(0 <= arrived[-1].at - at < WINDOW for at in known), "the last state is known"
        for one in arrived:
            assert any(-WINDOW < one.at - at < WINDOW for at in known), "and every one before it"
        if content not in before:
            assert [one for one in events if one.content == content] == [one for one in exact if one.content == content]


@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 60), marks=pytest.mark.full)])
def test_each_update_is_an_event_or_within_the_window_of_one(
    system: System, tmp_path: Path, clock: list[float], seeds: range
) -> None:
    """Random arrivals, some after an event that only the inbox knows, against the rule of the inbox."""
    for seed in seeds:
        chance = random.Random(seed)
        contents = "ABC"[: chance.randint(1, 3)]
        before = {one: -chance.uniform(0, WINDOW) for one in contents if chance.random() < 0.5}
        clock[0], arrivals = 0.0, list[Arrival]()
        with closing(open_events(tmp_path / str(seed), repeat_window=WINDOW)) as spool:
            for _ in range(chance.randint(1, 60)):
                pause = chance.choice([0.01, 0.5, 3.0, 10.0, 25.0]) * chance.random()
                clock[0] = round(clock[0] + 0.001 + pause, 3)
                arrivals.append(Arrival(clock[0], chance.choice(contents)))
                spool.add([delivery(system, arrivals[-1].content)])
            check(contents, before, arrivals, rows_of(spool, clock[0]))


def test_a_repeat_is_answered_with_the_id_of_the_first_and_counted(
    system: System, tmp_path: Path, clock: list[float]
) -> None:
    with closing(open_events(tmp_path, repeat_window=WINDOW)) as spool:
        first, *repeats = (spool.add([delivery(system, "A")])[0] for _ in range(50))
        assert first.status == "accepted"
        assert {(one.status, one.id) for one in repeats} == {("duplicate", first.id)}
        assert spool.count() == 2
        rows = spool.oldest(10)
        assert rows[0].id == first.id
        assert spool.delete(rows) == {"north": 48}, "the inbox counts the latest itself"
        assert spool.count() == 0
        assert spool.bytes_by_store() == {}


def test_a_repeat_that_is_replaced_while_it_is_drained_is_no_damage(
    system: System, tmp_path: Path, clock: list[float]
) -> None:
    with closing(open_events(tmp_path, repeat_window=WINDOW)) as spool:
        for _ in range(3):
            spool.add([delivery(system, "A")])
        drained = spool.oldest(10)
        spool.add([delivery(system, "A")])
        spool.delete(drained)
        (left,) = spool.oldest(10)
        assert left.key not in [row.key for row in drained], "it is to be judged, too"
        spool.delete([left])
        assert spool.count() == 0


@pytest.mark.parametrize(("content", "window"), [("", WINDOW), ("A", 0.0)])
def test_what_may_be_an_event_of_its_own_has_a_row_of_its_own(
    system: System, tmp_path: Path, clock: list[float], content: str, window: float
) -> None:
    """One with an id, or with a body that only names what has changed; or any, where repeats are not recognised."""
    given = [delivery(system, content) for _ in range(5)]
    with closing(open_events(tmp_path, repeat_window=window)) as spool:
        assert {one.status for one in spool.add(given)} == {"accepted"}
        assert spool.count() == 5


def test_a_first_that_was_not_written_is_forgotten(system: System, tmp_path: Path, clock: list[float]) -> None:
    """Else the next one would be answered with an id that leads nowhere."""
    event = replace(system.delivery().event, body=None)  # type: ignore[arg-type]
    with closing(open_events(tmp_path, repeat_window=WINDOW)) as spool:
        with pytest.raises(TypeError):
            spool.add([delivery(system, "A"), Delivery(event, theirs="order.paid")])
        assert spool.add([delivery(system, "A")])[0].status == "accepted"
        assert spool.count() == 1
