"""Under load and faults no run is lost. A short form for every test run, the long one for `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.soak import Report, Soak

RECOVERY = 10.0


def soak(folder: Path, *, seconds: float, pause: float, seed: int, runs: int = 0, faults: int = 0) -> Report:
    one = Soak(folder, seconds=seconds, seed=seed, runs=runs, faults=faults)
    try:
        report = one.run(pause=pause)
    finally:
        one.close()
    print(f"\nseed {seed}\n{report}")
    return report


def check(report: Report) -> None:
    assert report.lost == []
    assert report.wrong_samples == []
    assert report.answered
    assert report.worst <= RECOVERY, report.worst_run
    assert report.spooled or not report.faults["kill server"], "deliveries went to the spool while the server was down"


def test_nothing_is_lost_while_processes_are_killed_at_random(tmp_path: Path) -> None:
    report = soak(tmp_path, seconds=8, pause=0.5, seed=11, faults=12)
    assert sum(report.faults.values()) >= 12
    check(report)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_is_lost_over_two_hundred_faults_and_a_hundred_thousand_runs(tmp_path: Path) -> None:
    report = soak(tmp_path, seconds=200, pause=0.9, seed=12, runs=100_500, faults=200)
    assert sum(report.faults.values()) >= 200
    assert report.runs >= 100_000
    check(report)
