"""Simulates what a power cut does to files: bytes that were written and not fsynced are lost.

strace records each write and each fsync of a process. After a kill, the file is truncated to its size at the last fsync
that returned. Only for files that grow by appending, and for a write-ahead log that was not restarted.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.support.harness import Process, children_of, eventually

_CALL = re.compile(r"(\d+) +(\w+)\(\d+<([^>]*)>(.*)")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")
_RESULT = re.compile(r"= (\d+)\s*$")
_PLACE = re.compile(r", (\d+)\)\s+= \d+\s*$")
SYNCS = ("fsync", "fdatasync")


class Watched:
    """The bytes that a process wrote to its files, and how many of them an fsync has covered."""

    def __init__(self, log: Path) -> None:
        if shutil.which("strace") is None:
            pytest.skip("strace is not installed")
        self.log = log
        self.prefix = (
            *("strace", "-f", "-qq", "-y", "-s", "0", "--seccomp-bpf", "-e", "signal=none"),
            *("-e", "trace=write,pwrite64,fsync,fdatasync", "-o", str(log)),
        )
        self.written: Counter[str] = Counter()
        self.safe: Counter[str] = Counter()
        self.cut_short: set[str] = set()
        """Files with a call in progress when the process was killed; its result is unknown."""

    def read(self) -> Watched:
        """Read the log from its beginning."""
        self.written.clear()
        self.safe.clear()
        begun: dict[str, tuple[str, int]] = {}
        for line in self.log.read_text(errors="replace").splitlines():
            if call := _CALL.match(line):
                thread, name, path, rest = call.groups()
                begun[thread] = (path, self.written[path])
            elif resumed := _RESUMED.match(line):
                thread, name, rest = resumed.groups()
            else:
                continue
            if (result := _RESULT.search(rest)) and thread in begun:
                self._done(name, *begun.pop(thread), rest, int(result[1]))
        self.cut_short = {path for path, _ in begun.values()}
        return self

    def _done(self, name: str, path: str, found: int, rest: str, result: int) -> None:
        if name in SYNCS:
            self.safe[path] = max(self.safe[path], found)  # the size when the call began
        elif name == "write":
            self.written[path] += result
        elif place := _PLACE.search(rest):
            self.written[path] = max(self.written[path], int(place[1]) + result)

    def cut(self, path: Path) -> int:
        """Truncate a file to its fsynced size; return the number of bytes removed."""
        name, size = str(path), path.stat().st_size
        self.read()
        assert self.written[name] == size or name in self.cut_short, "every write was recorded"
        os.truncate(path, self.safe[name])
        return size - self.safe[name]


def kill_below(tracer: Process) -> None:
    """SIGKILL every traced process; the tracer then ends by itself."""
    for pid in children_of(tracer.pid):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not tracer.alive, what="the tracer has written its log")
