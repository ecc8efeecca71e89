"""Traffic: what the rings of time series become for charts, tables and the band of a store's week."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from receiver.inbox import keys
from receiver.inbox.queries.time_series import NAMES, Sample, changes
from receiver.inbox.sampling import Sampler
from tests.support.harness import System
from workers.operations.traffic import SPANS, Deploy, HourState, deploys, grouped, read_traffic, store_hours

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def sample(at: datetime, **values: int) -> Sample:
    return Sample(at, {**dict.fromkeys(NAMES, 0), **values})


def test_a_table_has_the_sums_of_the_chart() -> None:
    samples = [sample(NOON + timedelta(seconds=10 * n), accepted=n * n, open=n) for n in range(90)]
    found = changes(samples)
    rows = grouped(found, 300)
    assert [one.since for one in rows] == [NOON, NOON + timedelta(minutes=5), NOON + timedelta(minutes=10)]
    assert [one.counts["accepted"] for one in rows] == [30**2, 60**2 - 30**2, 89**2 - 60**2]
    assert [one.levels["open"] for one in rows] == [30, 60, 89]
    assert rows[-1].until == samples[-1].at


@pytest.mark.parametrize("span", SPANS)
def test_the_traffic_of_a_range_is_read_with_its_deploys(system: System, span: str) -> None:
    ring, *_ = SPANS[span]
    now = int(time.time())
    old, new = now - ring.step * (ring.slots - 2), now - ring.step
    sampler = Sampler(system.client)
    sampler.write(old)
    system.accept()
    sampler.write(new)
    times = {"0": (now - ring.step * ring.slots - 10) * 1000, "1": (old - 10) * 1000, "2": new * 1000}
    for handler in ("erp.export", "erp.vip"):
        system.client.zadd(keys.VERSIONS + handler, times)
    traffic = read_traffic(system.client, span, ["erp.export", "erp.vip", "no.such"])
    assert [one.counts["accepted"] for one in traffic.changes] == [1]
    assert [one.counts["accepted"] for one in traffic.rows] == [1]
    deployed = ["erp.export 1, erp.vip 1", "erp.export 2, erp.vip 2"]
    assert [one.text for one in traffic.deploys] == deployed, "also those before the first sample of a new installation"


def test_versions_of_about_the_same_time_are_one_deploy() -> None:
    declared = {f"erp.h{n}": {"7": NOON + timedelta(seconds=n), "6": NOON - timedelta(days=1)} for n in range(4)}
    yesterday, today = deploys(declared)
    assert today == Deploy(NOON, "erp.h0 7, erp.h1 7, erp.h2 7 and 1 more handler")
    assert yesterday.at == NOON - timedelta(days=1)
    assert len(deploys({"a.b": {"1": NOON, "2": NOON + timedelta(seconds=90)}})) == 2


def week(**hours: tuple[int, int]) -> list[Sample]:
    """Hourly samples of a week with 20 accepted in each hour, but others at some hours before NOON, as h3=(accepted,
    refused)."""
    accepted = refused = 0
    samples = [sample(NOON - timedelta(hours=168), accepted=0)]
    for before in reversed(range(168)):
        more, less = hours.get(f"h{before}", (20, 0))
        accepted, refused = accepted + more, refused + less
        samples.append(
            sample(NOON - timedelta(hours=before) + timedelta(minutes=20), accepted=accepted, refused=refused)
        )
    return samples


def states(samples: list[Sample], *repairs: datetime) -> dict[int, HourState]:
    """The hours that are not normal, by how many hours before NOON they began."""
    found = store_hours(samples, repairs, NOON + timedelta(minutes=30))
    assert len(found) == 168
    assert (found[0].since, found[-1].since) == (NOON - timedelta(hours=167), NOON)
    return {
        round((NOON - one.since) / timedelta(hours=1)): one.state for one in found if one.state is not HourState.NORMAL
    }


def test_an_hour_of_a_store_is_normal_low_a_gap_refused_or_repaired() -> None:
    assert states(week()) == {}
    assert states(week(h3=(4, 0), h5=(0, 0), h8=(20, 3), h9=(20, 2))) == {
        3: HourState.LOW,
        5: HourState.GAP,
        8: HourState.REFUSED,
    }
    assert states(week(h3=(0, 0)), NOON - timedelta(hours=2.5)) == {3: HourState.REPAIRED}


def test_the_hour_that_is_not_over_is_neither_low_nor_a_gap() -> None:
    assert states(week(h0=(0, 0))) == {}
    assert states(week(h0=(0, 1))) == {0: HourState.REFUSED}


def test_what_is_usual_is_that_of_the_same_hour_of_other_days() -> None:
    nights = {f"h{before}": (0, 0) for before in range(1, 168) if (NOON - timedelta(hours=before)).hour < 7}
    assert states(week(**nights)) == {}
    assert states(week(**nights, h2=(1, 0))) == {2: HourState.LOW}


def test_a_store_with_few_events_has_no_gaps() -> None:
    few = {f"h{before}": (before % 2 * 2, 0) for before in range(168)}
    assert states(week(**few)) == {}


def test_hours_without_samples_are_unknown() -> None:
    samples = week()
    del samples[100:103]
    found = states(samples)
    assert set(found.values()) == {HourState.UNKNOWN}
    assert len(found) == 4, "the hours without a sample, and the one that has the counts of all four"
    assert set(states([]).values()) == {HourState.UNKNOWN}
