"""The drill counts what it should, and a row that lost a delivery fails."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from tests.drill.counting import count, read_answers, read_effects
from tests.drill.rows import ROWS
from tests.drill.table import Result, summary, table
from tests.support.programs import ROOT

ANSWERS = """10.0 10.1 north 200 a -
10.5 11.0 south 200 b -
11.0 11.1 north 200 c -
12.0 14.0 north 503 - -
13.0 23.0 south 0 - TimeoutError
"""
EFFECTS = """a shop.fast 10.2 1
a shop.slow 10.4 1
b shop.fast 13.5 1
b shop.slow 12.0 1
b shop.slow 13.0 2
c shop.fast 11.2 2
"""


def test_deliveries_are_counted_from_what_sender_and_handlers_noted() -> None:
    found = count(read_answers(ANSWERS), read_effects(EFFECTS), ("shop.fast", "shop.slow"))
    assert (found.sent, found.accepted, found.failed) == (5, 3, Counter({"503": 1, "TimeoutError": 1}))
    assert [one.event_id for one in found.not_handled] == ["c"], "one of its handlers did not run"
    assert (found.beyond_one, found.worst_delay, found.worst_answer) == (1, 2.5, 10.0)


def test_a_row_fails_by_a_lost_delivery_a_failed_one_and_by_what_doctor_finds() -> None:
    found = count(read_answers(ANSWERS), read_effects(EFFECTS), ("shop.fast", "shop.slow"))
    row = replace(ROWS[0], none_may_fail=False)
    assert Result(row, found, well_after=1.0).wrong == ["1 accepted and not handled, answered within 0.0 s"]
    assert Result(replace(row, may_lose_seconds=1.0), found, well_after=1.0).wrong == []
    assert Result(replace(row, may_lose_seconds=1.0, none_may_fail=True), found, well_after=1.0).wrong == [
        "2 failed deliveries"
    ]
    result = Result(replace(row, may_lose_seconds=1.0), found, well_after=None, left="FAIL spool: it is full")
    assert result.wrong == ["doctor: FAIL spool: it is full"]
    assert "never" in table([result])
    assert "1 x 503, 1 x TimeoutError" in table([result])
    assert summary([result], 60).endswith("1 rows, 1 failed, 1.0 minutes")


def test_a_loss_that_goes_on_for_longer_than_it_may_fails_the_row() -> None:
    answers = [line.replace("10.1", "8.0") for line in ANSWERS.splitlines()]
    found = count(read_answers("\n".join(answers)), [], ("shop.fast", "shop.slow"))
    row = replace(ROWS[0], may_lose_seconds=3.0)
    assert Result(row, found, well_after=1.0).wrong == ["3 accepted and not handled, answered within 3.1 s"]
    assert Result(replace(row, may_lose_seconds=3.2), found, well_after=1.0).wrong == []


def test_every_failover_has_a_row_of_its_own_and_only_a_live_primary_with_stored_may_lose() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert sum("failover" in name for name in names) == 8
    assert [row.name for row in ROWS if row.may_lose_seconds] == [
        "failover from live primary (stored)",
        "failover from live primary (stored + min-replicas)",
    ]


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_row_of_the_drill_runs_and_prints_its_table() -> None:
    command = [sys.executable, "-m", "tests.drill", "--rows", "kill worker", "--rate", "50"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rows, 0 failed" in done.stdout
