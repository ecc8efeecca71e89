"""What is known of released deliveries: beside the refusals, within bounds, and never in their way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from receiver.config.values import Bounds
from receiver.spool import (
    REFUSED_FILE,
    REFUSED_FORMAT,
    Refusal,
    Refusals,
    ReleasedEvent,
    check_format,
    compact,
    open_refusals,
    released_deliveries,
)
from receiver.spool.database import LISTED, PAGE

EVER = (0.0, 0), (1e9, 0)
BOUNDS = Bounds(3600, 4 << 20)


def released(number: int, at: float = 1.5, occurred: float | None = None) -> ReleasedEvent:
    return ReleasedEvent(at, number, 1, "a boot", 7, "north", f"{number:032d}", "0" * 12, occurred, f"{number:026d}")


def with_refusals(folder: Path, many: int) -> Refusals:
    refusals = open_refusals(folder)
    one = Refusal(1.0, "north", "north", "no-signature", 1, "0" * 16, "192.0.2.1", {"a": "b"}, b"x")
    refusals.add([one] * many, bounds=BOUNDS, now=1.0)
    return refusals


def test_they_are_read_as_they_were_written_in_order_of_arrival_up_to_the_one_asked_for(tmp_path: Path) -> None:
    refusals = with_refusals(tmp_path, 3)
    assert refusals.released(*EVER) == []
    late, first, second = released(1, 9.25, 8.125), released(2), released(3)
    refusals.delete([1], released=[late])
    refusals.delete([2, 3], released=[second, first, first])
    assert refusals.released(*EVER) == [first, second, late]
    assert refusals.released(first.order, second.order) == [second]
    assert refusals.count() == 0


def test_a_file_with_them_has_the_format_that_other_versions_read(tmp_path: Path) -> None:
    """A table more is no other format, also once the file was compacted."""
    refusals, file = with_refusals(tmp_path, 2), tmp_path / REFUSED_FILE
    refusals.delete([1], released=[released(1)])
    refusals.close()
    for _ in range(2):
        check_format(file, REFUSED_FORMAT)
        with closing(open_refusals(tmp_path)) as again:
            assert (again.count(), again.released(*EVER)) == (1, [released(1)])
        with closing(sqlite3.connect(file)) as found:
            assert len({*found.execute(LISTED)} - REFUSED_FORMAT._listed) != 0
        assert compact(tmp_path) == []


def test_as_old_refusals_they_are_deleted_by_age(tmp_path: Path) -> None:
    refusals = with_refusals(tmp_path, 1)
    refusals.delete([1], released=[released(1, 10.0), released(2, 20.0)])
    refusals.add([], bounds=BOUNDS, now=3600.0 + 15)
    assert refusals.released(*EVER) == [released(2, 20.0)]


def test_beyond_their_number_the_oldest_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released_deliveries, "MOST", 3)
    refusals = open_refusals(tmp_path)
    for number in range(5):
        refusals.delete([], released=[released(number, 9.0 - number)])
    assert [one.id for one in refusals.released(*EVER)] == [2, 1, 0]


def test_a_damaged_row_is_left_out(tmp_path: Path) -> None:
    refusals = open_refusals(tmp_path)
    refusals.delete([], released=[released(1), released(2)])
    with closing(sqlite3.connect(tmp_path / REFUSED_FILE)) as file, file:
        file.execute("UPDATE released SET store = x'ff' WHERE id = 1")
    assert refusals.released(*EVER) == [released(2)]


def test_a_damaged_table_does_not_keep_refusals_from_being_removed_or_added(tmp_path: Path) -> None:
    refusals, file = with_refusals(tmp_path, 2), tmp_path / REFUSED_FILE
    refusals.delete([], released=[released(1)])
    refusals.close()
    with closing(sqlite3.connect(file)) as found:
        (page,) = found.execute("SELECT rootpage FROM sqlite_master WHERE name = 'released'").fetchone()
    with file.open("r+b") as raw:
        raw.seek((page - 1) * PAGE)
        raw.write(b"\xff" * PAGE)
    with closing(open_refusals(tmp_path)) as again:
        assert again.released(*EVER) == []
        again.delete([1], released=[released(2)])
        again.add([], bounds=BOUNDS, now=2.0)
        assert again.count() == 1
