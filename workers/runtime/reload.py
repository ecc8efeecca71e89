"""Reload: send HUP to the processes of a data directory on this host, so that they read the config again.

Each of them holds a process file. The signal goes through a process handle that is opened before the file is checked
again, so that it never reaches a process that reuses the id.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from receiver.process.process_files import ProcessFile, held

POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Reload:
    """One reload: the processes that were sent HUP, and those that served the config before it."""

    signalled: tuple[ProcessFile, ...]
    replaced: tuple[ProcessFile, ...]

    def wait(self, seconds: float) -> bool:
        """Wait until every process that served the old config has ended; returns whether it has within this time."""
        deadline = time.monotonic() + seconds
        while any(file.is_held for file in self.replaced):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


def reload(data_dir: Path) -> Reload:
    """Send HUP to every process of this data directory on this host. `storehooks dev` forwards it to its own."""
    files = list(held(data_dir))
    dev = [file for file in files if file.role == "dev"]
    replaced = [file for file in files if file.role == "web-worker"]
    others = [file for file in files if file.role != "web-worker"]
    signalled = [file for file in dev or others if _send_hup(file)]
    return Reload(tuple(signalled), tuple(replaced) if signalled else ())


def _send_hup(file: ProcessFile) -> bool:
    with suppress(OSError):  # it has ended, or belongs to another user
        handle = os.pidfd_open(file.pid)
        try:
            if file.is_held:
                signal.pidfd_send_signal(handle, signal.SIGHUP)
                return True
        finally:
            os.close(handle)
    return False
