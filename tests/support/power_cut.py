"""A power cut, as far as files go: what was written and not fsynced is gone.

strace watches a process and notes each write and each fsync. After a kill the file is cut back to what the last fsync
that returned had found in it. Only for files that grow by appending, and for a write-ahead log that was not restarted.
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
    """What a process wrote to its files, and how much of it an fsync has covered."""

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
        """Files with a call under way when the process was killed: whether it was done, nobody saw."""

    def read(self) -> Watched:
        """Go through the log from its beginning."""
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
            self.safe[path] = max(self.safe[path], found)  # what was there when the call began
        elif name == "write":
            self.written[path] += result
        elif place := _PLACE.search(rest):
            self.written[path] = max(self.written[path], int(place[1]) + result)

    def cut(self, path: Path) -> int:
        """Cut a file back to what was safe; give how many bytes that took from it."""
        name, size = str(path), path.stat().st_size
        self.read()
        assert self.written[name] == size or name in self.cut_short, "every write was seen"
        os.truncate(path, self.safe[name])
        return size - self.safe[name]


def kill_below(tracer: Process) -> None:
    """SIGKILL for everything that is watched; the tracer ends with it."""
    for pid in children_of(tracer.pid):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not tracer.alive, what="the tracer has written its log")
