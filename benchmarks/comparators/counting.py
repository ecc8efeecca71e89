"""What every side's handler does: note that it began, and nothing else. One write to a file, alike for all."""

from __future__ import annotations

import os
import time
from typing import Any

_notes = os.open(os.environ.get("BENCH_NOTES", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note() -> None:
    """One byte for each run: the size of the file is the number of runs."""
    os.write(_notes, b".")


def note_time(message_id: str) -> None:
    """Which message, and when."""
    os.write(_notes, f"{message_id} {time.monotonic_ns()}\n".encode())


def handle(_event: dict[str, Any]) -> None:
    note()


def handle_timed(event: dict[str, Any]) -> None:
    note_time(event["id"])
