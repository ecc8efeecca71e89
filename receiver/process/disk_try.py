"""Disk try: whether a folder takes a file now. It is answered in time, also if the disk hangs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

SECONDS = 2.0
"""A disk that takes longer for an empty file counts as one that hangs."""
HANGS = errno.ETIMEDOUT
KNOWN_FOR = 5.0
"""Seconds for which `require_answer` remembers: a console asks for many pages."""
_asking = threading.Lock()
_last: dict[Path, tuple[float, OSError | None]] = {}
"""By folder: when it was tried, and the error."""
_CREATE = """
import sys, tempfile
try:
    tempfile.TemporaryFile(dir=sys.argv[1]).close()
except OSError as error:
    print(error.errno)
"""


def disk_error(folder: Path, *, seconds: float = SECONDS) -> OSError | None:
    """Why a file cannot be created in a folder; with the errno HANGS if that is not known in time. None if it can be,
    or if it could not be tried.

    It is tried in a process of its own: one that waits for a disk cannot even be killed until that answers.
    """
    command = [sys.executable, "-I", "-S", "-c", _CREATE, str(folder)]
    silent = subprocess.DEVNULL
    try:
        tried = subprocess.Popen(command, stdin=silent, stdout=subprocess.PIPE, stderr=silent, text=True)
    except OSError:  # a limit of processes: it says nothing about the disk
        return None
    try:
        said, _ = tried.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        tried.kill()
        return OSError(HANGS, "the disk does not answer")
    return OSError(int(said), os.strerror(int(said))) if said else None


def require_answer(folder: Path) -> None:
    """Raise OSError if the disk hangs. For a command or a page that reads a file there, which would hang too."""
    with _asking:
        at, error = _last.get(folder, (float("-inf"), None))
        if time.monotonic() - at > KNOWN_FOR:
            error = disk_error(folder)
            _last[folder] = time.monotonic(), error
    if error and error.errno == HANGS:
        raise error
