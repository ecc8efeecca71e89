"""Compaction: writes the files of this host anew, so that they have nothing of rows that were deleted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from receiver.spool.database import connect
from receiver.spool.refused_deliveries import REFUSED_FILE
from receiver.spool.spooled_events import newest_events_file


def compact(data_dir: Path) -> list[str]:
    """Returns why a file could not be compacted, with its name: it is damaged, or was in use all the time."""
    faults = []
    for path in (newest_events_file(data_dir), data_dir / REFUSED_FILE):
        if not path.exists():
            continue
        try:
            with closing(connect(path)) as db:
                db.execute("VACUUM")
                (is_busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_busy:
                faults.append(f"{path}: other processes read it all the time")
        except sqlite3.Error as error:
            faults.append(f"{path}: {error}")
    return faults
