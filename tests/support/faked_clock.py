"""A Redis server whose clock a test sets. Needs Debian's package faketime."""

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

    faked = {
        "LD_PRELOAD": FAKETIME,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
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
