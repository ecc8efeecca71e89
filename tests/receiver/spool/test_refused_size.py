"""The file of refused deliveries stays within its size, whatever is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from receiver.config.values import Bounds
from receiver.spool import REFUSED_FILE, Refusal, open_refusals
from receiver.spool.database import WAL_BYTES

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
