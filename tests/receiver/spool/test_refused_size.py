"""The file of refused deliveries stays within its size, whatever is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from receiver.config.values import Bounds
from receiver.spool import REFUSED_FILE, Refusal, Refusals, open_refusals
from receiver.spool.database import PAGE, SPARE_PAGES, WAL_BYTES, checkpoint

LIMIT = Bounds(1e9, 4 << 20)
BATCH = 1 << 20


def refusal(headers: Mapping[str, str], body: bytes) -> Refusal:
    return Refusal(1.0, "north", "north", "no-signature", len(body), "0" * 16, "192.0.2.1", headers, body)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({f"x-{n}": '"' * 7000 for n in range(8)}, b"{}"),
        ({f"x-{n}": "\xe9" * 7000 for n in range(8)}, b"{}"),
        ({f"x-{n}": "a" + "\t" * 7000 + "b" for n in range(8)}, b"{}"),
        ({"x": "y"}, b"x" * 200_000),
        ({"x": "y"}, b""),
        *(({}, b"x" * size) for size in (600, 1_250, 1_985, 2_040, 2_060, 4_061, 8_170, 12_270)),
    ],
    ids=lambda value: f"{len(value)}",
)
def test_what_is_charged_is_what_it_takes(headers: Mapping[str, str], body: bytes, tmp_path: Path) -> None:
    one = refusal(headers, body)
    refusals = open_refusals(tmp_path)
    for _ in range(8):
        refusals.add([one] * (BATCH // one.cost), bounds=LIMIT, now=1.0)
    refusals.close()
    size = (tmp_path / REFUSED_FILE).stat().st_size
    print(f"\n{size / LIMIT.max_bytes:.2f} of the limit")
    assert size <= LIMIT.max_bytes + BATCH


@pytest.mark.full
def test_a_journal_that_has_grown_is_truncated_by_the_next_write(tmp_path: Path) -> None:
    """It grows while a reader or another writer is always busy with its end."""
    refusals, journal = open_refusals(tmp_path), tmp_path / f"{REFUSED_FILE}-wal"
    refusals.add([refusal({}, b"")], bounds=LIMIT, now=1.0)
    with closing(sqlite3.connect(tmp_path / REFUSED_FILE, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM refused").fetchone()
        while journal.stat().st_size <= 2 * WAL_BYTES:
            refusals.add([refusal({}, b"x" * 200_000)] * 5, bounds=LIMIT, now=1.0)
    refusals.add([refusal({}, b"")], bounds=LIMIT, now=1.0)
    assert journal.stat().st_size <= WAL_BYTES


def test_a_file_that_may_not_grow_stores_new_bodies_in_the_place_of_old_ones(tmp_path: Path) -> None:
    refusals, one = open_refusals(tmp_path), refusal({}, b"x" * 50_000)
    refusals.add([one] * 20, bounds=LIMIT, now=1.0)
    newest = refusals.last_id()
    for _ in range(3):
        refusals.add([one] * 5, bounds=LIMIT, now=1.0, may_grow=False)
    assert (refusals.count(), refusals.count_with_body()) == (35, 20)
    assert all(stored.id > newest - 5 for batch in refusals.with_body() for stored in batch)


def test_a_file_shrinks_when_its_limit_is_lowered(tmp_path: Path) -> None:
    """It kept its size, although the runbook of a full disk said that it shrinks by itself."""
    refusals, file, one = open_refusals(tmp_path), tmp_path / REFUSED_FILE, refusal({}, b"x" * 200_000)
    refusals.add([one] * 200, bounds=Bounds(1e9, 64 << 20), now=1.0)
    checkpoint(refusals._db)
    assert file.stat().st_size > 32 << 20
    small, rounds = LIMIT.max_bytes + (SPARE_PAGES + 100) * PAGE, 0
    while file.stat().st_size > small and rounds < 100:  # each returns a part, for a quarter of a second at most
        refusals.add([], bounds=LIMIT, now=1.0)
        rounds += 1
    assert file.stat().st_size <= small


@pytest.mark.parametrize("size", [900_000, 600])
def test_deleting_what_has_expired_takes_little_disk_space(tmp_path: Path, size: int) -> None:
    """The journal took as much as was deleted: it filled a disk with 45 MB free, and stayed."""
    refusals, journal, peaks = open_refusals(tmp_path), tmp_path / f"{REFUSED_FILE}-wal", list[int]()
    for _ in range(10):
        refusals.add([refusal({}, b"x" * size)] * min(4_000, (4 << 20) // size), bounds=Bounds(60, 64 << 20), now=2.0)
    refusals._db.set_trace_callback(lambda _: peaks.append(journal.stat().st_size))
    refusals.add([], bounds=Bounds(60, 64 << 20), now=100.0)
    assert (refusals.count(), refusals.count_with_body()) == (0, 0)
    assert max(peaks) <= 2 * WAL_BYTES


def test_refusals_are_written_once_although_the_trim_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals, one = open_refusals(tmp_path), refusal({}, b"")
    for _ in range(3):
        refusals.add([one] * 2_000, bounds=Bounds(60, 64 << 20), now=2.0)
    passes = iter([True])

    def trim(*given: object) -> bool:
        if next(passes, False):
            return Refusals._trim(refusals, *given)
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(refusals, "_trim", trim)
    refusals.add([replace(one, at=100.0)], bounds=Bounds(60, 64 << 20), now=100.0)
    assert [stored.at for stored in refusals.newest(limit=2)] == [100.0, 1.0]
