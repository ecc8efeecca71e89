"""A Redis server or another process whose clock a test sets. Needs Debian's package faketime."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.harness import Server, eventually

FAKETIME = next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), "")
needs_faketime = pytest.mark.skipif(not FAKETIME, reason="Debian's package faketime is not installed")


def clock_from(file: Path) -> dict[str, str]:
    """The environment of a process whose clock is ahead of the right time by the seconds in the file, such as -18."""
    return {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@contextmanager
def server_with_clock(folder: Path) -> Iterator[tuple[Server, Callable[[int], None]]]:
    """A server, and a function that sets its clock this many seconds ahead of the right time."""
    folder.mkdir()
    clock = folder / "clock"
    clock.write_text("+0")
    server = Server(folder)

    def set_ahead(seconds: int) -> None:
        before = server.client.time()[0]
        clock.write_text(f"{seconds:+}")
        eventually(lambda: abs(server.client.time()[0] - before) > 3000, what="the clock has jumped")

    faked = clock_from(clock)
    os.environ.update(faked)
    try:
        server.start()
    finally:
        for name in faked:
            del os.environ[name]
    try:
        yield server, set_ahead
    finally:
        server.stop()
        server.client.close()
