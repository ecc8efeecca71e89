"""Charts and small pictures: the numbers in them, and text from outside, which stays text."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from receiver.inbox.queries.time_series import NAMES, Sample, changes
from workers.console.drawings import band, chart_data, trend
from workers.operations.traffic import Deploy, HourState, StoreHour, Traffic, grouped

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def traffic(*samples: tuple[int, int, int], step: int = 10) -> Traffic:
    """Samples of a second, with accepted and failed."""
    found = [
        Sample(NOON + timedelta(seconds=at), {**dict.fromkeys(NAMES, 0), "accepted": accepted, "failed": failed})
        for at, accepted, failed in samples
    ]
    return Traffic(found, grouped(changes(found), step), [], [Deploy(NOON, "erp.export <b>")], step)


def test_a_chart_has_rates_and_levels() -> None:
    data = json.loads(chart_data(traffic((0, 0, 0), (10, 5, 2), (20, 5, 1))))
    start = NOON.timestamp()
    assert data["at"] == [start + 10, start + 20]
    assert data["accepted"] == [30, 0], "per minute"
    assert data["failed"] == [2, 1], "at the time"
    assert data["deploys"] == [{"at": start, "text": "erp.export <b>"}]


def test_a_minute_that_is_not_over_is_not_shown() -> None:
    """The first one was, as if it were whole: 20 a minute for two minutes were 0.8 a minute in an hour."""
    assert chart_data(traffic((0, 0, 0), (10, 30, 0), step=60)) == ""
    data = json.loads(chart_data(traffic((0, 0, 0), (50, 40, 0), (60, 48, 0), (70, 78, 0), step=60)))
    assert data["accepted"] == [48], "the next minute has only begun"
    assert data["at"] == [NOON.timestamp() + 60]
    nearly = json.loads(chart_data(traffic((0, 0, 0), (60, 48, 0), (110, 78, 0), step=60)))
    assert nearly["accepted"] == [48], "the next minute is not over"


def test_times_without_samples_are_a_gap_in_the_line() -> None:
    data = json.loads(chart_data(traffic((0, 0, 0), (10, 5, 0), (130, 17, 0))))
    start = NOON.timestamp()
    assert data["at"] == [start + 10, start + 11, start + 130]
    assert data["accepted"] == [30, None, 6]
    assert data["open"] == [0, None, 0]


def test_a_trend_is_a_picture_with_a_title() -> None:
    drawn = trend([0, 4, 1])
    assert "5 in the last 3 hours, 1 in the last one" in drawn
    assert drawn.count("M") == 2
    assert "v-20" in drawn
    assert "style" not in drawn, "the Content-Security-Policy forbids it"
    assert trend([]).count("M") == 0


def test_a_band_has_a_row_for_each_day() -> None:
    hours = [
        StoreHour(NOON + timedelta(hours=n), HourState.GAP if n == 30 else HourState.NORMAL, 3) for n in range(168)
    ]
    rows = band(hours)
    assert [first.since for first, _ in rows] == [NOON + timedelta(days=n) for n in range(7)]
    assert [picture.count('class="gap"') for _, picture in rows] == [0, 1, 0, 0, 0, 0, 0]
    assert "2026-11-17 18:00 UTC: gap, 3 accepted" in rows[1][1]
